"""What each step is worth: the engine driven with all of them, and with one left out.

    python -m benchmarks.steps [--only QUEUE ...] [--rounds N] [--everywhere]

Order and window are outside the engine, so that they can be left out here without a switch in the product. Interleaved:
in each round every variant runs once, in a fresh engine. Readings are kept by queue: `--only` renews those of one.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.drive import DriveFailed, Driven, drive, make_requests, vllm_spec
from benchmarks.figures import Spread
from benchmarks.peers.catalogue import MODEL_PATH, ROOT
from benchmarks.queues import Queue, create_queue, queue_names
from benchmarks.table import format_spread, write_between
from bulkinfer.errors import EngineError
from bulkinfer.ordering import order_requests
from bulkinfer.records import JsonValue, Request

MAX_CONCURRENCY = 64
"""Fewer than documents in any queue: with a place for each, no order can matter."""
SMALL_KV_CACHE_BYTES = 128 << 20
"""5,800 tokens of the demo model: the prefixes of 24 groups do not stay in it all at once."""

Order = Callable[[Sequence[Request]], list[Request]]


def order_file(requests: Sequence[Request]) -> list[Request]:
    """As they stand in the file."""
    return list(requests)


def order_longest(requests: Sequence[Request]) -> list[Request]:
    """The longest prompt first."""
    return sorted(requests, key=lambda request: -request.num_chars)


def order_text(requests: Sequence[Request]) -> list[Request]:
    """By their text, which brings equal beginnings together."""
    return sorted(requests, key=lambda request: [message.content for message in request.messages])


@dataclass(frozen=True, slots=True)
class Variant:
    """The way that the engine is fed and set."""

    name: str
    queues: tuple[str, ...]
    """Where it can matter."""
    order: Order = order_requests
    is_distinct: bool = True
    window_factor: int = 2
    arguments: tuple[tuple[str, JsonValue], ...] = ()


ALL_STEPS = Variant("all steps", queue_names())
VARIANTS = (
    ALL_STEPS,
    Variant("equal documents each time", ("reference", "equal"), is_distinct=False),
    Variant("file order", ("summaries", "groups", "tail"), order=order_file),
    Variant("longest first, not grouped", ("groups",), order=order_longest),
    Variant("grouped, not longest first", ("summaries", "tail"), order=order_text),
    Variant("window of 1x", ("classification", "tail", "tiny"), window_factor=1),
    Variant("block size 128", ("reference", "classification", "groups"), arguments=(("block_size", 128),)),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """One variant, once."""

    queue: str
    variant: str
    round: int
    driven: Driven


def main() -> int:
    """Measure, print, and write the table. Returns the exit code."""
    args = _parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    num_failed = 0
    for name in args.only:
        queue = create_queue(name, args.scale)
        for label, kv_cache_bytes in _find_settings(name):
            variants = [variant for variant in VARIANTS if args.everywhere or name in variant.queues]
            readings: list[Reading] = []
            try:
                readings.extend(_measure(queue, label, variants, args.rounds, kv_cache_bytes))
            finally:  # also of a queue that is ended midway
                keep_readings(args.results, label, readings)
            num_failed += args.rounds * len(variants) - len(readings)
    text = render_steps(load_readings(args.results))
    print(text)
    if args.scale == 1.0:
        write_between(ROOT / "docs" / "performance.md", "steps", text)
    return 1 if num_failed else 0


def load_readings(path: Path) -> list[Reading]:
    """What was kept, queue by queue."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    readings = [Reading(**(row | {"driven": Driven(**row["driven"])})) for row in rows]
    places = list(queue_names())
    return sorted(readings, key=lambda reading: places.index(reading.queue.partition(",")[0]))


def keep_readings(path: Path, label: str, readings: Sequence[Reading]) -> None:
    """Replace what was kept of one queue."""
    kept = [reading for reading in load_readings(path) if reading.queue != label]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(reading) for reading in (*kept, *readings)]), encoding="utf-8")


def _find_settings(queue_name: str) -> tuple[tuple[str, int | None], ...]:
    """How often, and with which KV cache, a queue is measured; None: as the engine chooses."""
    usual = (queue_name, None)
    return (usual, (f"{queue_name}, small KV cache", SMALL_KV_CACHE_BYTES)) if queue_name == "groups" else (usual,)


def _measure(
    queue: Queue, label: str, variants: Sequence[Variant], num_rounds: int, kv_cache_bytes: int | None
) -> Iterator[Reading]:
    """Every variant in every round, those that fail left out."""
    for number in range(num_rounds):
        for variant in variants:
            said = f"{label}, {variant.name}, round {number + 1}"
            start_s = time.monotonic()
            try:
                driven = run_variant(queue, variant, kv_cache_bytes)
            except (DriveFailed, EngineError) as error:
                print(f"{said}: FAILED: {error}", flush=True)
                continue
            total_s = time.monotonic() - start_s
            print(f"{said}: {driven.makespan_s:.1f} s, with the start {total_s:.0f} s", flush=True)
            yield Reading(label, variant.name, number, driven)


def run_variant(queue: Queue, variant: Variant, kv_cache_bytes: int | None) -> Driven:
    """Drive a queue in one way. Raises DriveFailed."""
    arguments: dict[str, JsonValue] = dict(variant.arguments)
    if kv_cache_bytes is not None:
        arguments["kv_cache_memory_bytes"] = kv_cache_bytes
    requests = variant.order(make_requests(queue, is_distinct=variant.is_distinct))
    spec = vllm_spec(queue, MODEL_PATH, MAX_CONCURRENCY, arguments)
    return drive(spec, requests, variant.window_factor * MAX_CONCURRENCY)


def render_steps(readings: Sequence[Reading]) -> str:
    """A table: each variant's makespan, and how many times as long as with all steps, round by round."""
    lines = ["| queue | | makespan, s | times all steps | prompt from cache | tail, s |", "|---|---|---|---|---|---|"]
    for queue, variant in dict.fromkeys((reading.queue, reading.variant) for reading in readings):
        own = _by_round(readings, queue, variant)
        first = _by_round(readings, queue, ALL_STEPS.name)
        ratios = [own[number].makespan_s / first[number].makespan_s for number in own if number in first]
        last = list(own.values())[-1]
        cells = (
            queue,
            variant,
            format_spread(Spread.of(driven.makespan_s for driven in own.values()), 1),
            format_spread(Spread.of(ratios), 2),
            f"{last.cached_tokens / max(1, last.prompt_tokens):.0%}",
            format_spread(Spread.of(driven.tail_s for driven in own.values()), 1),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _by_round(readings: Sequence[Reading], queue: str, variant: str) -> Mapping[int, Driven]:
    return {
        reading.round: reading.driven for reading in readings if reading.queue == queue and reading.variant == variant
    }


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=queue_names(), default=list(queue_names()), metavar="QUEUE")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--everywhere", action="store_true", help="each variant on each queue")
    parser.add_argument("--scale", type=float, default=1.0, help="times the number of documents")
    args = parser.parse_args()
    folder = "full" if args.scale == 1.0 else f"full-{args.scale:g}"
    args.results = ROOT / "benchmarks" / "results" / folder / "steps.json"
    return args


if __name__ == "__main__":
    sys.exit(main())
