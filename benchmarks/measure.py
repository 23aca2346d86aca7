"""The runs of a suite: which, in which order, and each from nothing to all answers on disk."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.base import Peer, Report, RunFailed
from benchmarks.queues import Queue
from benchmarks.results import Results, Run, Series
from benchmarks.watch import Watched, run_watched

RUN_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Step:
    """One run that is to be made."""

    series: Series
    queue: Queue
    peer: Peer
    round: int


class WrongAnswers(RunFailed):
    """A peer did not answer every document once."""


def plan_noise(queue: Queue, peer: Peer, num_pairs: int) -> Iterator[Step]:
    """One command against itself: what differs here is the machine's doing."""
    for number in range(2 * num_pairs):
        yield Step(Series.NOISE, queue, peer, number)


def plan_queue(queue: Queue, peers: Sequence[Peer], num_rounds: Callable[[str, str], int]) -> Iterator[Step]:
    """All peers on one queue, in turns that go back and forth: A B, B A. `num_rounds` of a queue's and a peer's name.

    So nobody always goes first, into what the one before has left in caches and heat.
    """
    rounds = {peer.name: num_rounds(queue.name, peer.name) for peer in peers}
    for number in range(max(rounds.values(), default=0)):
        turn = [peer for peer in peers if number < rounds[peer.name]]
        for peer in reversed(turn) if number % 2 else turn:
            yield Step(Series.MAIN, queue, peer, number)


def find_missing(steps: Sequence[Step], kept: Sequence[Run]) -> list[Step]:
    """What is still to be made, by whole turns, as runs that are compared stand next to each other in time.

    Of noise, a turn is a pair.
    """
    done = {(run.series, run.queue, run.peer, run.round) for run in kept}
    missing = {
        _turn_of(step) for step in steps if (step.series, step.queue.name, step.peer.name, step.round) not in done
    }
    return [step for step in steps if _turn_of(step) in missing]


def _turn_of(step: Step) -> tuple[Series, str, int]:
    return step.series, step.queue.name, step.round // 2 if step.series is Series.NOISE else step.round


def make_run(step: Step, results: Results, suite: str) -> Run:
    """Run one peer once, check what it answered, and keep what was measured. Raises RunFailed."""
    with tempfile.TemporaryDirectory(prefix="bulkinfer-bench-") as name:
        folder = Path(name)
        watched = run_watched(step.peer.prepare(step.queue, folder), folder, RUN_TIMEOUT_S)
        report = step.peer.read(step.queue, folder, watched.stdout)
    check_answers(step.queue, report)
    run = _describe(step, watched, report, suite)
    results.add(run, report.answers)
    return run


def check_answers(queue: Queue, report: Report) -> None:
    """Every document answered, and once. Raises WrongAnswers."""
    expected = sorted(entry.document_id for entry in queue.entries)
    found = sorted(answer.document_id for answer in report.answers)
    if found != expected:
        missing, more = set(expected) - set(found), len(found) - len(set(found))
        raise WrongAnswers(f"{len(expected)} documents, {len(found)} answers: {len(missing)} missing, {more} doubled")
    if report.output_tokens is not None and report.output_tokens > len(expected) * queue.max_tokens:
        raise WrongAnswers(f"{report.output_tokens} output tokens are more than max_tokens allows")


def _describe(step: Step, watched: Watched, report: Report, suite: str) -> Run:
    return Run(
        suite=suite,
        series=step.series,
        queue=step.queue.name,
        peer=step.peer.name,
        round=step.round,
        num_documents=len(step.queue.entries),
        num_distinct=step.queue.num_distinct,
        wall_s=watched.wall_s,
        peak_memory_bytes=watched.peak_memory_bytes,
        prompt_tokens=report.prompt_tokens,
        cached_tokens=report.cached_tokens,
        output_tokens=report.output_tokens,
        engine_start_s=report.engine_start_s,
        full_step_share=report.full_step_share,
        generate_s=report.generate_s,
    )
