"""Orders on the simulated engine, where the length of each answer is ours to choose. Takes seconds; no model.

    python -m benchmarks.simulated_order

Its steps cost the same however many sequences run, as on a device that waits for memory: the tail weighs most there.
It has no prefix cache, so that nothing but the lengths decides. An answer's length comes from the document's hash.
"""

import random
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.drive import Driven, drive, make_request
from benchmarks.peers.catalogue import ROOT
from benchmarks.table import write_between
from bulkinfer.engines.base import EngineSpec
from bulkinfer.records import Message, Request

NUM_DOCUMENTS = 4000
MAX_TOKENS = 1024
NUM_SLOTS = (64, 256, 1024)
STEP_S = 0.02
PROMPT_TOKEN_S = 0.00002
SEED = 4


@dataclass(frozen=True, slots=True)
class Sized:
    """A request, and how long its answer will be."""

    request: Request
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Line:
    """One order on one number of slots."""

    num_slots: int
    order: str
    driven: Driven
    bound_s: float
    """No order can be faster: all slots full to the end, or the longest answer alone."""


def main() -> None:
    """Print the table, and write it into the page."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    text = render_lines(measure(NUM_DOCUMENTS, NUM_SLOTS))
    print(text)
    write_between(ROOT / "docs" / "performance.md", "simulated", text)


def measure(num_documents: int, slots: Sequence[int]) -> list[Line]:
    """Every order on every number of slots, over the same documents."""
    sized = make_sized(random.Random(SEED), num_documents)
    lines = []
    for num_slots in slots:
        spec = simulated_spec(num_slots)
        bound_s = find_bound_s(sized, num_slots)
        for name, order in ORDERS.items():
            requests = [one.request for one in order(sized)]
            driven = drive(spec, requests, 2 * num_slots)
            lines.append(Line(num_slots, name, driven, bound_s + PROMPT_TOKEN_S * driven.prompt_tokens))
    return lines


def make_sized(rng: random.Random, num_documents: int) -> list[Sized]:
    """Prompts and answers with a wide spread that have nothing to do with each other; the longest answers come last."""
    lengths = sorted(min(MAX_TOKENS, max(1, round(rng.lognormvariate(3.5, 1.2)))) for _ in range(num_documents))
    num_last = num_documents // 50
    usual, last = lengths[:-num_last], lengths[-num_last:]
    rng.shuffle(usual)
    sized = []
    for number, output_tokens in enumerate(usual + last):
        content = "x" * min(4000, max(20, round(rng.lognormvariate(5.5, 0.8))))
        request = make_request(str(number), (Message("user", content),))
        # The simulated engine answers with 1 + (the first four bytes of the hash) % max_tokens tokens.
        document_hash = (output_tokens - 1).to_bytes(4, "big") + request.document_hash[4:]
        sized.append(Sized(replace(request, document_hash=document_hash), output_tokens))
    return sized


def simulated_spec(num_slots: int) -> EngineSpec:
    """A simulated engine with so many sequences."""
    return EngineSpec(
        kind="simulated",
        model="none",
        revision=None,
        sampling={"max_tokens": MAX_TOKENS},
        max_concurrency=num_slots,
        max_context_tokens=4096,
        arguments={"seconds_per_prompt_token": PROMPT_TOKEN_S, "seconds_per_output_token": STEP_S, "clock": "virtual"},
    )


def find_bound_s(sized: Sequence[Sized], num_slots: int) -> float:
    """The least that any order can take, prompts left out."""
    num_tokens = sum(one.output_tokens for one in sized)
    longest = max(one.output_tokens for one in sized)
    return STEP_S * max(num_tokens / num_slots, longest)


def render_lines(lines: Sequence[Line]) -> str:
    """The table."""
    rows = ["| slots | order | makespan, s | times the least possible | tail, s |", "|---|---|---|---|---|"]
    for line in lines:
        driven = line.driven
        ratio = driven.makespan_s / line.bound_s
        rows.append(
            f"| {line.num_slots} | {line.order} | {driven.makespan_s:.1f} | {ratio:.3f} | {driven.tail_s:.1f} |"
        )
    return "\n".join(rows)


def _shuffle(sized: Sequence[Sized]) -> list[Sized]:
    return random.Random(SEED).sample(sized, len(sized))


def _guess(sized: Sequence[Sized]) -> list[Sized]:
    """Longest answer first, by a guess that is wrong by a factor of up to two and more."""
    rng = random.Random(SEED)
    return sorted(sized, key=lambda one: -one.output_tokens * rng.lognormvariate(0, 0.7))


ORDERS: dict[str, Callable[[Sequence[Sized]], list[Sized]]] = {
    "file, the longest answers last": list,
    "shuffled": _shuffle,
    "longest prompt first": lambda sized: sorted(sized, key=lambda one: -one.request.num_chars),
    "longest answer first, guessed": _guess,
    "longest answer first, known": lambda sized: sorted(sized, key=lambda one: -one.output_tokens),
}


if __name__ == "__main__":
    main()
