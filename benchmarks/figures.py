"""Medians, ranges and ratios of runs. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.results import Run, Series


@dataclass(frozen=True, slots=True)
class Spread:
    """Some numbers, by what is said of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, numbers: Iterable[float]) -> "Spread | None":
        """None where there are none."""
        found = list(numbers)
        return cls(median(found), min(found), max(found)) if found else None


@dataclass(frozen=True, slots=True)
class Row:
    """One peer on one queue."""

    queue: str
    peer: str
    num_runs: int
    num_planned: int
    """Runs that a whole suite has."""
    num_documents: int
    wall_s: Spread
    times_slower: Spread | None
    """Its wall time divided by that of the first peer in the same round."""
    generate_s: Spread | None
    output_tokens_per_s: Spread | None
    tokens_ratio: Spread | None
    """Output tokens/s of the first peer divided by its own, in the same round."""
    cached_share: float | None
    full_steps: Spread | None
    """Share of the engine's steps in which no slot was free, while there was more to do."""
    peak_memory_bytes: Spread


def summarise(runs: Sequence[Run], first_peer: str, planned: Mapping[tuple[str, str], int] | None = None) -> list[Row]:
    """A row for each queue and peer, in the order in which they were first run. `planned`: runs by queue and peer."""
    main = [run for run in runs if run.series is Series.MAIN]
    keys = dict.fromkeys((run.queue, run.peer) for run in main)
    rows = [_make_row([run for run in main if (run.queue, run.peer) == key], main, first_peer) for key in keys]
    return [replace(row, num_planned=(planned or {}).get((row.queue, row.peer), row.num_runs)) for row in rows]


def find_gaps(rows: Sequence[Row], planned: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """By queue and peer: runs that a whole suite has and that are not there."""
    made = {(row.queue, row.peer): row.num_runs for row in rows}
    return {key: num_runs - made.get(key, 0) for key, num_runs in planned.items() if made.get(key, 0) < num_runs}


def measure_noise(runs: Sequence[Run]) -> dict[str, Spread]:
    """By queue: the wall time of a command divided by that of the same command just after it: rounds 0 and 1, 2 and 3.

    A run whose other half is missing, or was made by another suite, tells nothing.
    """
    noise = {(run.suite, run.queue, run.peer, run.round): run for run in runs if run.series is Series.NOISE}
    ratios: dict[str, list[float]] = {}
    for (suite, queue, peer, number), first in noise.items():
        second = noise.get((suite, queue, peer, number + 1))
        if number % 2 == 0 and second is not None:
            ratios.setdefault(queue, []).append(first.wall_s / second.wall_s)
    return {queue: spread for queue, numbers in ratios.items() if (spread := Spread.of(numbers)) is not None}


def share_different(answers: Mapping[str, str], others: Mapping[str, str]) -> float:
    """The share of documents that two peers answered differently. Raises ValueError if they answered others."""
    if answers.keys() != others.keys():
        raise ValueError("these are answers to different documents")
    return sum(text != others[document_id] for document_id, text in answers.items()) / max(1, len(answers))


def _make_row(runs: Sequence[Run], all_runs: Sequence[Run], first_peer: str) -> Row:
    [queue] = {run.queue for run in runs}
    firsts = {(run.suite, run.round): run for run in all_runs if run.queue == queue and run.peer == first_peer}
    pairs = [(first, run) for run in runs if (first := firsts.get((run.suite, run.round))) is not None]
    walls = Spread.of(run.wall_s for run in runs)
    memory = Spread.of(run.peak_memory_bytes for run in runs)
    assert walls is not None
    assert memory is not None
    return Row(
        queue=queue,
        peer=runs[0].peer,
        num_runs=len(runs),
        num_planned=len(runs),
        num_documents=runs[0].num_documents,
        wall_s=walls,
        times_slower=Spread.of(run.wall_s / first.wall_s for first, run in pairs),
        generate_s=_spread(runs, lambda run: run.generate_s),
        output_tokens_per_s=_spread(runs, lambda run: run.output_tokens_per_s),
        tokens_ratio=Spread.of(
            first.output_tokens_per_s / run.output_tokens_per_s
            for first, run in pairs
            if first.output_tokens_per_s and run.output_tokens_per_s
        ),
        cached_share=_cached_share(runs[-1]),
        full_steps=_spread(runs, lambda run: run.full_step_share),
        peak_memory_bytes=memory,
    )


def _spread(runs: Sequence[Run], read: Callable[[Run], float | None]) -> Spread | None:
    return Spread.of(number for run in runs if (number := read(run)) is not None)


def _cached_share(run: Run) -> float | None:
    return run.cached_tokens / run.prompt_tokens if run.cached_tokens is not None and run.prompt_tokens else None
