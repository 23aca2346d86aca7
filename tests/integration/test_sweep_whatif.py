"""What-if against an engine whose costs are known: the fit finds them, and what it says of other sizes comes true."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from bulkinfer.errors import EngineError
from bulkinfer.job import load_job
from bulkinfer.runner import plan_run
from bulkinfer.sweep import SweepOptions, run_sweep, whatif
from bulkinfer.sweep.options import Kind
from bulkinfer.sweep.point import Point
from bulkinfer.sweep.result import SweepReport
from tests.conftest import JobFolder, make_documents

COSTS = {
    "seconds_per_output_token": 0.02,
    "seconds_per_prompt_token": 0.0005,
    "seconds_per_sequence": 0.002,
    "seconds_per_context_token": 0.0,
}


def run(folder: JobFolder, is_stopped: Callable[[], bool], **changes: Any) -> SweepReport:  # noqa: ANN401 - of any type
    folder.write_documents(make_documents(200))
    job = folder.write_job(
        sampling={"max_tokens": 64}, engine={"kind": "simulated", "simulated": {"clock": "virtual", **COSTS}}
    )
    return run_sweep(plan_run(load_job(job)), SweepOptions(**changes), lambda _: None, is_stopped)


def sweep(folder: JobFolder, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - options of any type
    report = run(folder, lambda: False, **changes)
    assert report.error is None
    return report.found


def test_it_finds_the_costs_and_tells_what_larger_sizes_do(folder: JobFolder) -> None:
    found = sweep(folder, concurrency=(1, 2, 4), duration_s=200, warmup_s=10, what_if=(12,))
    what_if = found["what_if"]
    assert what_if["costs"]["seconds_per_output_token"] == pytest.approx(0.02, rel=0.02)
    assert what_if["costs"]["seconds_per_sequence"] == pytest.approx(0.002, rel=0.05)
    *measured, asked = what_if["points"]
    for point in measured:
        assert abs(point["error"]["requests_per_s"]) < 0.06
        assert abs(point["error"]["p95"]) < 0.1
    assert abs(what_if["unseen"]["error"]["requests_per_s"]) < 0.06
    assert (asked["concurrency"], asked["error"]) == (12, None)
    [real] = sweep(folder, concurrency=(12,), duration_s=200, warmup_s=10)["points"]
    assert asked["throughput"]["requests_per_s"] == pytest.approx(real["throughput"]["requests_per_s"], rel=0.06)
    assert asked["p95_s"] == pytest.approx(real["p95_s"], rel=0.1)


def test_too_few_readings_are_told_not_guessed_from(folder: JobFolder) -> None:
    found = sweep(folder, concurrency=(1,), duration_s=2, warmup_s=0, what_if=(4,))
    assert found["what_if"] is None
    assert any("too few readings" in note for note in found["notes"])


ASKED: dict[str, Any] = {"concurrency": (1, 2, 4), "duration_s": 60, "warmup_s": 0, "what_if": (8,)}


@pytest.mark.parametrize("num_looks", [1, 4])
def test_a_stop_while_it_simulates_keeps_what_was_measured(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch, num_looks: int
) -> None:
    """At the first time that the simulation asks, or later."""
    asked: list[bool] = []
    ask = whatif.ask_what_if
    looks = count(1)

    def begin(*arguments: Any) -> dict[str, Any] | None:  # noqa: ANN401 - as ask_what_if takes them
        asked.append(True)
        return ask(*arguments)

    monkeypatch.setattr("bulkinfer.sweep.run.ask_what_if", begin)
    report = run(folder, lambda: bool(asked) and next(looks) >= num_looks, **ASKED)
    assert report.is_stopped
    assert report.error is None
    assert len(report.found["points"]) == 3


def test_a_fault_of_the_simulation_is_a_note(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> dict[str, Any] | None:  # noqa: ANN401 - as ask_what_if takes them
        raise EngineError("it does not start")

    monkeypatch.setattr("bulkinfer.sweep.run.ask_what_if", fail)
    found = sweep(folder, **ASKED)
    assert (len(found["points"]), found["what_if"]) == (3, None)
    assert "--what-if: it does not start" in found["notes"]


def test_nothing_is_simulated_where_nothing_was_answered(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = whatif.ask_what_if

    def ask_silent(points: Sequence[Point], *rest: Any) -> dict[str, Any] | None:  # noqa: ANN401 - as it takes them
        assert ask(points, *rest) is not None
        return ask([replace(point, num_completed=0, shapes={kind: [] for kind in Kind}) for point in points], *rest)

    monkeypatch.setattr("bulkinfer.sweep.run.ask_what_if", ask_silent)
    assert sweep(folder, **ASKED)["what_if"] is None
