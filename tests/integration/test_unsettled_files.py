"""Files that may have changed without a trace in their times: what they hold now is answered and listed."""

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow.parquet as pq
import pytest

from bulkinfer import shards
from bulkinfer.export import ExportOptions, export_job, parse_target
from bulkinfer.job import load_job
from bulkinfer.records import Document
from bulkinfer.runner import RunOptions, RunReport, plan_run, unsettled
from bulkinfer.runner.signals import StopFlag
from bulkinfer.store import Reader, Store, open_reader
from bulkinfer.threads import run_in_thread
from tests.conftest import JobFolder, make_documents
from tests.integration.test_known_files import (
    NEVER_SETTLED,
    Reading,
    documents_of,
    run,
    settle,
    with_faults,
    write_parquet,
)

DOCUMENTS = make_documents(20)
LINES = [orjson.dumps(document) for document in DOCUMENTS]
BLANK = b" " * 40


@dataclass(frozen=True, slots=True)
class Change:
    """Of the content of a file, to the same size; `num_rows` it has then, and of these `num_new` with a new content."""

    old: bytes
    new: bytes
    num_rows: int = 20
    num_new: int = 0


CHANGES = {
    "the first row": Change(b"document 0 ", b"document X ", num_new=1),
    "a row": Change(b"document 7 ", b"document X ", num_new=1),
    "the last row": Change(b"document 19 ", b"document XY ", num_new=1),
    "an id": Change(b'"d7"', b'"dX"'),
    "an unreadable row": Change(LINES[7], b"[" + LINES[7][1:], num_new=1),
    "no first row": Change(LINES[0], b" " * len(LINES[0]), num_rows=19),
    "no row between": Change(LINES[7], b" " * len(LINES[7]), num_rows=19),
    "no last row": Change(LINES[19], b" " * len(LINES[19]), num_rows=19),
    "a row more": Change(BLANK, orjson.dumps({"id": "new", "body": "new"}).ljust(40), num_rows=21, num_new=1),
}


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Reading:
    """What is read from now on, in runs to which no file is settled."""
    counted = Reading()
    counted.watch(monkeypatch)
    settle(monkeypatch, NEVER_SETTLED)
    return counted


def write_documents(folder: JobFolder) -> None:
    """Twenty rows, and a blank line."""
    folder.input.write_bytes(b"\n".join([*LINES, BLANK, b""]))


def change(folder: JobFolder, change: Change) -> None:
    """Change the input as if within the tick in which it was changed before: all that identifies it stays."""
    path, times = folder.input, folder.input.stat()
    text = path.read_bytes()
    assert (text.count(change.old), len(change.old)) == (1, len(change.new))
    path.write_bytes(text.replace(change.old, change.new))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with duckdb.connect(folder.database) as connection:  # nobody can set a ctime back
        connection.execute("update scans set ctime_ns = $ctime", {"ctime": path.stat().st_ctime_ns})


def select(database: Path, sql: str) -> list[tuple[object, ...]]:
    """All rows that a statement returns."""
    with Reader.open(database) as reader:
        return list(reader.query(sql).rows)


def list_rows(database: Path) -> list[tuple[object, ...]]:
    """Every row of `documents`, with its answer or what it failed with."""
    return select(
        database,
        "select d.row, d.document_id, d.document_hash, a.output, f.code, f.message from documents d "
        "left join answers a using (row) left join open_failures f using (row) order by d.row",
    )


def count_lines(database: Path) -> list[tuple[object, ...]]:
    """Of the tables that list what files hold."""
    return select(database, "select (select count(*) from scans), (select count(*) from document_rows)")


def export(folder: JobFolder, name: str) -> list[tuple[object, ...]]:
    """What an export says of each row."""
    target, job = folder.path / name, load_job(folder.job_path)
    with open_reader(job.database_path) as reader:
        export_job(reader, job, parse_target(target), ExportOptions())
    rows = [orjson.loads(line) for line in target.read_bytes().splitlines()]
    return [tuple(row[key] for key in ("row", "document_id", "status", "output", "failure_message")) for row in rows]


