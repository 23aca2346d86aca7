"""What a sweep is asked to do: the options of the command line, checked before anything is read or loaded."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from bulkinfer.errors import JobError

MAX_CONCURRENCY = 65_536
"""As `limits.max_concurrency` has it."""
MAX_USERS = 100_000
MAX_QUEUE_SIZE = 1_000_000
MAX_RATE_PER_S = 1000.0
"""Of arrivals: above it the sweep itself would be what is measured."""
MAX_POINTS = 200
_SHARE_TOLERANCE = 0.0015
"""What the shares of a mix may miss 1 by: a third is written 0.333."""
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"


class Kind(StrEnum):
    """The two kinds of request in a load."""

    SHORT = "short"
    """A short chat request."""
    LONG = "long"
    """A long document to summarise."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How requests come."""

    rates_per_s: tuple[float, ...] = ()
    """Of Poisson arrivals, one for each point; none: a closed loop, where users wait for an answer and ask again."""

    @property
    def is_closed(self) -> bool:
        """Whether users wait for their answers."""
        return not self.rates_per_s

    def __str__(self) -> str:
        return "closed" if self.is_closed else "poisson:" + ",".join(f"{rate:g}" for rate in self.rates_per_s)


EVEN_MIX: Mapping[Kind, float] = {Kind.SHORT: 0.7, Kind.LONG: 0.3}


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """All of them; `check_options` says what does not go together."""

    concurrency: tuple[int, ...] = (1, 4, 8)
    """Requests that the engine has at once; a point for each."""
    mix: Mapping[Kind, float] = field(default_factory=lambda: dict(EVEN_MIX))
    """Shares of the requests; they sum to 1."""
    arrivals: Arrivals = Arrivals()
    queue_size: int = 32
    """Requests that may wait for the engine."""
    is_rejecting: bool = False
    """A full queue refuses; else arrivals wait outside of it."""
    cancel_share: float = 0.0
    """Of the requests."""
    duration_s: float = 30.0
    """Of each point, on the engine's clock."""
    warmup_s: float = 5.0
    """Before it, left out of every figure."""
    num_users: int | None = None
    """None: as many as the point's concurrency in a closed loop, and nobody in particular otherwise."""
    per_user: int | None = None
    """The most requests that one user may have waiting or running."""
    seed: int = 0
    headroom: float = 0.2
    """Share of what was measured that a recommendation leaves free."""
    target_p95_s: float | None = None
    """The longest p95 of the whole time that is good enough; None: where latency leaves the line."""
    batched_tokens: tuple[int, ...] = ()
    """Values of vLLM's max_num_batched_tokens, an engine start for each; none: what the job or the engine says."""
    max_tokens: Mapping[Kind, int] = field(default_factory=dict)
    """Of the answers of a kind; where it is missing, `load` chooses."""
    low: frozenset[Kind] = frozenset()
    """Kinds that come at low priority."""
    reserves: tuple[float, ...] = ()
    """Shares of the engine that kinds at low priority must leave free, a point for each; none: as the job says."""
    what_if: tuple[int, ...] = ()
    """Concurrencies that only the simulated engine is asked about."""


def check_options(options: SweepOptions) -> None:
    """Refuse options that do not go together. Raises JobError that names them."""
    num_points = (
        len(options.concurrency)
        * max(1, len(options.arrivals.rates_per_s))
        * max(1, len(options.batched_tokens))
        * max(1, len(options.reserves))
    )
    if num_points > MAX_POINTS:
        raise JobError(f"expected at most {MAX_POINTS} points, found {num_points}; give fewer values")
    if options.duration_s <= 0:
        raise JobError(f"--duration: expected more than 0 seconds for each point, found {options.duration_s:g}")
    if options.arrivals.is_closed and options.is_rejecting and options.queue_size == 0:
        raise JobError(
            "--queue: expected 1 or more with --reject and --arrivals closed, found 0: a user who is refused would only"
            " ask again; use --arrivals poisson:RATE to measure an engine without a queue"
        )
    if options.per_user is not None and options.arrivals.is_closed:
        raise JobError("--per-user: says nothing with --arrivals closed, where each user has one request open")
    if options.per_user is not None and options.num_users is None:
        raise JobError("--per-user: expected --users as well, the number of users that the arrivals come from")
    if options.reserves and not options.low:
        raise JobError("--reserve: expected --low as well, the kinds that must leave that share free")
    if options.low and options.low >= {kind for kind, share in options.mix.items() if share > 0}:
        raise JobError("--low: expected at least one kind of the mix at normal priority, found all of them low")


