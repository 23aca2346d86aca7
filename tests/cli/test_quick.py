"""A run of flags alone: what it leaves, that it resumes, and what is wrong with flags."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli_support import LIMIT_S, Called, call
from tests.conftest import JobFolder, make_documents

ENGINE = ["--set", "engine.kind=simulated", "--set", "engine.simulated={clock: virtual}"]


@pytest.fixture
def place(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with documents and a model, in which commands run."""
    folder.write_documents([*make_documents(20), {"id": "none", "body": None}])
    monkeypatch.chdir(folder.path)
    return folder.path


def run(*arguments: str) -> Called:
    """Run the documents of the folder. A flag given again wins, but for --input."""
    flags = ["--prompt", "{{ body }}", "--model", "model", "--to", "out.parquet"]
    inputs = [] if "--input" in arguments else ["--input", "in.jsonl"]
    return call("run", *flags, *inputs, *ENGINE, *arguments)


def test_flags_alone_give_the_input_with_its_answers(place: Path) -> None:
    found = run("--id", "id", "--system", "Be brief.", "--max-tokens", "8")
    assert found.exit_code == 0, found.stderr
    assert found.stdout == ""
    assert "21 rows written to out.parquet: 20 answered, 1 failed" in found.stderr
    rows = pq.read_table(place / "out.parquet").to_pylist()
    assert [row["id"] for row in rows] == [row["document_id"] for row in rows]
    assert [row["status"] for row in rows] == ["answered"] * 20 + ["failed"]
    assert max(row["output_tokens"] or 0 for row in rows) <= 8


def test_the_same_command_goes_on_where_it_was(place: Path) -> None:
    first = run("--limit", "5", "--json")
    assert json.loads(first.stdout)["export"] == {"file": "out.parquet", "rows": 21, "answered": 5, "pending": 16}
    summary = json.loads(run("--json", "--quiet").stdout)
    assert (summary["documents"]["already_done"], summary["documents"]["succeeded"]) == (5, 15)
    assert summary["database"] == str(place / "out.parquet.duckdb")
    status = call("status", "out.parquet.duckdb", "--json")
    assert json.loads(status.stdout)["status"] == "completed"


def test_too_many_failures_leave_their_export(place: Path) -> None:
    found = run("--max-failures", "0")
    assert found.exit_code == 5
    assert f"bulkinfer failures {place / 'out.parquet.duckdb'}" in found.stderr
    assert pq.read_table(place / "out.parquet").num_rows == 21


def test_texts_of_the_command_line_are_taken_as_they_are(place: Path) -> None:
    assert run("--system", "cost: ${NOTHING} $${OR} {% raw %}{{ x }}{% endraw %}").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing says what to run: give a job file, or --input, --prompt, --model and --to"),
        (["--input", "in.jsonl", "--to", "o.csv"], "--prompt, --model is missing"),
        (["job.yaml", "--input", "in.jsonl", "--max-tokens", "3"], "leave out --input, --max-tokens"),
    ],
)
def test_flags_that_do_not_go_together(place: Path, arguments: list[str], message: str) -> None:
    (place / "job.yaml").write_text("name: x")
    found = call("run", *arguments)
    assert (found.exit_code, found.stdout) == (2, "")
    assert message in found.stderr


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--to", "o.docx", "or .openai.jsonl\n"),
        ("--to", "-", "keeps its database beside the output; name a file"),
        ("--input", "nowhere.jsonl", "--input 'nowhere.jsonl'"),
        ("--prompt", "{{", "--prompt"),
        ("--prompt", "{{ bod }}", "did you mean body?"),
        ("--prompt", "", "--prompt: expected text that is not empty"),
        ("--model", "nowhere/at/all", "--model: the folder"),
        ("--max-tokens", "0", "--max-tokens: expected at least 1"),
        ("--id", "nr", "--id is the field nr"),
    ],
)
def test_wrong_flags_are_told_by_their_names(place: Path, flag: str, value: str, message: str) -> None:
    before = sorted(place.iterdir())
    found = run(flag, value)
    assert (found.exit_code, found.stdout) == (2, "")
    assert message in found.stderr
    assert sorted(place.iterdir()) == before


def test_the_output_is_not_written_where_it_would_be_input(place: Path) -> None:
    """The same command again would read its own answers."""
    for target in ("out.jsonl", "out.openai.jsonl"):
        found = run("--input", "*.jsonl", "--to", target)
        assert found.exit_code == 2
        assert f"--to: --input takes in {target}: the next run would read the export as documents" in found.stderr
    assert run("--input", "*.jsonl").exit_code == 0
    assert sorted(path.name for path in place.glob("*.jsonl")) == ["in.jsonl"]


def test_the_input_is_not_written_over(place: Path) -> None:
    before = (place / "in.jsonl").read_bytes()
    found = run("--to", "in.jsonl")
    assert found.exit_code == 2
    assert "in.jsonl is a file of the input, and would be lost" in found.stderr
    assert (place / "in.jsonl").read_bytes() == before
    assert not (place / "in.jsonl.duckdb").exists(), "nothing was asked"


STOPPED = """
import os, signal, sys
from bulkinfer.export import lines
from bulkinfer.__main__ import main

lines.LineWriter.write = lambda *_: os.kill(os.getpid(), signal.SIGTERM)
sys.argv = ["bulkinfer", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("command", ["run", "export"])
def test_an_export_that_is_stopped_leaves_nothing_behind(place: Path, command: str) -> None:
    flags = ["--input", "in.jsonl", "--prompt", "{{ body }}", "--model", "model", *ENGINE]
    (place / "job").mkdir()
    job = JobFolder(place / "job")
    job.write_job()
    job.write_documents(make_documents(3))
    assert call("run", str(job.job_path)).exit_code == 0
    arguments = flags if command == "run" else [str(job.job_path)]
    called = [sys.executable, "-c", STOPPED, command, *arguments, "--to", "stopped.jsonl"]
    ended = subprocess.run(called, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 143, ended.stderr
    assert "stopped by SIGTERM" in ended.stderr
    assert [path.name for path in place.iterdir() if path.name.endswith((".tmp", ".jsonl"))] == ["in.jsonl"]
