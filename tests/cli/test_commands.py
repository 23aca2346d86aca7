"""The command line as a process: exit codes, what stdout carries, what it says about bad input."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bulkinfer.cli import main
from tests.cli_support import LIMIT_S, bulkinfer, start, wait_until
from tests.conftest import JobFolder, make_documents


@dataclass(frozen=True)
class Called:
    """What a command did."""

    returncode: int
    stdout: str
    stderr: str


Call = Callable[..., Called]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command line in this process: the same, without the second that a new one takes."""

    def run(*arguments: str | Path) -> Called:
        monkeypatch.setattr(sys, "argv", ["bulkinfer", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return Called(int(end.value.code or 0), out, err)

    return run


@pytest.fixture
def done(folder: JobFolder) -> JobFolder:
    """A job that ran: 20 answered, 1 failed."""
    folder.write_documents([*make_documents(20), {"id": "none", "body": None}])
    folder.run()
    return folder


@pytest.fixture
def slow(folder: JobFolder) -> JobFolder:
    """A job that would take minutes: each answer takes about a second."""
    folder.write_documents(make_documents(2_000))
    simulated = {"clock": "real", "seconds_per_output_token": 0.06, "seconds_per_prompt_token": 0, "output_tokens": 16}
    folder.write_job(engine={"kind": "simulated", "simulated": simulated})
    return folder


def test_help_needs_no_heavy_import() -> None:
    code = "import sys, bulkinfer.cli; print(sorted({'duckdb','pyarrow','pydantic','vllm','torch'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert found.stdout.strip() == "[]"


def test_a_run_needs_no_vllm_in_its_own_process(folder: JobFolder) -> None:
    folder.write_documents(make_documents(3))
    folder.write_job()
    code = f"""
import sys
sys.argv = ["bulkinfer", "run", {str(folder.job_path)!r}, "--quiet"]
from bulkinfer.cli import main
try:
    main()
except SystemExit as end:
    print(end.code, sorted({{"vllm", "torch"}} & set(sys.modules)))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert found.stdout.strip() == "0 []", found.stderr


COMMANDS = [
    "init",
    "run",
    "plan",
    "status",
    "failures",
    "query",
    "export",
    "report",
    "sweep",
    "repair",
    "schema",
    "doctor",
]


def test_every_command_is_known_here() -> None:
    shown = re.findall(r"^│ (\w+) ", bulkinfer("--help").stdout, re.MULTILINE)
    assert shown == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_an_example(call: Call, command: str) -> None:
    found = call(command, "--help")
    assert found.returncode == 0
    assert f"Example: bulkinfer {command}" in found.stdout
    assert found.stderr == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "jobs/summarize.yaml", "--limit", "0"],
        ["run", "jobs/summarize.yaml", "--bogus"],
        ["run"],
        ["nonsense"],
        ["run", "nowhere.yaml", "--only", "odd"],
        ["run", "nowhere.yaml", "--max-failures", "many"],
        ["run", "nowhere.yaml", "--set", "novalue"],
        ["query", "nowhere.yaml", "select 1", "--format", "xml"],
    ],
)
def test_a_wrong_command_line_is_exit_code_2_without_a_traceback(call: Call, arguments: list[str]) -> None:
    found = call(*arguments)
    assert found.returncode == 2
    assert found.stderr.strip()
    assert "Traceback" not in found.stderr
    assert found.stdout == ""


def test_run_json_is_one_object_with_the_keys_of_the_contract(folder: JobFolder) -> None:
    folder.write_documents(make_documents(10))
    found = bulkinfer("run", folder.write_job(), "--json")
    assert found.returncode == 0, found.stderr
    assert len(found.stdout.splitlines()) == 1
    summary = json.loads(found.stdout)
    assert set(summary) >= {
        "job",
        "run_id",
        "task_fingerprint",
        "status",
        "exit_code",
        "documents",
        "tokens",
        "seconds",
        "throughput",
        "latency_s",
        "engine",
        "peak_memory_bytes",
    }
    assert set(summary["documents"]) >= {
        "read",
        "distinct",
        "duplicates",
        "already_done",
        "succeeded",
        "failed",
        "failed_by_code",
    }
    assert set(summary["tokens"]) == {"prompt", "cached", "output"}
    assert set(summary["seconds"]) == {"total", "engine_start", "generate"}
    assert set(summary["throughput"]) == {"documents_per_s", "prompt_tokens_per_s", "output_tokens_per_s"}
    assert set(summary["latency_s"]) == {"queue", "first_token", "total"}
    assert set(summary["latency_s"]["total"]) == {"p50", "p95", "p99"}
    assert set(summary["engine"]) >= {
        "max_concurrency",
        "kv_cache_usage_peak",
        "preemptions",
        "prefix_cache_hit_rate",
        "restarts",
    }
    assert set(summary["peak_memory_bytes"]) == {"runner", "engine"}
    assert (summary["status"], summary["exit_code"], summary["documents"]["succeeded"]) == ("completed", 0, 10)
    assert summary["peak_memory_bytes"]["runner"] > 20_000_000
    assert "\x1b" not in found.stderr


def test_run_json_reports_errors_as_the_one_object_too(folder: JobFolder) -> None:
    found = bulkinfer("run", folder.write_job(), "--json")
    assert found.returncode == 2
    summary = json.loads(found.stdout)
    assert (summary["status"], summary["exit_code"]) == ("failed", 2)
    assert "in.jsonl" in summary["error"]


def test_quiet_says_nothing(folder: JobFolder) -> None:
    folder.write_documents(make_documents(3))
    found = bulkinfer("run", folder.write_job(), "--quiet")
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_too_many_failures_is_exit_code_5(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": ""}, {"id": "b", "body": "b"}])
    assert bulkinfer("run", folder.write_job(limits={"max_failures": 0}), "--quiet").returncode == 5
    assert bulkinfer("run", folder.job_path, "--quiet", "--max-failures", "50%").returncode == 0


def test_an_engine_that_does_not_start_is_exit_code_3(folder: JobFolder) -> None:
    folder.write_documents(make_documents(3))
    simulated = {"in_child": True, "faults": [{"match": "document", "kind": "die", "times": None}]}
    found = bulkinfer("run", folder.write_job(engine={"simulated": simulated, "max_restarts": 0}))
    assert found.returncode == 3
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda path: path.write_text("this is no database, but a text that is long enough to look at"), "out.duckdb"),
        (lambda path: duckdb.connect(str(path)).execute("create table t(a int)").close(), "not bulkinfer's"),
        (lambda path: path.mkdir(), "out.duckdb"),
    ],
)
def test_what_is_no_database_of_ours_is_exit_code_4_and_left_alone(
    folder: JobFolder, make: Callable[[Path], None], expected: str
) -> None:
    folder.write_documents(make_documents(3))
    make(folder.database)
    before = folder.database.read_bytes() if folder.database.is_file() else b""
    found = bulkinfer("run", folder.write_job(), "--json")
    assert found.returncode == 4
    assert expected in found.stderr
    assert "Traceback" not in found.stderr
    assert json.loads(found.stdout)["exit_code"] == 4
    assert (folder.database.read_bytes() if folder.database.is_file() else b"") == before


@pytest.mark.parametrize("database", ["/proc/out.duckdb", "/sys/out.duckdb", "a/b/out.duckdb", "in.jsonl/out.duckdb"])
def test_a_folder_that_is_missing_or_read_only_is_exit_code_4(call: Call, folder: JobFolder, database: str) -> None:
    folder.write_documents(make_documents(3))
    found = call("run", folder.write_job(output={"database": database}))
    assert found.returncode == 4
    assert database.split("/")[-2] in found.stderr
    assert "Traceback" not in found.stderr


def test_the_last_folder_of_the_database_is_made(folder: JobFolder) -> None:
    folder.write_documents(make_documents(3))
    assert bulkinfer("run", folder.write_job(output={"database": "new/out.duckdb"})).returncode == 0
    assert (folder.path / "new/out.duckdb").exists()


def test_a_run_can_be_asked_while_it_writes(slow: JobFolder) -> None:
    lines = slow.input.read_bytes().splitlines()
    slow.input.write_bytes(b"\n".join([b"broken", *lines]) + b"\n")
    run = start("run", slow.job_path, "--quiet")
    try:
        count = "select (select count(*) from answers)"
        wait_until(
            lambda: bulkinfer("query", slow.job_path, count, "--format", "csv").stdout.split()[-1:] not in ([], ["0"]),
            "answers on disk",
        )
        status = json.loads(bulkinfer("status", slow.database, "--json").stdout)
        assert (status["status"], status["pid"], status["documents"]["failed"]) == ("running", run.pid, 1)
        failed = json.loads(bulkinfer("failures", slow.job_path, "--json").stdout)
        assert failed["counts"] == {"unreadable_row": 1}
        target = slow.path / "answers.jsonl"
        exported = bulkinfer("export", slow.job_path, "--to", target)
        assert exported.returncode == 0, exported.stderr
        found = [json.loads(line)["status"] for line in target.read_text().splitlines()]
        assert found[0] == "failed"
        assert "answered" in found
        refused = bulkinfer("query", slow.job_path, "delete from results")
        assert (refused.returncode, "DELETE" in refused.stderr) == (2, True)
        run.kill()  # its socket stays behind
        run.communicate(timeout=LIMIT_S)
        assert int(bulkinfer("query", slow.job_path, count, "--format", "csv").stdout.split()[-1]) > 0
        assert "ended without a word" in bulkinfer("status", slow.job_path).stdout
    finally:
        run.kill()


def test_a_second_run_is_exit_code_75_and_names_the_first(slow: JobFolder) -> None:
    first = start("run", slow.job_path, "--quiet")
    try:
        wait_until(lambda: "running" in bulkinfer("status", slow.job_path).stdout, "the run to show in the status")
        second = bulkinfer("run", slow.job_path, "--json")
        assert second.returncode == 75
        assert str(first.pid) in second.stderr
        assert json.loads(second.stdout)["status"] == "locked"
        status = json.loads(bulkinfer("status", slow.job_path, "--json").stdout)
        assert (status["status"], status["pid"]) == ("running", first.pid)
    finally:
        first.terminate()
        first.communicate(timeout=LIMIT_S)


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_drains_commits_and_the_next_run_resumes(
    slow: JobFolder, number: signal.Signals, expected: int
) -> None:
    run = start("run", slow.job_path, "--json")
    wait_until(lambda: '"succeeded": 0' not in status_text(slow), "the first answers")
    run.send_signal(number)
    stdout, stderr = run.communicate(timeout=LIMIT_S)
    assert run.returncode == expected, stderr
    summary = json.loads(stdout)
    assert (summary["status"], summary["exit_code"]) == ("interrupted", expected)
    answered = summary["documents"]["succeeded"]
    assert answered > 0
    rows = json.loads(bulkinfer("query", slow.job_path, "select count(*) n from results", "--format", "json").stdout)
    assert rows == [{"n": answered}]
    slow.spec["engine"]["simulated"] = {"clock": "virtual"}
    report = slow.run()
    documents = report.summary["documents"]
    assert isinstance(documents, dict)
    assert (documents["already_done"], documents["succeeded"]) == (answered, 2_000 - answered)


def status_text(folder: JobFolder) -> str:
    path = Path(f"{folder.database}.status.json")
    status = json.loads(path.read_text()) if path.exists() else {"documents": {"succeeded": 0}}
    return json.dumps(status.get("documents", {"succeeded": 0}))


def test_status_failures_query_and_export_after_a_run(done: JobFolder, tmp_path: Path) -> None:
    status = json.loads(bulkinfer("status", done.job_path, "--json").stdout)
    assert (status["status"], status["runs"][0]["num_answered"]) == ("completed", 20)
    failures = json.loads(bulkinfer("failures", done.database, "--json").stdout)
    assert failures["counts"] == {"missing_field": 1}
    assert [(failure["document_id"], failure["row"]) for failure in failures["failures"]] == [("none", 21)]
    assert "missing_field" in bulkinfer("failures", done.job_path).stdout
    rows = bulkinfer("query", done.database, "select document_id from answers order by row limit 2", "--format", "csv")
    assert list(csv.reader(rows.stdout.splitlines())) == [["document_id"], ["d0"], ["d1"]]
    target = tmp_path / "answers; it's.parquet"
    assert bulkinfer("export", done.job_path, "--to", target).returncode == 0
    exported = pq.read_table(target)
    assert exported.column("document_id").to_pylist() == [*(f"d{number}" for number in range(20)), "none"]


@pytest.mark.parametrize(
    "sql",
    [
        "delete from results",
        "select 1; drop table results",
        "copy results to 'x.csv'",
        "select * from read_csv('/etc/passwd')",
        "select * from '/etc/passwd'",
        "install httpfs",
        "attach 'x.duckdb'",
        "selec 1",
        "",
    ],
)
def test_query_only_reads_and_only_the_database(call: Call, done: JobFolder, sql: str) -> None:
    before = done.database.read_bytes()
    found = call("query", done.database, sql)
    assert found.returncode == 2, found.stderr
    assert "Traceback" not in found.stderr
    assert "root:" not in found.stdout
    assert done.database.read_bytes() == before


def test_failures_are_told_by_code_or_row_by_row(call: Call, folder: JobFolder) -> None:
    broken = [{"id": f"none{number}", "body": None} for number in range(7)]
    folder.write_documents([*make_documents(20), *broken, {"id": "x", "body": " "}, broken[0]])
    folder.run()
    found = json.loads(call("failures", folder.job_path, "--json").stdout)
    assert found["counts"] == {"missing_field": 8, "empty_prompt": 1}
    group = found["groups"][0]
    assert (group["code"], group["rows"], group["documents"], group["retryable"]) == ("missing_field", 8, 1, 0)
    assert group["examples"] == ["none0", "none1", "none2", "none3", "none4"]
    assert len(found["failures"]) == 9
    chosen = call("failures", folder.job_path, "--code", "empty_prompt")
    assert [line.split("\t")[:3] for line in chosen.stdout.splitlines()[1:]] == [["x", "in.jsonl:28", "empty_prompt"]]
    assert chosen.stderr.startswith("9 failed: 8 missing_field, 1 empty_prompt")
    grouped = call("failures", folder.job_path).stdout.splitlines()
    assert [line.split("\t")[:2] for line in grouped[1:]] == [["missing_field", "8"], ["empty_prompt", "1"]]
    assert len(call("failures", folder.job_path, "--all").stdout.splitlines()) == 10
    assert [
        f["row"]
        for f in json.loads(call("failures", folder.job_path, "--json", "--code", "empty_prompt").stdout)["failures"]
    ] == [28]


def test_hostile_ids_cannot_drive_the_terminal(folder: JobFolder) -> None:
    folder.write_documents([{"id": "[red]\x1b[2Jx[/red]", "body": ""}, *make_documents(2)])
    folder.run()
    found = bulkinfer("failures", folder.job_path)
    assert "\x1b" not in found.stdout
    assert "[red]\\x1b[2Jx[/red]" in found.stdout


def test_schema_prints_the_committed_schema() -> None:
    found = bulkinfer("schema")
    committed = Path(__file__).parents[2] / "docs/job.schema.json"
    assert found.stdout == committed.read_text(encoding="utf-8"), "renew it: make schema"


BAD_JOBS: dict[str, tuple[str | bytes | None, str]] = {
    "missing": (None, "does not exist"),
    "empty": ("", "empty"),
    "no yaml": ("name: [", "job.yaml:"),
    "a list": ("- a\n- b\n", "expected"),
    "duplicate key": ("name: a\nname: b\n", "name"),
    "not utf-8": (b"name: \xff\xfe", "UTF-8"),
}


@pytest.mark.parametrize(("content", "expected"), BAD_JOBS.values(), ids=BAD_JOBS)
def test_a_bad_job_file_is_exit_code_2_and_said(
    call: Call, tmp_path: Path, content: str | bytes | None, expected: str
) -> None:
    path = tmp_path / "job.yaml"
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    found = call("run", path)
    assert found.returncode == 2
    assert expected in found.stderr
    assert "Traceback" not in found.stderr


BAD_SECTIONS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown key": ({"limits": {"max_concurency": 3}}, ["max_concurency", "max_concurrency"]),
    "wrong type": ({"limits": {"max_concurrency": "three"}}, ["limits.max_concurrency", "whole number"]),
    "out of bounds": ({"limits": {"max_concurrency": 0}}, ["limits.max_concurrency"]),
    "missing key": ({"sampling": {"max_tokens": None}}, ["sampling.max_tokens"]),
    "template": ({"prompt": {"user": "{{ body"}}, ["prompt.user"]),
    "field": ({"prompt": {"user": "{{ boddy }}"}}, ["boddy", "body"]),
    "variable": ({"output": {"database": "${NOT_SET_ANYWHERE}/x.duckdb"}}, ["NOT_SET_ANYWHERE"]),
    "input missing": ({"input": {"path": "nowhere/*.parquet"}}, ["nowhere"]),
    "model missing": ({"model": {"path": "./nowhere"}}, ["nowhere"]),
    "not a model": ({"model": {"path": "."}}, ["config.json"]),
    "replicas": ({"engine": {"replicas": "many"}}, ["engine.replicas", "1 to 1024, or auto"]),
    "more replicas than cores": (
        {"engine": {"kind": "vllm", "replicas": 1_000, "simulated": {}}},
        ["engine.replicas: expected at most", "one for each core", "found 1000"],
    ),
    "engine argument": ({"engine": {"simulated": {"seconds_per_token": 1}}}, ["seconds_per_token"]),
}


@pytest.mark.parametrize(("sections", "expected"), BAD_SECTIONS.values(), ids=BAD_SECTIONS)
def test_a_job_that_cannot_run_is_exit_code_2_and_said(
    call: Call, folder: JobFolder, sections: dict[str, Any], expected: list[str]
) -> None:
    folder.write_documents(make_documents(3))
    found = call("run", folder.write_job(**sections))
    assert found.returncode == 2, found.stderr
    assert "Traceback" not in found.stderr
    for part in expected:
        assert part in found.stderr
    assert not folder.database.exists()


def write_truncated_parquet(path: Path) -> None:
    pq.write_table(pa.table({"id": ["a"] * 1000, "body": ["text"] * 1000}), path)
    path.write_bytes(path.read_bytes()[:-100])


BAD_INPUTS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "zero rows": ("in.jsonl", lambda path: path.write_bytes(b"")),
    "zero rows of parquet": ("in.parquet", lambda path: pq.write_table(pa.table({"id": [], "body": []}), path)),
    "not parquet": ("in.parquet", lambda path: path.write_bytes(b"not parquet at all, though long enough")),
    "truncated parquet": ("in.parquet", write_truncated_parquet),
    "empty folder": ("folder", lambda path: path.mkdir()),
    "not gzip": ("in.jsonl.gz", lambda path: path.write_bytes(b"not gzip")),
    "not zstd": ("in.jsonl.zst", lambda path: path.write_bytes(b"not zstd")),
    "unknown ending": ("in.docx", lambda path: path.write_bytes(b"text")),
    "a fifo": ("in.jsonl", os.mkfifo),
}


@pytest.mark.parametrize(("name", "make"), BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_an_input_that_cannot_be_read_is_exit_code_2_and_said(
    call: Call, folder: JobFolder, name: str, make: Callable[[Path], object]
) -> None:
    make(folder.path / name)
    found = call("run", folder.write_job(input={"path": name, "id": None}))
    assert found.returncode == 2, found.stderr
    assert name in found.stderr
    assert "Traceback" not in found.stderr


def test_set_changes_the_job_and_environment_variables_are_filled_in(folder: JobFolder) -> None:
    folder.write_documents(make_documents(5))
    folder.write_job(output={"database": "${OUT_NAME}.duckdb"})
    found = bulkinfer(
        "run", folder.job_path, "--json", "--set", "limits.max_concurrency=2", "--set", "name=other", OUT_NAME="filled"
    )
    summary = json.loads(found.stdout)
    assert (summary["job"], summary["engine"]["max_concurrency"]) == ("other", 2)
    assert (folder.path / "filled.duckdb").exists()


def test_an_empty_environment_is_enough(folder: JobFolder) -> None:
    folder.write_documents(make_documents(3))
    command = [sys.executable, "-m", "bulkinfer", "run", str(folder.write_job())]
    found = subprocess.run(command, env={}, cwd="/", capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert found.returncode == 0, found.stderr


def test_a_reader_that_has_enough_is_no_error(done: JobFolder) -> None:
    sql = "select * from range(200000)"
    command = (
        f"{sys.executable} -m bulkinfer query {done.database} '{sql}' --format csv | head -n 1; echo ${{PIPESTATUS[0]}}"
    )
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert found.stdout.split() == ["range", "0"]
    assert found.stderr == ""


def test_the_version_is_printed() -> None:
    assert re.fullmatch(r"bulkinfer \d+\.\d+\.\d+\n", bulkinfer("--version").stdout)


def test_doctor_says_what_is_wrong(folder: JobFolder) -> None:
    folder.write_job(model={"path": "./nowhere"})
    found = bulkinfer("doctor", folder.job_path, "--json")
    assert found.returncode == 2
    checks = {check["name"]: check for check in json.loads(found.stdout)["checks"]}
    assert set(checks) == {"python", "vllm", "device", "cores", "memory", "prompt", "model", "input", "store"}
    assert not checks["model"]["is_ok"]
    assert (checks["input"]["is_ok"], "in.jsonl" in checks["input"]["found"]) == (False, True)
    assert checks["store"]["is_ok"]
    assert checks["device"]["is_ok"]


def test_a_run_at_low_priority_has_a_nice_engine_and_less_than_all_where_some_is_reserved(
    folder: JobFolder, call: Call
) -> None:
    folder.write_documents(make_documents(30))
    simulated = {"in_child": True, "seconds_per_output_token": 0, "seconds_per_prompt_token": 0}
    folder.write_job(engine={"kind": "simulated", "simulated": simulated}, limits={"max_concurrency": 8})
    found = call("run", folder.job_path, "--json", "--quiet", "--priority", "low", "--set", "limits.reserve=25%")
    assert found.returncode == 0, found.stderr
    engine = json.loads(found.stdout)["engine"]
    assert (engine["max_concurrency"], engine["peak_active"]) == (6, 6)
    assert engine["settings"]["nice"] == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)
    refused = call("run", folder.job_path, "--priority", "lowest")
    assert refused.returncode == 2
    assert "'lowest' is not one of 'normal', 'low'" in refused.stderr
    none_left = call("run", folder.job_path, "--set", "limits.reserve=100%")
    assert none_left.returncode == 2
    assert 'limits.reserve: expected a share such as "25%" (0% to less than 100%)' in none_left.stderr