def count_asked(report: RunReport) -> int:
    """Documents that got their outcome in this run."""
    counts = documents_of(report)
    assert isinstance(counts["succeeded"], int)
    assert isinstance(counts["failed"], int)
    return counts["succeeded"] + counts["failed"]


@pytest.mark.parametrize("kind", list(CHANGES))
def test_a_change_that_no_time_shows_is_answered_and_listed(folder: JobFolder, reading: Reading, kind: str) -> None:
    """All is as in a database that never knew other rows; and what did not change is not asked again."""
    expected = CHANGES[kind]
    write_documents(folder)
    run(folder, reading)
    change(folder, expected)
    report = run(folder, reading)
    rows, exported = list_rows(folder.database), export(folder, "out.jsonl")
    folder.run(output={"database": "fresh.duckdb"})
    assert (rows, exported) == (list_rows(folder.path / "fresh.duckdb"), export(folder, "fresh.jsonl"))
    assert len(rows) == len(exported) == documents_of(report)["read"] == expected.num_rows
    assert count_asked(report) == expected.num_new
    all_hashes = "select document_hash from results union all select document_hash from failures"
    assert select(folder.database, f"select count(*) - count(distinct document_hash) from ({all_hashes})") == [(0,)]


def test_a_row_that_fails_now_is_among_the_failures_and_counts(folder: JobFolder, reading: Reading) -> None:
    write_documents(folder)
    sections: dict[str, Any] = {"engine": with_faults(("BAD", "truncate")), "limits": {"max_failures": 0}}
    assert run(folder, reading, **sections).exit_code == 0
    change(folder, Change(b"document 7 ", b"this is BAD"))
    report = run(folder, reading, **sections)
    assert (report.exit_code, documents_of(report)["failed_by_code"]) == (5, {"truncated": 1})
    assert select(folder.database, "select row, code from open_failures") == [(8, "truncated")]


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_file_that_was_read_in_part_is_taken_up_where_it_is_the_same(
    folder: JobFolder, reading: Reading, is_changed: bool
) -> None:
    write_documents(folder)
    run(folder, reading, RunOptions(limit=15))
    if is_changed:
        change(folder, CHANGES["a row"])
    report = run(folder, reading)
    assert count_asked(report) == 5 + is_changed
    assert [row for row, *_ in list_rows(folder.database)] == list(range(1, 21))
    assert count_lines(folder.database) == [(2, 35) if is_changed else (1, 20)]


