"""Files that a database knows: what of them is not read again, and that nobody can tell from what a run does."""

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bulkinfer import shards
from bulkinfer.records import Document, JsonValue, Only, SourceFile, UnreadableRow
from bulkinfer.runner import RunOptions, RunReport, loop, unsettled
from bulkinfer.sources import Source, open_source
from bulkinfer.store import Reader, runs
from tests.conftest import JobFolder, make_documents

ALWAYS_SETTLED = -(10**18)
NEVER_SETTLED = 10**18


class Reading:
    """Sources as the planner opens them; it counts the rows that they yield, by file."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count whatever a run opens from now on. A file that is opened twice counts as it was read the second time."""
        for module in (shards, unsettled):
            monkeypatch.setattr(module, "open_source", self.open)

    def open(self, file: SourceFile, fields: frozenset[str], id_field: str | None) -> Source:
        """Open a source, counted."""
        source = open_source(file, fields, id_field)
        self.rows[file.name] = 0
        read = source.iter_rows

        def iter_rows(wanted: Iterator[int] | None = None) -> Iterator[Document | UnreadableRow]:
            for row in read(wanted):
                self.rows[file.name] += 1
                yield row

        source.iter_rows = iter_rows  # type: ignore[method-assign]  # an instance of its own
        return source


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Reading:
    """What is read from now on, in runs to which every file is settled: a test writes its files just before."""
    counted = Reading()
    counted.watch(monkeypatch)
    settle(monkeypatch, ALWAYS_SETTLED)
    return counted


def settle(monkeypatch: pytest.MonkeyPatch, age_ns: int) -> None:
    """From now on, files are known by their times when they were so old at their scan."""
    monkeypatch.setattr(runs, "TICK_NS", age_ns)
    monkeypatch.setattr(runs, "COARSE_TICK_NS", age_ns)


def run(
    folder: JobFolder, reading: Reading, options: RunOptions | None = None, **sections: dict[str, Any]
) -> RunReport:
    """Run and count what this run reads."""
    reading.rows.clear()
    return folder.run(options, **sections)


def documents_of(report: RunReport) -> dict[str, JsonValue]:
    """The counts of a run."""
    found = report.summary["documents"]
    assert isinstance(found, dict)
    return found


def answers(folder: JobFolder) -> list[tuple[object, ...]]:
    """Each row with its answer."""
    with Reader.open(folder.database) as reader:
        return list(reader.query("select document_id, row, output from answers order by source, row").rows)


def with_faults(*faults: tuple[str, str]) -> dict[str, Any]:
    """The `engine` section of an engine that costs nothing and fails on documents that hold a text."""
    free = {"clock": "virtual", "seconds_per_prompt_token": 0, "seconds_per_output_token": 0}
    return {"simulated": {**free, "faults": [{"match": match, "kind": kind} for match, kind in faults]}}


def write_parquet(path: Path, documents: Sequence[dict[str, Any]], row_group_size: int = 100) -> None:
    """A Parquet file of many small row groups."""
    pq.write_table(pa.Table.from_pylist(list(documents)), path, row_group_size=row_group_size)


def test_a_file_that_is_all_answered_is_not_opened(folder: JobFolder, reading: Reading) -> None:
    folder.write_documents(make_documents(50))
    assert run(folder, reading).exit_code == 0
    assert reading.rows == {"in.jsonl": 50}
    again = run(folder, reading)
    assert reading.rows == {}
    assert documents_of(again) == documents_of(again) | {"read": 50, "distinct": 50, "already_done": 50, "succeeded": 0}
    assert len(answers(folder)) == 50


def test_of_a_folder_only_the_new_file_is_read(folder: JobFolder, reading: Reading) -> None:
    (folder.path / "many").mkdir()
    for number in range(30):
        folder.write_documents([{"id": f"{number}", "body": f"old {number}"}], f"many/{number:03}.jsonl")
    run(folder, reading, input={"path": "many"})
    folder.write_documents([{"id": "new", "body": "new"}], "many/999.jsonl")
    report = run(folder, reading, input={"path": "many"})
    assert reading.rows == {"many/999.jsonl": 1}
    assert documents_of(report) == documents_of(report) | {"read": 31, "already_done": 30, "succeeded": 1}
    assert len(answers(folder)) == 31


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_of_a_file_with_few_rows_to_do_only_those_are_read(folder: JobFolder, reading: Reading, ending: str) -> None:
    documents = make_documents(1_000)
    for number in (3, 4, 750):
        documents[number]["body"] = f"BAD {number}"
    if ending == "jsonl":
        folder.write_documents(documents)
    else:
        write_parquet(folder.path / "in.parquet", documents)
    sections: dict[str, Any] = {"input": {"path": f"in.{ending}"}}
    # engine_error: asked again by the next run
    first = run(folder, reading, **sections, engine=with_faults(("BAD", "error")))
    assert documents_of(first)["failed_by_code"] == {"engine_error": 3}
    second = run(folder, reading, **sections, engine=with_faults())
    assert reading.rows == {f"in.{ending}": 3}
    assert documents_of(second) == documents_of(second) | {"read": 1_000, "already_done": 997, "succeeded": 3}
    assert [row for _, row, _ in answers(folder)] == list(range(1, 1_001))


