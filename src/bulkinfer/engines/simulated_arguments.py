"""`engine.simulated` of the job file: its names, bounds and defaults, and the messages for what is wrong in it."""

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum

from bulkinfer.engines.simulated_cost import StepCost
from bulkinfer.errors import JobError
from bulkinfer.records import JsonValue

_SECTION = "engine.simulated"


class FaultKind(StrEnum):
    """What goes wrong with a request that a fault matches."""

    REJECT = "reject"
    """The engine refuses it as invalid."""
    ERROR = "error"
    """The engine fails on it alone, after it ran."""
    TRUNCATE = "truncate"
    """Its answer is cut at max_tokens."""
    EMPTY = "empty"
    """Its answer is the empty text, or a vector of no numbers."""
    NAN = "nan"
    """Its score, or a number of its vector, is none."""
    BROKEN = "broken"
    """Its answer does not have the form that the job asks for: no JSON, no choice, no match."""
    MISMATCH = "mismatch"
    """Its answer is JSON that does not fit the schema; elsewhere as `broken`."""
    WHITE_SPACE = "white_space"
    """Its answer goes on with white space until something ends it."""
    DIE = "die"
    """The engine's process is killed when it first runs."""
    CRASH = "crash"
    """The engine's process ends by a segmentation fault when it first runs."""
    HANG = "hang"
    """The engine stops answering when it first runs."""
    RAISE = "raise"
    """The engine raises when it first runs."""


ENDING_KINDS = frozenset({FaultKind.DIE, FaultKind.CRASH, FaultKind.HANG, FaultKind.RAISE})
"""Those that end the engine, not just one request."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One scripted failure: what happens to requests that hold a text."""

    match: str
    """Found in the content of any message."""
    kind: FaultKind
    times: int | None = None
    """How often; None is always. For the kinds that end the engine: in how many of its lives, from the first."""


@dataclass(frozen=True, slots=True)
class SimulatedArguments:
    """The cost model and the script of a simulated engine."""

    cost: StepCost = field(default_factory=StepCost)
    engine_start_s: float = 0.0
    max_num_batched_tokens: int | None = None
    """Prompt and output tokens of one step, as in vLLM; None: any number."""
    kv_cache_tokens: int | None = None
    """What the KV cache holds; None: all sequences at their longest."""
    has_virtual_clock: bool = False
    output_tokens: int | None = None
    """Tokens of each answer; None derives them from the document hash, between 1 and max_tokens."""
    prompt_tokens_factor: float = 1.0
    """Tokens of a prompt for each that its characters stand for."""
    faults: tuple[Fault, ...] = ()
    in_child: bool = False
    """Run in a child process, as a real engine does."""
    vector_size: int = 8
    """Numbers in each vector."""


def parse_simulated_arguments(arguments: Mapping[str, JsonValue]) -> SimulatedArguments:
    """Check `engine.simulated` and fill in the defaults. Raises JobError: key path, what was expected and found."""
    costs = tuple(one.name for one in fields(StepCost))
    others = ("prompt_tokens_factor", "faults", "in_child")
    counts = ("output_tokens", "max_num_batched_tokens", "kv_cache_tokens")
    _check_names(_SECTION, arguments, (*costs, "engine_start_s", "clock", *counts, "vector_size", *others))
    defaults = StepCost()
    factor = arguments.get("prompt_tokens_factor", 1.0)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0.01 <= factor <= 100:
        raise _error(f"{_SECTION}.prompt_tokens_factor", "a number from 0.01 to 100", factor)
    parsed = SimulatedArguments(
        cost=StepCost(**{name: _parse_seconds(name, arguments.get(name, getattr(defaults, name))) for name in costs}),
        prompt_tokens_factor=float(factor),
        engine_start_s=_parse_seconds("engine_start_s", arguments.get("engine_start_s", 0.0)),
        **{name: _parse_count(f"{_SECTION}.{name}", arguments.get(name)) for name in counts},
        vector_size=_parse_count(f"{_SECTION}.vector_size", arguments.get("vector_size")) or 8,
        has_virtual_clock=_parse_choice(f"{_SECTION}.clock", arguments.get("clock", "real"), ("real", "virtual"))
        == "virtual",
        faults=_parse_faults(arguments.get("faults", ())),
        in_child=_parse_flag(f"{_SECTION}.in_child", arguments.get("in_child", False)),
    )
    if parsed.in_child and parsed.has_virtual_clock:
        raise JobError(
            f"{_SECTION}.clock: a virtual clock cannot be shared with a child process;"
            " use clock: real or in_child: false",
            f"{_SECTION}.clock",
        )
    return parsed


