"""Everything that a run waits for is made to hang: each wait has a limit, and ends as its setting says."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from bulkinfer.job import load_job
from bulkinfer.store import Reader
from tests.cli_support import LIMIT_S, bulkinfer, start, wait_until
from tests.conftest import ROOT, JobFolder, make_documents

IN_CHILD: dict[str, Any] = {
    "clock": "real",
    "in_child": True,
    "seconds_per_prompt_token": 0,
    "seconds_per_output_token": 0.001,
}


def make_job(folder: JobFolder, simulated: dict[str, Any] | None = None, **engine: Any) -> JobFolder:  # noqa: ANN401
    """50 documents on a simulated engine in a process of its own."""
    if not folder.input.exists():
        folder.write_documents(make_documents(50))
    folder.write_job(engine={"simulated": IN_CHILD | (simulated or {}), **engine})
    return folder


@contextmanager
def running(folder: JobFolder) -> Iterator[subprocess.Popen[str]]:
    run = start("run", folder.job_path, "--json")
    try:
        yield run
    finally:
        run.send_signal(signal.SIGCONT)
        run.kill()
        run.communicate(timeout=LIMIT_S)


def find_engine(run: subprocess.Popen[str]) -> psutil.Process:
    """The run's engine, once it is there."""
    found: list[psutil.Process] = []

    def look() -> bool:
        assert run.poll() is None, "the run ended by itself"
        found[:] = psutil.Process(run.pid).children()
        return bool(found)

    wait_until(look, "an engine")
    return found[0]