def test_a_file_that_did_not_change_is_not_listed_again(
    folder: JobFolder, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it is read: its times may lie in the future for ever. And each time only once."""
    write_documents(folder)
    run(folder, reading)
    planning = Reading()
    monkeypatch.setattr(shards, "open_source", planning.open)
    for _ in range(3):
        report = run(folder, reading)
        assert (reading.rows, planning.rows, count_lines(folder.database)) == ({"in.jsonl": 20}, {}, [(1, 20)])
    assert documents_of(report)["already_done"] == 20
    change(folder, CHANGES["a row"])
    for _ in range(3):
        run(folder, reading)
        assert count_lines(folder.database) == [(2, 40)]


def test_a_listing_that_holds_is_used_like_one_of_a_file_with_old_times(
    folder: JobFolder, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it was compared, only what is to be asked is read a second time."""
    write_documents(folder)
    settle(monkeypatch, 0)
    run(folder, reading, engine=with_faults(("document 7 ", "error")))
    with duckdb.connect(folder.database) as connection:
        connection.execute("update scans set created_at = make_timestamptz(0)")
    report = run(folder, reading, engine=with_faults())
    assert reading.rows == {"in.jsonl": 1}
    assert (documents_of(report)["read"], documents_of(report)["succeeded"]) == (20, 1)


def test_rows_are_compared_a_window_at_a_time(
    folder: JobFolder, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsettled, "_WINDOW_ROWS", 7)
    write_documents(folder)
    run(folder, reading)
    assert (count_asked(run(folder, reading)), count_lines(folder.database)) == (0, [(1, 20)])
    change(folder, CHANGES["the last row"])
    assert (count_asked(run(folder, reading)), count_lines(folder.database)) == (1, [(2, 40)])


def test_a_comparison_that_is_stopped_says_nothing(folder: JobFolder, reading: Reading) -> None:
    """Neither that the file is the same, nor that it has fewer rows."""
    write_documents(folder)
    run(folder, reading)
    plan = plan_run(load_job(folder.job_path))
    store = Store.open(folder.database)
    try:
        answers = iter([False, False, True, True])
        assert unsettled.check_unsettled(plan, store, lambda: next(answers)) == {}
        assert list(unsettled.check_unsettled(plan, store, lambda: False).values()) == [True]
    finally:
        store.close()


def test_a_file_that_was_damaged_since_ends_as_any_damaged_file(folder: JobFolder, reading: Reading) -> None:
    path = folder.path / "in.parquet"
    write_parquet(path, make_documents(300))
    sections: dict[str, Any] = {"input": {"path": "in.parquet"}}
    run(folder, reading, **sections)
    times = path.stat()
    place = pq.ParquetFile(path).metadata.row_group(1).column(0)
    with path.open("r+b") as file:
        file.seek(place.dictionary_page_offset or place.data_page_offset)
        file.write(b"\xff" * 40)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with duckdb.connect(folder.database) as connection:
        connection.execute("update scans set ctime_ns = $ctime", {"ctime": path.stat().st_ctime_ns})
    report = run(folder, reading, **sections)
    assert (report.exit_code, documents_of(report)["read"]) == (2, 100)
    assert [row for row, *_ in list_rows(folder.database)] == list(range(1, 301)), "what was listed stays"


def test_a_signal_ends_a_run_whose_file_hangs_while_it_is_compared(
    folder: JobFolder, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_documents(folder)
    run(folder, reading)
    is_free = threading.Event()
    is_reading = threading.Event()

    class Hanging:
        def iter_rows(self) -> Iterator[Document]:
            is_reading.set()
            assert is_free.wait(60)
            return iter(())

    monkeypatch.setattr(unsettled, "open_source", lambda *_: Hanging())
    stop = StopFlag()
    plan = plan_run(load_job(folder.job_path))
    store = Store.open(folder.database)
    try:
        checked = run_in_thread(lambda: unsettled.check_unsettled_beside(plan, store, stop, 0.01), "checked")
        assert is_reading.wait(30)
        assert not checked.done()
        stop.received.append(15)
        assert checked.result(30) == {}
    finally:
        is_free.set()
        store.close()


def test_many_small_files_are_compared_each_with_its_own_rows(
    folder: JobFolder, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsettled, "_WINDOW_ROWS", 7)
    (folder.path / "many").mkdir()
    for number in range(6):
        documents = [{"id": f"{number}-{n}", "body": f"text {number} {n}"} for n in range(number)]
        folder.write_documents(documents, f"many/{number}.jsonl")
    sections: dict[str, Any] = {"input": {"path": "many"}}
    run(folder, reading, **sections)
    path = folder.path / "many" / "3.jsonl"
    times, text = path.stat(), path.read_bytes()
    path.write_bytes(text.replace(b"text 3 0", b"TEXT 3 0"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with duckdb.connect(folder.database) as connection:
        connection.execute(
            "update scans set ctime_ns = $ctime where source = 'many/3.jsonl'", {"ctime": path.stat().st_ctime_ns}
        )
    assert count_asked(run(folder, reading, **sections)) == 1
    assert count_lines(folder.database) == [(7, 18)]
    listed = "select source, count(*) from documents group by all order by 1"
    assert select(folder.database, listed) == [(f"many/{number}.jsonl", number) for number in range(1, 6)]
