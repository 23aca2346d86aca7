"""Whole runs with several engines in processes of their own: each row one outcome, whatever happens to one of them."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from bulkinfer.errors import ExitCode
from bulkinfer.events import EngineRestarting, EngineStarting, Warned
from bulkinfer.runner import RunReport
from tests.cli_support import LIMIT_S, start, wait_until
from tests.conftest import JobFolder, make_documents
from tests.unit.store_support import select

NUM_DOCUMENTS = 150
ANSWERS = "select document_id, output, finish_reason from answers order by row"
COUNTED = "select count(*), count(distinct document_hash) from results"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long the waits are is tested elsewhere."""
    monkeypatch.setattr("bulkinfer.runner.window.restart_wait_s", lambda attempt: 0.01)


@pytest.fixture
def job(folder: JobFolder) -> JobFolder:
    """A job with enough to do for all."""
    folder.write_documents(make_documents(NUM_DOCUMENTS))
    return folder


def replicas_of(count: int, *faults: dict[str, Any], **costs: float) -> dict[str, Any]:
    """The `engine` section of so many engines that take a little time."""
    simulated = {"clock": "real", "seconds_per_output_token": 0.001, "faults": list(faults), **costs}
    return {"replicas": count, "simulated": simulated}


def engine_of(report: RunReport) -> dict[str, Any]:
    engine = report.summary["engine"]
    assert isinstance(engine, dict)
    return engine


