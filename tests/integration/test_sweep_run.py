"""A whole sweep over several engines: what was measured before a fault is kept."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bulkinfer.engines.base import EngineSpec
from bulkinfer.errors import JobError
from bulkinfer.job import Job, load_job
from bulkinfer.runner import plan_run
from bulkinfer.sweep import SweepOptions, rig, run_sweep
from bulkinfer.sweep.load import Load
from tests.conftest import JobFolder, make_documents

VIRTUAL = {"clock": "virtual", "seconds_per_output_token": 0.02}


@pytest.mark.parametrize("num_started", [0, 1])
def test_an_engine_that_is_refused_keeps_the_points_of_the_one_before(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch, num_started: int
) -> None:
    started: list[EngineSpec] = []

    def describe(spec: EngineSpec, options: SweepOptions, _: int | None) -> EngineSpec:
        return rig.describe_rig(spec, options, None)  # as the simulated engine takes it

    @contextmanager
    def start(job: Job, spec: EngineSpec, load: Load, is_stopped: Callable[[], bool]) -> Iterator[rig.Rig]:
        if len(started) == num_started:
            raise JobError("no room for so many tokens")
        started.append(spec)
        with rig.running_engine(job, spec, load, is_stopped) as running:
            yield running

    monkeypatch.setattr("bulkinfer.sweep.run.describe_rig", describe)
    monkeypatch.setattr("bulkinfer.sweep.run.running_engine", start)
    folder.write_documents(make_documents(20))
    plan = plan_run(load_job(folder.write_job(engine={"kind": "simulated", "simulated": VIRTUAL})))
    options = SweepOptions(concurrency=(1, 2), batched_tokens=(512, 8192), duration_s=10, warmup_s=0)
    if num_started == 0:
        with pytest.raises(JobError, match="no room"):
            run_sweep(plan, options, lambda _: None)
        return
    report = run_sweep(plan, options, lambda _: None)
    assert len(report.found["points"]) == 2
    assert isinstance(report.error, JobError)