def parse_counts(option: str, text: str, *, most: int = MAX_CONCURRENCY) -> tuple[int, ...]:
    """`1,4,8`: different whole numbers, ascending. Raises JobError."""
    counts = set()
    for part in text.split(","):
        if not re.fullmatch(r"[0-9]{1,9}", part.strip()) or not 1 <= int(part) <= most:
            raise JobError(f"{option}: expected whole numbers from 1 to {most:,}, such as 1,4,8, found {part[:40]!r}")
        counts.add(int(part))
    return tuple(sorted(counts))


def parse_mix(text: str) -> dict[Kind, float]:
    """`short:0.7,long:0.3` or `short:70%,long:30%`. Raises JobError."""
    mix = {kind: parse_share(f"--mix {kind}", share) for kind, share in _parse_pairs("--mix", text, "0.7").items()}
    total = sum(mix.values())
    if abs(total - 1) > _SHARE_TOLERANCE:
        raise JobError(f"--mix: expected shares that sum to 1, found {total:g} ({text[:80]})")
    return {kind: share / total for kind, share in mix.items()}


def parse_max_tokens(text: str) -> dict[Kind, int]:
    """`short:16,long:64`. Raises JobError."""
    found = {}
    for kind, count in _parse_pairs("--max-tokens", text, "64").items():
        [found[kind]] = parse_counts(f"--max-tokens {kind}", count, most=10_000_000)
    return found


def parse_kinds(option: str, text: str) -> frozenset[Kind]:
    """`long`, or several with commas. Raises JobError."""
    return frozenset(_parse_kind(option, name.strip()) for name in text.split(","))


def parse_arrivals(text: str) -> Arrivals:
    """`closed`, `poisson:RATE` or `poisson:RATE,RATE`, in requests per second. Raises JobError."""
    if text == "closed":
        return Arrivals()
    name, _, rates = text.partition(":")
    expected = f"closed or poisson:RATE, with a rate above 0 and up to {MAX_RATE_PER_S:g} requests per second"
    if name != "poisson" or not all(re.fullmatch(_NUMBER, rate.strip()) for rate in rates.split(",")):
        raise JobError(f"--arrivals: expected {expected}, found {text[:40]!r}")
    found = tuple(sorted({float(rate) for rate in rates.split(",")}))
    if found[0] <= 0 or found[-1] > MAX_RATE_PER_S:
        raise JobError(f"--arrivals: expected {expected}, found {text[:40]!r}")
    return Arrivals(found)


def parse_share(option: str, text: str) -> float:
    """`0.05` or `5%`, from 0 to 1. Raises JobError."""
    match = re.fullmatch(rf"({_NUMBER}) ?(%?)", text.strip())
    share = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= share <= 1:
        raise JobError(f"{option}: expected a share from 0 to 1, such as 5% or 0.05, found {text[:40]!r}")
    return share


def parse_headroom(text: str) -> float:
    """A share below 1: something must be left to recommend. Raises JobError."""
    share = parse_share("--headroom", text)
    if share >= 1:
        raise JobError(f"--headroom: expected less than 100 %, found {text[:40]!r}")
    return share


def parse_reserves(text: str) -> tuple[float, ...]:
    """`0%,25%`: shares below 1, ascending. Raises JobError."""
    shares = sorted({parse_share("--reserve", part) for part in text.split(",")})
    if shares[-1] >= 1:
        raise JobError(f"--reserve: expected less than 100 %, found {text[:40]!r}")
    return tuple(shares)


def _parse_pairs(option: str, text: str, example: str) -> dict[Kind, str]:
    found: dict[Kind, str] = {}
    for pair in text.split(","):
        name, colon, value = pair.strip().partition(":")
        if not colon:
            raise JobError(f"{option}: expected kinds and values such as short:{example}, found {pair[:40]!r}")
        kind = _parse_kind(option, name.strip())
        if kind in found:
            raise JobError(f"{option}: {kind} is given twice")
        found[kind] = value
    return found


def _parse_kind(option: str, name: str) -> Kind:
    known: Sequence[Kind] = tuple(Kind)
    if name not in known:
        raise JobError(f"{option}: unknown kind {name[:40]!r}; expected {' or '.join(known)}")
    return Kind(name)
