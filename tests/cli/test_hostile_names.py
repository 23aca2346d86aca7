"""Names that are made to do harm: of files, folders, jobs, ids and fields. They are data everywhere."""

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli_support import call
from tests.conftest import JobFolder

LIMIT_S = 90.0
NAMES = {
    "quotes": "a'b\"c`d",
    "sql": "x'); drop table results; --",
    "newline": "a\nb\rc\td",
    "colours": "\x1b[31mred\x1b[39m",
    "link": "\x1b]8;;http:x\x1b\x07y",
    "clipboard": "\x1b]52;c;aGVsbG8=\x07",
    "c1": "a\x9b31mb",
    "markup": "[bold]x[link=y]z[-]",
    "emoji": "🐙",
    "right to left": "a\u202eb",
    "long": "x" * 230,
    "dash": "-rf",
    "dots": "a..b..",
    "spaces": "  a  ",
    "format": "%s{}%n{0}",
    "variables": "$x$(id)",
    "glob": "[a]*x",
    "tilde": "~root",
}
CONTROLS = {*map(chr, range(32)), *map(chr, range(0x7F, 0xA0)), "\u202e", "\u2028"} - {"\n", "\r", "\t"}


def show_on_terminal(*arguments: str, cwd: Path) -> tuple[int, str]:
    """What a command prints on a terminal, without the bold letters of its own, and its exit code."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "400"}
    command = [sys.executable, "-m", "bulkinfer", *arguments]
    with subprocess.Popen(command, cwd=cwd, env=environment, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        printed = b""
        with suppress(OSError):  # the end of a terminal
            while piece := os.read(ours, 65536):
                printed += piece
        code = process.wait(LIMIT_S)
    os.close(ours)
    return code, printed.decode().replace("\x1b[1m", "").replace("\x1b[0m", "")


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_is_data_everywhere(tmp_path: Path, name: str) -> None:
    top = tmp_path / "top"
    top.mkdir()
    (top / name).mkdir()
    folder = JobFolder(top / name)
    field = f"f {name}"
    inputs = folder.path / "in"
    inputs.mkdir()
    rows = [{"id": name, "body": "x", field: 1}, {"id": f"{name}2", field: 2}]
    folder.write_documents(rows, f"in/{name}.jsonl")
    database = f"out/{name[:180]}.duckdb"  # the files beside it need longer names
    folder.write_job(input={"path": "in"}, output={"database": database})
    job = folder.path / f"{name}.yaml"
    folder.job_path.rename(job)
    ran = call("run", "--json", "--", str(job))
    assert ran.exit_code == 0, ran
    assert json.loads(ran.stdout)["database"] == str(folder.path / database)
    for command in (["status"], ["failures"], ["query", "select * from documents"]):
        target = ["--", str(job), *command[1:]]
        found = call(command[0], *target)
        assert found.exit_code == 0, found
        assert not CONTROLS & set(found.stdout + found.stderr)
        if command[0] != "query":
            json.loads(call(command[0], "--json", *target).stdout)
    sql = "select document_id, source from documents order by row"
    queried = json.loads(call("query", "--format", "json", "--", str(folder.path / database), sql).stdout)
    source = f"in/{name}.jsonl"
    assert queried == [{"document_id": row["id"], "source": source} for row in rows]
    exported = folder.path / f"{name}.parquet"
    assert call("export", "--to", str(exported), "--", str(job)).exit_code == 0
    table = pq.read_table(exported)
    assert table.column("document_id").to_pylist() == [row["id"] for row in rows]
    assert table.column("source").to_pylist() == [source, source]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["top"]
    assert [path.name for path in top.iterdir()] == [name]


@pytest.mark.parametrize("options", [["--format", "table"], ["--format", "json"], ["--format", "csv"]], ids=" ".join)
def test_no_name_drives_a_terminal(folder: JobFolder, options: list[str]) -> None:
    folder.write_documents([{"id": name, "body": f"text {number}"} for number, name in enumerate(NAMES.values())])
    assert folder.run().exit_code == 0
    columns = ", ".join(f'document_id as "{name.replace(chr(34), chr(34) * 2)}"' for name in NAMES.values())
    code, printed = show_on_terminal(
        "query", "out.duckdb", f"select {columns} from documents", *options, cwd=folder.path
    )
    assert code == 0
    assert not CONTROLS & set(printed)
    if "json" in options:
        assert [row[NAMES["colours"]] for row in json.loads(printed)] == list(NAMES.values())


def test_failures_and_a_run_do_not_drive_a_terminal_either(folder: JobFolder) -> None:
    folder.write_documents(
        [{"id": name, "body": None if number else "x"} for number, name in enumerate(NAMES.values())]
    )
    folder.write_job(limits={"max_failures": "100%"})
    code, printed = show_on_terminal("run", "job.yaml", "--quiet", cwd=folder.path)
    assert (code, printed) == (0, "")
    code, printed = show_on_terminal("failures", "job.yaml", cwd=folder.path)
    assert code == 0
    assert not CONTROLS & set(printed)


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--\x1b[31m"],
        ["run", "job.yaml", "\x1b]52;c;aGk=\x07"],
        ["\x1b[31m"],
        ["run", "--only", "\x1b[31m", "job.yaml"],
        ["run", "\x1b[31m.yaml"],
        ["query", "job.yaml", "select \x1b[31m"],
        ["run", "job.yaml", "--set", "\x1b[31m=1"],
        ["export", "job.yaml", "--to", "\x1b[31m.docx"],
        ["run", "\udcff.yaml"],
    ],
    ids=range(9),
)
def test_a_wrong_argument_is_shown_and_not_obeyed(
    folder: JobFolder, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write_documents([{"id": "a", "body": "x"}])
    folder.run()
    monkeypatch.chdir(folder.path)
    found = call(*arguments)
    assert found.exit_code == 2
    assert found.stderr.strip()
    assert not CONTROLS & set(found.stdout + found.stderr)


@pytest.mark.parametrize(
    ("database", "said"),
    [
        ("~nosuchuser/x.duckdb", "~nosuchuser is no user with a home folder"),
        ("a?access_mode=read_only.duckdb", "expected a path without ?"),
        ("a\\b.duckdb", "expected a path without ?"),
    ],
)
def test_a_database_path_that_means_another_is_refused(folder: JobFolder, database: str, said: str) -> None:
    folder.write_documents([{"id": "a", "body": "x"}])
    before = sorted(folder.path.iterdir())
    found = call("run", str(folder.write_job(output={"database": database})), "--json")
    assert found.exit_code == 2
    assert "output.database: " in found.stderr
    assert said in json.loads(found.stdout)["error"]
    assert sorted(folder.path.iterdir()) == sorted([*before, folder.job_path])


def test_a_folder_whose_name_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"a\xffb")
    path.mkdir()
    folder = JobFolder(path)
    folder.write_documents([{"id": "a", "body": "x"}])
    found = call("run", str(folder.write_job()), "--json")
    assert found.exit_code == 2
    assert "not UTF-8" in json.loads(found.stdout)["error"]


def test_an_input_file_whose_name_is_not_utf8_is_read(folder: JobFolder) -> None:
    (folder.path / "in").mkdir()
    path = folder.path / "in" / os.fsdecode(b"a\xff.jsonl")
    path.write_text('{"id": "a", "body": "x"}')
    assert call("run", str(folder.write_job(input={"path": "in"})), "--quiet").exit_code == 0
    found = call("query", str(folder.database), "select source from documents", "--format", "json")
    assert json.loads(found.stdout) == [{"source": "in/a\\xff.jsonl"}]


def test_an_integer_beyond_64_bits_is_printed(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "x"}])
    folder.run()
    sql = "select 170141183460469231731687303715884105727::hugeint as x, [-(2::hugeint ** 70)::hugeint] as y"
    found = call("query", str(folder.database), sql, "--format", "json")
    assert json.loads(found.stdout) == [{"x": 170141183460469231731687303715884105727, "y": [-(2**70)]}]
