"""What-if against an engine whose costs are known: the fit finds them, and what it says of other sizes comes true."""

from typing import Any

import pytest

from bulkinfer.job import load_job
from bulkinfer.runner import plan_run
from bulkinfer.sweep import SweepOptions, run_sweep
from tests.conftest import JobFolder, make_documents

COSTS = {
    "seconds_per_output_token": 0.02,
    "seconds_per_prompt_token": 0.0005,
    "seconds_per_sequence": 0.002,
    "seconds_per_context_token": 0.0,
}


def sweep(folder: JobFolder, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - options of any type
    folder.write_documents(make_documents(200))
    job = folder.write_job(
        sampling={"max_tokens": 64}, engine={"kind": "simulated", "simulated": {"clock": "virtual", **COSTS}}
    )
    report = run_sweep(plan_run(load_job(job)), SweepOptions(**changes), lambda _: None)
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
