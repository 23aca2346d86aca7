"""Metrics and logs of whole runs, from outside."""

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from bulkinfer.records import FailureCode
from bulkinfer.store import Reader, read_status
from tests.cli_support import call
from tests.conftest import JobFolder, make_documents
from tests.metrics_support import read_samples

FAULTS = [
    {"match": "document 3 ", "kind": "truncate"},
    {"match": "document 4 ", "kind": "reject"},
    {"match": "document 5 ", "kind": "error", "times": 1},
]


def simulated(folder: JobFolder, **more: object) -> dict[str, Any]:
    """The `engine` section with more of the simulation."""
    return {"simulated": {**folder.spec["engine"]["simulated"], **more}}


def test_a_run_is_one_in_its_file_its_log_its_status_and_its_database(folder: JobFolder) -> None:
    folder.write_documents([*make_documents(50), {"id": "same", "body": "document 1 word "}, {"id": "none"}])
    folder.write_job(engine=simulated(folder, faults=FAULTS))
    metrics = folder.path / "job.prom"
    called = call("run", str(folder.job_path), "--json", "--log-format", "json", "--metrics-file", str(metrics))
    assert called.exit_code == 0
    summary = json.loads(called.stdout)
    lines = [json.loads(line) for line in called.stderr.splitlines()]
    samples = read_samples(metrics.read_text())

    assert {line["run_id"] for line in lines if "run_id" in line} == {summary["run_id"]}
    assert samples["bulkinfer_run_info", summary["run_id"]] == 1
    status = read_status(folder.database)
    assert status is not None
    assert status["run_id"] == summary["run_id"]
    with Reader.open(folder.database) as reader:
        rows = list(reader.query("select run_id::varchar, count(*)::int from results group by all").rows)
    assert rows == [(summary["run_id"], summary["documents"]["succeeded"])]

    documents = summary["documents"]
    assert samples["bulkinfer_documents_read_total"] == documents["read"] == 52
    assert samples["bulkinfer_documents_answered_total"] == documents["succeeded"] == 48
    assert samples["bulkinfer_documents_committed_total", "result"] == documents["succeeded"]
    assert samples["bulkinfer_documents_committed_total", "failure"] == documents["failed"]
    failed = {code.value: samples["bulkinfer_documents_failed_total", code.value] for code in FailureCode}
    assert {code: count for code, count in failed.items() if count} == documents["failed_by_code"]
    assert samples["bulkinfer_documents_rejected_total", "engine_rejected"] == 1
    assert samples["bulkinfer_documents_retried_total", "engine_error"] == 1
    for name in ("prompt", "output"):
        assert samples[f"bulkinfer_{name}_tokens_total"] == summary["tokens"][name]
    assert samples["bulkinfer_queue_time_seconds_count"] == documents["succeeded"]
    assert samples["bulkinfer_run_exit_code"] == 0
    assert samples["bulkinfer_database_size_bytes"] > 0
    for text in (called.stderr, metrics.read_text()):
        assert "word" not in text
        assert "document 1" not in text


def wait_until_busy(url: str, *, num_answered: int) -> dict[Any, float]:
    """The samples of a run once it has answered more than that, and has more in its engine."""
    for _ in range(2_000):
        with urlopen(url, timeout=10) as answer:
            samples = read_samples(answer.read().decode())
        if samples["bulkinfer_documents_answered_total"] >= num_answered and samples["bulkinfer_in_flight_documents"]:
            return samples
        threading.Event().wait(0.01)
    raise AssertionError("it does not get busy")