def check_room(arguments: SimulatedArguments, *, num_slots: int, num_kv_tokens: int, max_context_tokens: int) -> None:
    """Refuse what vLLM refuses: a step without a token for each sequence, a cache that one document cannot fit into.

    Raises JobError.
    """
    if arguments.max_num_batched_tokens is not None and arguments.max_num_batched_tokens < num_slots:
        expected = f"at least limits.max_concurrency ({num_slots}), a token for each sequence"
        raise _error(f"{_SECTION}.max_num_batched_tokens", expected, arguments.max_num_batched_tokens)
    if num_kv_tokens < max_context_tokens:
        expected = f"at least limits.max_context_tokens ({max_context_tokens}), without what limits.reserve keeps free"
        raise _error(f"{_SECTION}.kv_cache_tokens", expected, arguments.kv_cache_tokens)


def suggest_name(name: str, known: Iterable[str]) -> str:
    """`; did you mean "x"?` for the nearest known name, or the empty text if none is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f'; did you mean "{near[0]}"?' if near else ""


def _check_names(path: str, found: Mapping[str, JsonValue], known: tuple[str, ...]) -> None:
    for name in found:
        if name not in known:
            raise JobError(
                f"{path}.{name}: unknown key{suggest_name(name, known)} (known: {', '.join(known)})", f"{path}.{name}"
            )


def _parse_seconds(name: str, found: JsonValue) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found) or found < 0:
        raise _error(f"{_SECTION}.{name}", "a number of seconds, 0 or more", found)
    return float(found)


def _parse_count(path: str, found: JsonValue) -> int | None:
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise _error(path, "a whole number, 1 or more, or null", found)
    return found


def _parse_flag(path: str, found: JsonValue) -> bool:
    if not isinstance(found, bool):
        raise _error(path, "true or false", found)
    return found


def _parse_choice(path: str, found: JsonValue, choices: tuple[str, ...]) -> str:
    if not isinstance(found, str) or found not in choices:
        near = suggest_name(found, choices) if isinstance(found, str) else ""
        raise JobError(f"{_error(path, 'one of ' + ', '.join(choices), found)}{near}", path)
    return found


def _parse_faults(found: JsonValue) -> tuple[Fault, ...]:
    if not isinstance(found, list | tuple):
        raise _error(f"{_SECTION}.faults", "a list", found)
    return tuple(_parse_fault(f"{_SECTION}.faults[{index}]", fault) for index, fault in enumerate(found))


def _parse_fault(path: str, found: JsonValue) -> Fault:
    if not isinstance(found, Mapping):
        raise _error(path, "a mapping with match, kind and times", found)
    _check_names(path, found, ("match", "kind", "times"))
    match = found.get("match")
    if not isinstance(match, str) or not match:
        raise _error(f"{path}.match", "a text that is not empty", match)
    kind = FaultKind(_parse_choice(f"{path}.kind", found.get("kind"), tuple(FaultKind)))
    return Fault(match, kind, _parse_count(f"{path}.times", found.get("times")))


def _error(path: str, expected: str, found: JsonValue) -> JobError:
    return JobError(f"{path}: expected {expected}, found {found!r}", path)