def test_a_damaged_row_group_without_anything_to_do_does_not_matter(folder: JobFolder, reading: Reading) -> None:
    """The proof that it is not read: it cannot be."""
    documents = make_documents(300)
    documents[250]["body"] = "BAD"
    path = folder.path / "in.parquet"
    write_parquet(path, documents)
    sections: dict[str, Any] = {"input": {"path": "in.parquet"}}
    run(folder, reading, **sections, engine=with_faults(("BAD", "error")))
    times = path.stat()
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    with path.open("r+b") as file:
        file.seek(column.dictionary_page_offset or column.data_page_offset)
        file.write(b"\xff" * 40)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with duckdb.connect(folder.database) as connection:  # nobody can set a ctime back
        connection.execute("update scans set ctime_ns = $ctime", {"ctime": path.stat().st_ctime_ns})
    report = run(folder, reading, **sections, engine=with_faults())
    assert (report.exit_code, documents_of(report)["succeeded"]) == (0, 1)


@pytest.mark.parametrize("change", ["append", "edit", "replace", "truncate", "touch"])
def test_a_file_that_changed_is_read_anew(folder: JobFolder, reading: Reading, change: str) -> None:
    documents = make_documents(20)
    path = folder.write_documents(documents)
    run(folder, reading)
    match change:
        case "append":
            with path.open("ab") as file:
                file.write(orjson.dumps({"id": "new", "body": "new"}) + b"\n")
        case "edit":
            path.write_bytes(path.read_bytes().replace(b"document 7 ", b"document X "))
        case "replace":
            shutil.copyfile(path, folder.path / "other")
            (folder.path / "other").replace(path)
        case "truncate":
            os.truncate(path, path.stat().st_size - len(orjson.dumps(documents[-1])) - 1)
        case "touch":
            os.utime(path, ns=(0, 0))
    report = run(folder, reading)
    num_rows = {"append": 21, "truncate": 19}.get(change, 20)
    assert reading.rows == {"in.jsonl": num_rows}
    assert documents_of(report)["succeeded"] == (change in {"append", "edit"})
    assert len(answers(folder)) == num_rows


def test_another_id_or_another_field_reads_anew(folder: JobFolder, reading: Reading) -> None:
    folder.write_documents([{**document, "name": f"n{document['id']}"} for document in make_documents(5)])
    run(folder, reading)
    run(folder, reading, input={"id": "name"})
    assert reading.rows == {"in.jsonl": 5}
    assert [document_id for document_id, *_ in answers(folder)] == [f"nd{number}" for number in range(5)]
    run(folder, reading, input={"id": "name"}, prompt={"user": "{{ body }} {{ name }}"})
    assert reading.rows == {"in.jsonl": 5}


def test_a_new_task_over_the_same_fields_reads_all(folder: JobFolder, reading: Reading) -> None:
    folder.write_documents(make_documents(5))
    run(folder, reading)
    report = run(folder, reading, prompt={"user": "Say {{ body }}"})
    assert (reading.rows, documents_of(report)["succeeded"]) == ({"in.jsonl": 5}, 5)


def test_two_jobs_in_one_database_know_their_own_files(folder: JobFolder, reading: Reading) -> None:
    folder.write_documents(make_documents(5))
    run(folder, reading)
    folder.spec["name"] = "other"
    report = run(folder, reading)
    assert (reading.rows, documents_of(report)["already_done"]) == ({"in.jsonl": 5}, 5)
    run(folder, reading)
    assert reading.rows == {}


def test_a_database_without_the_later_tables_gets_them_and_learns(folder: JobFolder, reading: Reading) -> None:
    folder.write_documents(make_documents(5))
    run(folder, reading)
    with duckdb.connect(folder.database) as connection:
        connection.execute("drop table scan_ends")
    report = run(folder, reading)
    assert (reading.rows, documents_of(report)["already_done"]) == ({"in.jsonl": 0}, 5)
    run(folder, reading)
    assert reading.rows == {}