def test_the_port_tells_of_a_run_that_goes_on(folder: JobFolder) -> None:
    """Real time, so that there is something to see."""
    folder.write_documents(make_documents(40_000))
    folder.write_job(engine=simulated(folder, clock="real", seconds_per_output_token=0.002))
    command = [sys.executable, "-m", "bulkinfer", "run", str(folder.job_path), "--log-format", "json"]
    with subprocess.Popen([*command, "--metrics-port", "0"], stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        first = json.loads(run.stderr.readline())
        assert first["event"] == "metrics_served"
        samples = wait_until_busy(first["url"], num_answered=20)
        assert samples["bulkinfer_run_status", "running"] == 1
        assert samples["bulkinfer_in_flight_documents"] > 0

        port = first["url"].rpartition(":")[2].partition("/")[0]
        second = call("run", str(folder.job_path), "--metrics-port", port, "--json")
        assert second.exit_code == 2
        assert "Address already in use" in json.loads(second.stdout)["error"]
        run.terminate()
        rest = [json.loads(line) for line in run.stderr]
    assert run.returncode == 143
    assert [line["event"] for line in rest if line["level"] == "warning"][:1] == ["draining"]
    assert (rest[-1]["event"], rest[-1]["status"], rest[-1]["exit_code"]) == ("run_ended", "interrupted", 143)


def test_documents_in_flight_that_a_signal_gives_up_are_cancelled_once(folder: JobFolder, tmp_path: Path) -> None:
    metrics = tmp_path / "job.prom"
    folder.write_documents(make_documents(5_000))
    folder.write_job(engine=simulated(folder, clock="real", seconds_per_output_token=0.05))
    command = [sys.executable, "-m", "bulkinfer", "run", str(folder.job_path), "--log-format", "json", "--grace", "0"]
    command += ["--metrics-file", str(metrics), "--metrics-port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        wait_until_busy(json.loads(run.stderr.readline())["url"], num_answered=0)
        run.terminate()
        lines = [json.loads(line) for line in run.stderr]
    assert run.returncode == 143
    [draining] = [line for line in lines if line["event"] == "draining"]
    [cancelled] = [line for line in lines if line["event"] == "cancelled"]
    counted = read_samples(metrics.read_text())["bulkinfer_documents_cancelled_total"]
    assert 0 < cancelled["num_documents"] == counted <= draining["num_in_flight"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--metrics-port", "70000"), "metrics-port"),
        (("--metrics-port", "0", "--metrics-address", "192.0.2.1"), "cannot listen on 192.0.2.1"),
        (("--metrics-file", "/nowhere/job.prom"), "/nowhere/job.prom: cannot be written: No such file or directory"),
        (("--metrics-file", "job.txt"), "must end in .prom"),
        (("--metrics-address", "0.0.0.0"), "--metrics-address needs --metrics-port"),
        (("--log-format", "xml"), "log-format"),
    ],
)
def test_what_cannot_be_had_is_a_wrong_command_line(arguments: tuple[str, ...], reason: str, folder: JobFolder) -> None:
    folder.write_documents(make_documents(3))
    folder.write_job()
    called = call("run", str(folder.job_path), *arguments)
    assert called.exit_code == 2
    assert reason in called.stderr
    assert not folder.database.exists(), "nothing has begun"


def test_a_port_in_use_is_said_before_anything_begins(folder: JobFolder) -> None:
    folder.write_documents(make_documents(3))
    folder.write_job()
    with socket.create_server(("127.0.0.1", 0)) as other:
        called = call("run", str(folder.job_path), "--metrics-port", str(other.getsockname()[1]))
    assert (called.exit_code, called.stdout) == (2, "")
    assert "Address already in use" in called.stderr
    assert not folder.database.exists()


def test_an_error_is_a_line_of_json_too_and_stands_there_once(folder: JobFolder) -> None:
    folder.write_job(limits={"max_concurrency": 0})
    called = call("run", str(folder.job_path), "--log-format", "json", "--json")
    assert called.exit_code == 2
    [line] = [json.loads(text) for text in called.stderr.splitlines()]
    assert (line["event"], line["exit_code"]) == ("error", 2)
    assert line["message"] == json.loads(called.stdout)["error"]


def test_an_input_that_is_missing_is_in_the_metrics(folder: JobFolder) -> None:
    folder.write_job()
    metrics = folder.path / "job.prom"
    assert call("run", str(folder.job_path), "--metrics-file", str(metrics)).exit_code == 2
    samples = read_samples(metrics.read_text())
    assert (samples["bulkinfer_run_exit_code"], samples["bulkinfer_run_status", "failed"]) == (2, 1)


def test_lines_for_people_name_the_run_and_the_port(folder: JobFolder) -> None:
    folder.write_documents(make_documents(3))
    folder.write_job()
    called = call("run", str(folder.job_path), "--json", "--metrics-port", "0")
    assert f"run {json.loads(called.stdout)['run_id']}" in called.stderr
    assert "metrics at http://127.0.0.1:" in called.stderr


def test_a_file_whose_folder_is_lost_is_one_warning_and_the_run_completes(folder: JobFolder, tmp_path: Path) -> None:
    folder.write_documents(make_documents(2_000))
    folder.write_job(engine=simulated(folder, clock="real", seconds_per_output_token=0.0005))
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    command = [sys.executable, "-m", "bulkinfer", "run", str(folder.job_path), "--log-format", "json"]
    arguments = ["--metrics-file", str(mounted / "job.prom")]
    with subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        assert json.loads(run.stderr.readline())["event"] == "run_started"
        for _ in range(2_000):
            if (mounted / "job.prom").exists():
                break
            threading.Event().wait(0.01)
        (mounted / "job.prom").unlink()
        mounted.rmdir()
        lines = [json.loads(line) for line in run.stderr]
    assert run.returncode == 0
    [warning] = [line for line in lines if line["level"] == "warning"]
    assert "--metrics-file cannot be written: No such file or directory" in warning["message"]
    assert lines[-1]["event"] in {"run_ended", "warning"}