def finish(run: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for the end of a run that completes."""
    out, err = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, err
    summary: dict[str, Any] = json.loads(out)
    return summary


def test_an_engine_that_never_gets_ready_is_exit_code_3(folder: JobFolder) -> None:
    found = bulkinfer("run", make_job(folder, {"engine_start_s": 600}, start_timeout_s=0.5).job_path)
    assert found.returncode == 3
    assert "the engine was not ready within 0.5 s" in found.stderr


def test_a_step_that_never_ends_costs_one_restart(folder: JobFolder) -> None:
    fault = {"match": "document 7 ", "kind": "hang", "times": 1}
    with running(make_job(folder, {"faults": [fault]}, step_timeout_s=3)) as run:
        summary = finish(run)
    assert (summary["documents"]["succeeded"], summary["engine"]["restarts"]) == (50, 1)


def test_the_silence_in_which_a_run_is_stopped_is_written_down(folder: JobFolder) -> None:
    faults = {"faults": [{"match": "document 49 ", "kind": "hang"}]}
    with running(make_job(folder, faults, step_timeout_s=60, grace_s=0.1)) as run:
        wait_until(lambda: _find_silence_s(folder) > 1.0, "a silence")
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=LIMIT_S)
    assert run.returncode == 130
    with Reader.open(folder.database) as reader:
        ((silence_s, is_at_end),) = reader.query(
            "select max(silence_s), max(silence_ended_s) <= max(elapsed_s) and max(silence_ended_s) > 1 from samples"
        ).rows
    assert float(str(silence_s)) > 1.0
    assert is_at_end


def _find_silence_s(folder: JobFolder) -> float:
    """What a live run tells; 0 while it tells nothing."""
    found = bulkinfer("status", folder.database, "--json")
    told = json.loads(found.stdout) if found.returncode == 0 else {}
    return float(told.get("since_result_s") or 0.0)


def test_a_document_with_which_each_step_hangs_is_found_like_any_killer(folder: JobFolder) -> None:
    fault = {"match": "document 7 ", "kind": "hang"}
    with running(make_job(folder, {"faults": [fault]}, step_timeout_s=1)) as run:
        summary = finish(run)
    assert summary["documents"]["failed_by_code"] == {"engine_killer": 1}
    assert summary["documents"]["succeeded"] == 49


@pytest.mark.parametrize("is_first", [True, False], ids=["while loading", "at work"])
def test_a_silent_engine_is_ended_and_started_again(folder: JobFolder, is_first: bool) -> None:
    """A stopped process says nothing, not even that it is stopped."""
    speed = {"seconds_per_output_token": 0.05, "output_tokens": 8}
    with running(make_job(folder, speed, silence_timeout_s=3)) as run:
        engine = find_engine(run)
        if is_first:
            engine.kill()
        else:
            status = Path(f"{folder.database}.status.json")
            wait_until(lambda: status.exists() and "in_flight" in status.read_text(), "a first commit")
            engine.suspend()
        summary = finish(run)
    assert (summary["documents"]["succeeded"], summary["engine"]["restarts"]) == (50, 1)
    assert not engine.is_running()


def test_a_run_that_is_stopped_hangs_neither_query_nor_status(folder: JobFolder) -> None:
    with running(make_job(folder, {"seconds_per_output_token": 5})) as run:
        wait_until(lambda: bulkinfer("query", folder.job_path, "select 1").returncode == 0, "the socket")
        run.send_signal(signal.SIGSTOP)
        found = bulkinfer("query", folder.job_path, "select 1", "--timeout", "2")
        assert found.returncode == 75
        assert "no sign of life for 2 s" in found.stderr
        assert str(run.pid) in found.stderr
        assert json.loads(bulkinfer("status", folder.job_path, "--json").stdout)["status"] == "running"
        assert bulkinfer("run", folder.job_path).returncode == 75


@contextmanager
def reading(database: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another program that has the database open for reading."""
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1], read_only=True); print(1, flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(database)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"1\n"
        try:
            yield reader
        finally:
            reader.kill()


def test_a_reader_that_keeps_the_database_open_is_waited_for_and_then_named(folder: JobFolder) -> None:
    folder.write_documents(make_documents(3))
    folder.run()
    with reading(folder.database) as reader:
        found = bulkinfer("run", folder.job_path, "--set", "output.lock_timeout_s=0.3")
        assert (found.returncode, str(reader.pid) in found.stderr) == (75, True)
    assert bulkinfer("run", folder.job_path).returncode == 0


def test_a_signal_ends_the_waiting_for_a_reader(folder: JobFolder) -> None:
    folder.write_documents(make_documents(3))
    folder.run()
    with reading(folder.database):
        run = start("run", folder.job_path, "--json", "--set", "output.lock_timeout_s=3000")
        try:
            wait_until(lambda: f'"pid":{run.pid},' in Path(f"{folder.database}.lock").read_text(), "the lock")
            run.send_signal(signal.SIGTERM)
            out, _ = run.communicate(timeout=LIMIT_S)
        finally:
            run.kill()
    assert (run.returncode, json.loads(out)["status"]) == (143, "interrupted")


_STUCK_INPUT = """
import sys, threading
import bulkinfer.shards
from bulkinfer.cli import main

def read_for_ever(self):
    print("reading", flush=True)
    threading.Event().wait()
    yield

bulkinfer.shards.ShardPlanner.iter_shards = read_for_ever
sys.argv = ["bulkinfer", "run", sys.argv[1]]
main()
"""


def test_an_input_on_a_dead_disk_does_not_keep_a_run_from_ending(folder: JobFolder) -> None:
    make_job(folder)
    command = [sys.executable, "-c", _STUCK_INPUT, str(folder.job_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "reading\n"
        wait_until(lambda: bulkinfer("query", folder.job_path, "select 1").returncode == 0, "the run to be at work")
        run.send_signal(signal.SIGTERM)
        _, err = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 143, err


def test_the_documents_name_each_limit_with_its_default(folder: JobFolder) -> None:
    folder.write_documents(make_documents(1))
    spec = load_job(folder.write_job()).spec
    text = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    for section, names in {"engine": spec.engine, "output": spec.output}.items():
        for name in type(names).model_fields:
            if name.endswith("_s"):
                default = getattr(names, name)
                assert f"`{section}.{name}` | {default:g} s" in text, name