def test_a_file_changed_just_before_its_scan_is_not_trusted(
    folder: JobFolder, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change within the same tick of the clock, to the same size, leaves the times as they were."""
    folder.write_documents(make_documents(5))
    settle(monkeypatch, NEVER_SETTLED)
    for _ in range(3):
        run(folder, reading)
        assert reading.rows == {"in.jsonl": 5}
    settle(monkeypatch, 0)  # the scan was made after the change, so it counts now
    run(folder, reading)
    assert reading.rows == {}


@pytest.mark.parametrize(
    ("mtime_ns", "began_after_ns", "is_read"),
    [
        (1_700_000_000_123_456_789, 40_000_000, True),
        (1_700_000_000_123_456_789, 60_000_000, False),
        (1_700_000_000_000_000_000, 60_000_000, True),  # no fraction of a second: a coarse clock
        (1_700_000_000_000_000_000, 2_100_000_000, False),
    ],
)
def test_how_old_a_file_must_be_depends_on_its_clock(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch, mtime_ns: int, began_after_ns: int, is_read: bool
) -> None:
    counted = Reading()
    counted.watch(monkeypatch)
    path = folder.write_documents(make_documents(5))
    os.utime(path, ns=(mtime_ns, mtime_ns))
    folder.run()
    changed_ns = path.stat().st_ctime_ns
    with duckdb.connect(folder.database) as connection:
        connection.execute(
            "update scans set created_at = make_timestamptz($us)", {"us": (changed_ns + began_after_ns) // 1000}
        )
    run(folder, counted)
    assert counted.rows == ({"in.jsonl": 5} if is_read else {})


LIMITS = {"max_failures": 1_000_000}


def write_mixed(folder: JobFolder) -> None:
    """Two files with equal rows, blank and unreadable lines, and documents that fail in several ways."""
    lines: list[bytes] = []
    for number in range(120):
        body = f"document {number % 80}"
        if number % 11 == 0:
            body = f"BAD {number}"
        if number % 13 == 0:
            body = f"LONG {number}"
        lines.append(orjson.dumps({"id": f"d{number}", "body": body}))
        if number % 17 == 0:
            lines += [b"", b"[broken", b"  "]
        if number % 19 == 0:
            lines.append(orjson.dumps({"id": f"e{number}", "body": None}))
    (folder.path / "many").mkdir()
    (folder.path / "many" / "a.jsonl").write_bytes(b"\n".join(lines[:100]) + b"\n")
    (folder.path / "many" / "b.jsonl").write_bytes(b"\n".join(lines[100:]))


@pytest.mark.parametrize("only", list(Only))
@pytest.mark.parametrize("limit", [None, 1, 7])
@pytest.mark.parametrize("first_limit", [None, 40])
def test_a_run_counts_and_answers_the_same_as_one_that_reads_everything(
    folder: JobFolder,
    reading: Reading,
    monkeypatch: pytest.MonkeyPatch,
    only: Only,
    limit: int | None,
    first_limit: int | None,
) -> None:
    """The first run stops in the middle of a file where it has a limit; the second takes what it is told to."""
    write_mixed(folder)
    sections: dict[str, Any] = {"input": {"path": "many"}, "limits": LIMITS}
    run(
        folder,
        reading,
        RunOptions(limit=first_limit),
        **sections,
        engine=with_faults(("BAD", "error"), ("LONG", "truncate")),
    )
    before = folder.path / "before.duckdb"
    shutil.copyfile(folder.database, before)

    def run_again(settle_ns: int) -> tuple[dict[str, JsonValue], list[tuple[object, ...]], int]:
        settle(monkeypatch, settle_ns)
        shutil.copyfile(before, folder.database)
        folder.database.with_name("out.duckdb.status.json").unlink()
        report = run(folder, reading, RunOptions(only=only, limit=limit), **sections, engine=with_faults())
        return documents_of(report), answers(folder), sum(reading.rows.values())

    with monkeypatch.context() as patch:
        patch.setattr(loop, "check_unsettled_beside", lambda *_: {})  # or the planner knew the rows of each file
        all_counts, all_answers, num_all = run_again(NEVER_SETTLED)
    counts, found, num_read = run_again(ALWAYS_SETTLED)
    assert (counts, found) == (all_counts, all_answers)
    assert num_read <= num_all
    assert num_read < num_all or (only is Only.NEW and first_limit is not None and limit == 1), "nothing was passed"