def children_of_this() -> list[psutil.Process]:
    """Engines that live now; what an earlier one left behind counts too."""
    return [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("count", [2, 4])
def test_answers_and_totals_are_those_of_one_engine(job: JobFolder, tmp_path: Path, count: int) -> None:
    alone = job.run()
    expected = select(job.database, ANSWERS)
    job.database = tmp_path / "several.duckdb"
    report = job.run(engine=replicas_of(count), output={"database": "several.duckdb"})
    assert (report.exit_code, report.error) == (ExitCode.OK, None)
    assert select(job.database, ANSWERS) == expected
    assert select(job.database, COUNTED) == [(NUM_DOCUMENTS, NUM_DOCUMENTS)]
    assert (report.summary["documents"], report.summary["tokens"]) == (
        alone.summary["documents"],
        alone.summary["tokens"],
    )
    assert sorted(event.replica or 0 for event in job.events if isinstance(event, EngineStarting)) == list(range(count))
    replicas = engine_of(report)["replicas"]
    assert len(replicas) == count
    assert all(replica["documents"] > 0 for replica in replicas)
    assert sum(replica["documents"] for replica in replicas) == NUM_DOCUMENTS
    assert "replicas" not in engine_of(alone)
    logs = ["several.duckdb.engine.log", *(f"several.duckdb.engine-{number}.log" for number in range(1, count))]
    assert sorted(path.name for path in tmp_path.glob("several.duckdb.engine*")) == sorted(logs)
    assert not children_of_this()


@pytest.mark.parametrize("count", [2, 4])
def test_a_virtual_clock_for_each_engine_gives_the_same_answers_sooner(job: JobFolder, count: int) -> None:
    def run(replicas: int) -> tuple[list[tuple[object, ...]], float]:
        job.database = job.path / f"{replicas}.duckdb"
        costs = {"clock": "virtual", "seconds_per_output_token": 0.01, "seconds_per_prompt_token": 0.001}
        report = job.run(
            engine={"replicas": replicas, "simulated": costs},
            output={"database": job.database.name},
            limits={"max_queue_size": NUM_DOCUMENTS},
        )
        assert report.exit_code is ExitCode.OK, report.error
        [(first, last)] = select(job.database, "select min(queue_s), max(total_s) from results")
        assert isinstance(first, float)
        assert isinstance(last, float)
        assert first >= 0
        return select(job.database, ANSWERS), last

    (alone, alone_s), (several, several_s) = run(1), run(count)
    assert several == alone
    assert several_s == pytest.approx(alone_s / count, rel=0.25)


def test_one_engine_that_is_killed_costs_a_restart_and_no_document(job: JobFolder) -> None:
    report = job.run(engine=replicas_of(3, {"match": "document 77 ", "kind": "die", "times": 1}))
    assert report.exit_code is ExitCode.OK, report.error
    assert select(job.database, COUNTED) == [(NUM_DOCUMENTS, NUM_DOCUMENTS)]
    dead = {event.replica for event in job.events if isinstance(event, EngineRestarting)}
    # An engine's first life ends with that document, each engine has one, and others may be quicker than its restart.
    assert 1 <= len(dead) <= 2
    assert not any(isinstance(event, Warned) for event in job.events)
    assert not children_of_this()


def test_a_document_that_kills_engines_is_set_aside_and_leaves_the_others_alone(job: JobFolder) -> None:
    fault = {"match": "document 77 ", "kind": "crash", "times": None}
    report = job.run(engine=replicas_of(4, fault))
    assert report.exit_code is ExitCode.OK, report.error
    assert select(job.database, COUNTED) == [(NUM_DOCUMENTS - 1, NUM_DOCUMENTS - 1)]
    assert select(job.database, "select code, document_id from failures") == [("engine_killer", "d77")]
    assert len({event.replica for event in job.events if isinstance(event, EngineRestarting)}) <= 2
    assert sum(replica["restarts"] for replica in engine_of(report)["replicas"]) == engine_of(report)["restarts"] > 0


def test_engines_that_all_die_end_the_run_with_exit_code_3_and_it_resumes(job: JobFolder) -> None:
    report = job.run(engine=replicas_of(2, {"match": "e", "kind": "die", "times": None}))
    assert report.exit_code is ExitCode.ENGINE, report.error
    assert len([event for event in job.events if isinstance(event, Warned)]) == 1
    assert select(job.database, "select (select count(*) from results), (select count(*) from failures)") == [(0, 0)]
    assert [replica["is_retired"] for replica in engine_of(report)["replicas"]].count(True) == 1
    assert job.run(engine=replicas_of(2)).exit_code is ExitCode.OK
    assert select(job.database, COUNTED) == [(NUM_DOCUMENTS, NUM_DOCUMENTS)]
    assert not children_of_this()


def test_two_documents_load_one_engine(job: JobFolder) -> None:
    job.write_documents(make_documents(2))
    report = job.run(engine=replicas_of(4))
    assert report.exit_code is ExitCode.OK
    assert [event.replica for event in job.events if isinstance(event, EngineStarting)] == [0]


def test_auto_runs_a_simulated_engine_alone(job: JobFolder) -> None:
    report = job.run(engine={"replicas": "auto"})
    assert report.exit_code is ExitCode.OK
    assert "replicas" not in engine_of(report)


def slow(folder: JobFolder) -> Path:
    """The job with two engines that take some seconds for all."""
    section = replicas_of(2, seconds_per_output_token=0.02)
    return folder.write_job(engine=section, limits={"max_concurrency": 4})


def num_answered(folder: JobFolder) -> int:
    """On disk, of a live run, as its status file says."""
    status = Path(f"{folder.database}.status.json")
    text = status.read_text() if status.exists() else ""
    return int(text.partition('"succeeded":')[2].partition(",")[0] or 0) if '"in_flight"' in text else 0


@pytest.fixture
def run_until(job: JobFolder) -> Callable[[], tuple["subprocess.Popen[str]", list[psutil.Process]]]:
    """Start the slow job, wait for its first answers; the run and its engines."""

    def begin() -> tuple["subprocess.Popen[str]", list[psutil.Process]]:
        run = start("run", slow(job), "--json")
        wait_until(lambda: num_answered(job) > 0, "the first answers")
        engines = psutil.Process(run.pid).children()
        assert len(engines) == 2
        return run, engines

    return begin


def check_resumed(job: JobFolder) -> None:
    job.spec["engine"] = {"kind": "simulated", **replicas_of(2)}
    assert job.run().exit_code is ExitCode.OK
    assert select(job.database, COUNTED) == [(NUM_DOCUMENTS, NUM_DOCUMENTS)]


def test_a_killed_run_leaves_no_engine_and_resumes(
    job: JobFolder, run_until: Callable[[], tuple["subprocess.Popen[str]", list[psutil.Process]]]
) -> None:
    run, engines = run_until()
    run.kill()
    run.communicate(timeout=LIMIT_S)
    assert run.returncode == -signal.SIGKILL
    for engine in engines:
        wait_until(lambda engine=engine: not engine.is_running(), "the end of an engine")  # type: ignore[misc]
    check_resumed(job)


def test_a_signal_drains_both_engines(
    job: JobFolder, run_until: Callable[[], tuple["subprocess.Popen[str]", list[psutil.Process]]]
) -> None:
    run, engines = run_until()
    os.kill(run.pid, signal.SIGTERM)
    out, err = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 128 + signal.SIGTERM, err
    assert '"status": "interrupted"' in out.replace('":"', '": "')
    assert "stopping" in err
    for engine in engines:
        wait_until(lambda engine=engine: not engine.is_running(), "the end of an engine")  # type: ignore[misc]
    [(count,)] = select(job.database, "select count(*) from results")
    assert isinstance(count, int)
    assert 0 < count < NUM_DOCUMENTS
    check_resumed(job)


def test_an_engine_killed_from_outside_is_started_again(
    job: JobFolder, run_until: Callable[[], tuple["subprocess.Popen[str]", list[psutil.Process]]]
) -> None:
    run, engines = run_until()
    engines[1].kill()
    _, err = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, err
    assert "killed by SIGKILL" in err
    assert select(job.database, COUNTED) == [(NUM_DOCUMENTS, NUM_DOCUMENTS)]
