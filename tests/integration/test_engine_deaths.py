"""Whole runs whose engine's process really ends: what the run makes of it, and what it says."""

import re
from pathlib import Path
from typing import Any

import pytest

from bulkinfer.errors import ExitCode
from bulkinfer.events import EngineRestarting
from tests.cli_support import call
from tests.conftest import JobFolder, make_documents
from tests.metrics_support import read_samples
from tests.unit.store_support import select


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long the waits are is tested elsewhere."""
    monkeypatch.setattr("bulkinfer.runner.window.restart_wait_s", lambda attempt: 0.01)


def with_fault(match: str, kind: str, times: int | None) -> dict[str, Any]:
    """The `engine` section of an engine in a process of its own, with one scripted fault."""
    fault = {"match": match, "kind": kind, "times": times}
    return {"simulated": {"in_child": True, "seconds_per_output_token": 0.001, "faults": [fault]}}


def log_path(folder: JobFolder) -> Path:
    return Path(f"{folder.database}.engine.log")


def test_a_segmentation_fault_costs_one_restart_and_no_document(folder: JobFolder) -> None:
    folder.write_documents(make_documents(50))
    report = folder.run(engine=with_fault("document 7 ", "crash", 1))
    assert report.exit_code is ExitCode.OK, report.error
    documents, engine = report.summary["documents"], report.summary["engine"]
    assert isinstance(documents, dict)
    assert isinstance(engine, dict)
    assert (documents["succeeded"], documents["failed"], engine["restarts"]) == (50, 0, 1)
    [restarting] = [event for event in folder.events if isinstance(event, EngineRestarting)]
    assert "killed by SIGSEGV" in restarting.reason
    assert "Segmentation fault" in log_path(folder).read_text()
    assert select(folder.database, "select count(*), count(distinct document_hash) from results") == [(50, 50)]


def test_an_engine_that_always_raises_is_exit_code_3_with_its_last_words_and_its_log(folder: JobFolder) -> None:
    """It raises on bulkinfer's own prompt too, so no document is at fault."""
    folder.write_documents(make_documents(3))
    metrics = folder.path / "job.prom"
    job = folder.write_job(engine=with_fault("e", "raise", None))
    ended = call("run", str(job), "--metrics-file", str(metrics))
    assert ended.exit_code == 3, ended.stderr
    samples = read_samples(metrics.read_text())
    assert samples["bulkinfer_engine_deaths_total"] == samples["bulkinfer_engine_restarts_total"] + 1, "the last, too"
    assert re.search(r"exit code 3: ScriptedFaultError at .*simulated\.py:\d+ _end", ended.stderr)
    assert f"its log: {log_path(folder)}" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert log_path(folder).stat().st_mode & 0o777 == 0o600
    assert "ScriptedFaultError at " in log_path(folder).read_text()
    assert select(folder.database, "select (select count(*) from results), (select count(*) from failures)") == [(0, 0)]
    assert folder.run().summary["status"] == "completed"
    assert select(folder.database, "select count(*) from results") == [(3,)]
