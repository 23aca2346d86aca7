"""`plan` as a process: what it prints with and without a terminal, its exit codes, and beside a live run."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pytest

from bulkinfer.records import SourceFile
from bulkinfer.runner import survey
from bulkinfer.sources import open_source
from bulkinfer.store import read_holder, read_status
from tests.cli_support import LIMIT_S, call, start, wait_until
from tests.conftest import JobFolder, make_documents

KEYS = {
    "job",
    "task_fingerprint",
    "database",
    "documents",
    "unreadable",
    "expected_failures",
    "failed_rows",
    "exceeds_max_failures",
    "overlong",
    "tokens",
    "sample",
    "time",
    "seconds",
    "peak_memory_bytes",
}


@pytest.fixture
def written(folder: JobFolder) -> JobFolder:
    """A job with 100 documents, of which two fail."""
    folder.write_documents([*make_documents(100), {"id": "none", "body": None}])
    with folder.input.open("ab") as file:
        file.write(b"broken\n")
    folder.write_job()
    return folder


def test_json_is_one_object_with_the_documented_keys(written: JobFolder) -> None:
    found = call("plan", str(written.job_path), "--json")
    assert found.exit_code == 0
    assert len(found.stdout.splitlines()) == 1
    plan = json.loads(found.stdout)
    assert set(plan) == KEYS
    assert plan["documents"]["read"] == 102
    assert set(plan["tokens"]["per_prompt"]) == {"mean", "p50", "p95", "p99", "max"}
    assert sum(bucket["documents"] for bucket in plan["tokens"]["histogram"]) == 100


def test_without_a_terminal_it_is_plain_lines_of_80_columns(written: JobFolder) -> None:
    found = call("plan", str(written.job_path))
    assert found.exit_code == 0
    assert "\x1b" not in found.stdout
    lines = found.stdout.splitlines()
    assert "input       102 rows, 102 different documents" in lines
    assert "will fail   1 missing_field" in lines
    assert "            1 unreadable_row" in lines
    assert any(re.search(r"\d+-\d+ #+ +\d+$", line) for line in lines)
    assert [line for line in lines if len(line) > 80 and "database" not in line] == []
    assert found.stderr == ""


def test_on_a_terminal_of_80_columns_no_line_is_longer(written: JobFolder) -> None:
    shown, screen = pty.openpty()
    command = [sys.executable, "-m", "bulkinfer", "plan", str(written.job_path)]
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    done = subprocess.run(command, stdout=screen, stderr=screen, env=environment, timeout=LIMIT_S, check=False)
    os.close(screen)
    text = os.read(shown, 65_536).decode()
    os.close(shown)
    assert done.returncode == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert "102 rows" in plain
    assert max(len(line) for line in re.split(r"[\r\n]+", plain) if "database" not in line) <= 80


def test_a_value_of_the_job_can_be_changed_for_one_plan(written: JobFolder) -> None:
    found = call("plan", str(written.job_path), "--set", "sampling.max_tokens=3", "--json")
    assert json.loads(found.stdout)["tokens"]["output_at_most"] == 300


@pytest.mark.parametrize("arguments", [["plan"], ["plan", "nowhere.yaml"], ["plan", "job.yaml", "--bogus"]])
def test_a_wrong_command_line_is_exit_code_2(arguments: list[str]) -> None:
    found = call(*arguments)
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.strip()


def test_an_empty_input_is_exit_code_2_in_json_too(folder: JobFolder) -> None:
    folder.write_documents([])
    found = call("plan", str(folder.write_job()), "--json")
    assert found.exit_code == 2
    told = json.loads(found.stdout)
    assert (told["exit_code"], told["status"]) == (2, "failed")


def test_a_damaged_database_is_exit_code_4(written: JobFolder) -> None:
    written.run_as_written()
    content = bytearray(written.database.read_bytes())
    content[4096:12288] = os.urandom(8192)
    written.database.write_bytes(content)
    found = call("plan", str(written.job_path))
    assert found.exit_code == 4
    assert "damaged" in found.stderr


def test_a_database_that_another_program_writes_is_exit_code_75(written: JobFolder) -> None:
    written.run_as_written()
    opening = f"import duckdb, sys; connection = duckdb.connect({str(written.database)!r})"
    code = f"{opening}; print('open', flush=True); sys.stdin.read()"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == "open\n"
        found = call("plan", str(written.job_path))
    finally:
        other.stdin.close()
        other.wait(LIMIT_S)
        other.stdout.close()
    assert found.exit_code == 75
    assert f"process {other.pid} has this database open" in found.stderr


def test_a_live_run_is_asked(folder: JobFolder) -> None:
    folder.write_documents(make_documents(2_000))
    costs = {"clock": "real", "seconds_per_output_token": 0.03, "seconds_per_prompt_token": 0, "output_tokens": 16}
    folder.write_job(engine={"simulated": costs})
    run = start("run", folder.job_path, "--quiet")
    try:
        wait_for_answers(folder, run, 0)
        assert read_holder(folder.database) is not None
        found = call("plan", str(folder.job_path), "--json")
    finally:
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=LIMIT_S)
    documents = json.loads(found.stdout)["documents"]
    assert documents["read"] == 2_000
    assert 0 < documents["answered"] < 2_000
    assert documents["to_do"] == 2_000 - documents["answered"]
    assert run.returncode == 130
    with duckdb.connect(folder.database, read_only=True) as connection:
        [(num_results,)] = connection.execute("select count(*) from results").fetchall()
    assert documents["answered"] <= num_results


def test_a_live_run_is_asked_for_the_rows_of_files_that_are_done(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.input.write_text('{"id": "1", "body": "done"}\n', encoding="utf-8")
    folder.spec["input"] = {"path": "*.jsonl", "id": "id"}
    costs = {"clock": "real", "seconds_per_output_token": 0.03, "seconds_per_prompt_token": 0, "output_tokens": 16}
    folder.write_job(engine={"simulated": costs})
    assert call("run", str(folder.job_path), "--quiet").exit_code == 0
    new = "".join(json.dumps(document) + "\n" for document in make_documents(2_000))
    (folder.path / "new.jsonl").write_text(new, encoding="utf-8")
    opened: list[str] = []

    def note_and_open(file: SourceFile, *more: Any) -> Any:  # noqa: ANN401 - passed through
        opened.append(file.name)
        return open_source(file, *more)

    monkeypatch.setattr(survey, "open_source", note_and_open)
    run = start("run", folder.job_path, "--quiet")
    try:
        wait_for_answers(folder, run, 1)
        assert read_holder(folder.database) is not None
        found = call("plan", str(folder.job_path), "--json")
    finally:
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=LIMIT_S)
    assert json.loads(found.stdout)["documents"]["read"] == 2_001
    assert opened == ["new.jsonl"]


def wait_for_answers(folder: JobFolder, run: subprocess.Popen[str], num_before: int) -> None:
    """Until a run has committed some. It is not asked before: on a busy machine, asking is what slows it down."""

    def has_more() -> bool:
        assert run.poll() is None, f"the run has ended: {run.communicate()[1]}"
        status = read_status(folder.database) or {}
        return status.get("pid") == run.pid and count_answered(folder) > num_before

    wait_until(has_more, "the first commit")


def count_answered(folder: JobFolder) -> int:
    """Answers that a live run has committed."""
    found = call("query", str(folder.job_path), "select count(*) as n from results", "--format", "json")
    return int(json.loads(found.stdout)[0]["n"]) if found.exit_code == 0 else 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_at_once_without_a_traceback(folder: JobFolder, number: signal.Signals) -> None:
    folder.write_documents(make_documents(300_000))
    plan = start("plan", folder.write_job())
    wait_until(lambda: has_open(plan.pid, folder.input), "the reading to begin")
    plan.send_signal(number)
    out, err = plan.communicate(timeout=LIMIT_S)
    assert plan.returncode == (130 if number is signal.SIGINT else -signal.SIGTERM)
    assert "Traceback" not in err
    assert out == ""


def has_open(pid: int, path: Path) -> bool:
    """Whether a process has a file open."""
    with suppress(OSError):  # what was open a moment ago
        return any(link.readlink() == path for link in Path(f"/proc/{pid}/fd").iterdir())
    return False


def test_it_loads_no_engine(written: JobFolder) -> None:
    code = f"""
import sys
sys.argv = ["bulkinfer", "plan", {str(written.job_path)!r}, "--json"]
from bulkinfer.cli import main
try:
    main()
except SystemExit as end:
    print(end.code, sorted({{"vllm", "torch", "transformers"}} & set(sys.modules)))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert found.stdout.splitlines()[-1] == "0 []", found.stderr
