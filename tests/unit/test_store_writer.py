"""What goes in is on disk once, as it was, and whatever goes wrong is told to the caller."""

import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bulkinfer.errors import StoreError, StoreLocked, StoreStalled
from bulkinfer.records import (
    Commit,
    DocumentRow,
    FailureCode,
    KnownSpan,
    Latency,
    Only,
    Outcome,
    Percentiles,
    RunStatus,
    SourceFile,
    WantedRows,
)
from bulkinfer.store import CommitLimits, DocumentCounts, Reader, RunSelection, Store, lookups, queue
from bulkinfer.store.arrow import hashes_table, read_hashes
from bulkinfer.store.commit import Written
from bulkinfer.store.queue import CommitQueue
from tests.unit.store_support import (
    NOW,
    OTHER_TASK,
    QUICK,
    TASK,
    hash_of,
    make_failure,
    make_file,
    make_result,
    make_rows,
    make_run,
    run_job,
    select,
)


def store_outcomes(database: Path, outcomes: Sequence[Outcome]) -> None:
    """One run that commits these."""
    store = Store.open(database)
    store.begin_run(make_run(), TASK, [make_file()], "body")
    store.add(outcomes)
    store.close()


def test_result_comes_back_as_it_was(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    output = "Zusammenfassung: 東京\n\x00\t"
    store_outcomes(database, [make_result("x", output=output, value='{"a": [1, null]}', attempts=2)])
    columns = (
        "output, value, finish_reason, prompt_tokens, cached_tokens, output_tokens, queue_s, first_token_s, total_s"
    )
    assert select(database, f"select {columns}, attempts, completed_at from results") == [
        ("Zusammenfassung: 東京\n\x00\t", '{"a": [1, null]}', "stop", 10, 4, 3, 0.5, 1.0, 2.0, 2, NOW)
    ]
    assert select(database, "select task_fingerprint, document_hash from results") == [
        (UUID("11111111-1111-1111-1111-111111111111"), UUID("2d711642-b726-b044-0162-7ca9fbac32f5"))
    ]


def test_failure_comes_back_as_it_was(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    store_outcomes(database, [make_failure("x", FailureCode.INVALID_OUTPUT, attempts=3, row=9)])
    columns = "source, row, document_id, code, message, raw_output, attempts, retryable, failed_at"
    assert select(database, f"select {columns} from failures") == [
        ("a.jsonl", 9, "id-x", "invalid_output", "cut at 3 tokens", "half an ans", 3, False, NOW)
    ]


@given(st.lists(st.binary(min_size=16, max_size=16), unique=True))
def test_hashes_survive_arrow(hashes: list[bytes]) -> None:
    assert read_hashes(hashes_table(hashes)) == frozenset(hashes)


@settings(max_examples=5, deadline=None)
@given(hashes=st.lists(st.binary(min_size=16, max_size=16), unique=True, min_size=1))
def test_hashes_survive_the_database_and_read_as_hex(
    tmp_path_factory: pytest.TempPathFactory, hashes: list[bytes]
) -> None:
    database = tmp_path_factory.mktemp("hashes") / "a.duckdb"
    store = Store.open(database)
    [scan] = store.begin_run(make_run(), TASK, [make_file()], "body")
    store.add_rows([DocumentRow(scan.scan_id, row, value, "") for row, value in enumerate(hashes, start=1)])
    store.close()
    found = select(database, "select document_hash::varchar from documents order by row")
    assert [str(text).replace("-", "") for (text,) in found] == [value.hex() for value in hashes]


@pytest.mark.parametrize(
    ("value", "stored"),
    [('{"a": 1}', '{"a": 1}'), ('"\\ud800"', None), ('{"a":', None), (None, None)],
)
def test_value_that_is_no_json_does_not_stop_the_commit(tmp_path: Path, value: str | None, stored: str | None) -> None:
    database = tmp_path / "a.duckdb"
    store_outcomes(database, [make_result("x", value=value), make_result("y")])
    assert select(database, "select output, value from results order by output") == [
        ("answer to x", stored),
        ("answer to y", None),
    ]


def test_value_that_is_nested_too_deep_does_not_stop_the_commit(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    store_outcomes(database, [make_result("x", value="[" * 100_000 + "]" * 100_000), make_result("y")])
    assert select(database, "select output from results order by output") == [("answer to x",), ("answer to y",)]


def test_text_without_utf8_form_does_not_stop_the_commit(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    store_outcomes(database, [make_result("x", output="a\ud800b"), make_result("y", output="ü")])
    assert select(database, "select output from results order by output") == [("a?b",), ("ü",)]


def test_long_output_is_kept(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    store_outcomes(database, [make_result("x", output="ab" * 10_000_000)])
    assert select(database, "select length(output) from results") == [(20_000_000,)]


def test_nothing_is_stored_twice(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    store = Store.open(database)
    store.begin_run(make_run(), TASK, [make_file()], "body")
    for _ in range(2):
        store.add([make_result("x"), make_result("x", output="later"), make_failure("x"), make_failure("bad")])
        store.add([make_failure("bad"), make_failure("bad", attempts=2)])
        store.flush()
    store.close()
    assert select(database, "select output from results") == [("answer to x",)]
    assert select(database, "select document_id, attempts from failures order by attempts") == [
        ("id-bad", 1),
        ("id-bad", 2),
    ]
    assert select(database, "select seq, rows, failed from commits order by seq") == [(1, 1, 2), (2, 0, 0)]


def test_commit_is_told_when_it_is_on_disk(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    commits: list[Commit] = []
    store = Store.open(database, on_commit=commits.append)
    [scan] = store.begin_run(make_run(), TASK, [make_file()], "body")
    store.add_rows(make_rows(scan, ["x", "bad"]))
    store.add([make_result("x"), make_failure("bad")])
    store.flush()
    assert [(commit.seq, commit.num_results, commit.num_failures) for commit in commits] == [(1, 1, 1)]
    assert commits[0].document_hashes == (hash_of("x"), hash_of("bad"))
    assert 0 < commits[0].commit_s < 20
    store.close()
    assert select(database, "select document_rows, prompt_tokens, output_tokens from commits") == [(2, 10, 3)]


@pytest.mark.parametrize(
    "limits",
    [
        CommitLimits(max_outcomes=10, max_wait_s=60),
        CommitLimits(max_bytes=10_000, max_wait_s=60),
        CommitLimits(max_wait_s=0.01),
    ],
    ids=["count", "bytes", "time"],
)
def test_commit_is_made_when_a_limit_is_reached(tmp_path: Path, limits: CommitLimits) -> None:
    told = threading.Event()
    store = Store.open(tmp_path / "a.duckdb", on_commit=lambda _: told.set(), limits=limits)
    store.begin_run(make_run(), TASK, [make_file()], "body")
    store.add([make_result(str(number), output="x" * 1_000) for number in range(10)])
    assert told.wait(20)
    store.close()


def test_commit_is_not_made_before_a_limit_is_reached(tmp_path: Path) -> None:
    commits: list[Commit] = []
    limits = CommitLimits(max_outcomes=10, max_wait_s=60)
    store = Store.open(tmp_path / "a.duckdb", on_commit=commits.append, limits=limits)
    store.begin_run(make_run(), TASK, [make_file()], "body")
    for number in range(9):
        store.add([make_result(str(number))])
    assert store.find_done([hash_of("0")], RunSelection()) == frozenset()
    store.close()
    assert [commit.num_results for commit in commits] == [9]


def test_add_waits_for_a_writer_that_is_behind(tmp_path: Path) -> None:
    may_go_on = threading.Event()
    limits = CommitLimits(max_outcomes=1, max_backlog=2, stall_limit_s=20)
    store = Store.open(tmp_path / "a.duckdb", on_commit=lambda _: assert_set(may_go_on), limits=limits)
    store.begin_run(make_run(), TASK, [make_file()], "body")
    store.add([make_result("0")])
    num_added = threading.Semaphore(0)

    def add_ten() -> None:
        for number in range(1, 11):
            store.add([make_result(str(number))])
            num_added.release()

    thread = threading.Thread(target=add_ten)
    thread.start()
    for _ in range(2):
        assert num_added.acquire(timeout=20)
    assert thread.is_alive()  # it holds eight more, and cannot give them
    may_go_on.set()
    thread.join(20)
    assert not thread.is_alive()
    store.close()
    assert select(tmp_path / "a.duckdb", "select count(*) from results") == [(11,)]


def assert_set(event: threading.Event) -> None:
    assert event.wait(20)


def test_writer_that_is_stuck_is_told_of_and_not_waited_for(tmp_path: Path) -> None:
    """It keeps the lock: it may write yet."""
    may_go_on = threading.Event()
    limits = CommitLimits(max_outcomes=1)
    store = Store.open(tmp_path / "a.duckdb", on_commit=lambda _: assert_set(may_go_on), limits=limits)
    try:
        store.begin_run(make_run(), TASK, [make_file()], "body")
        store._queue._limits = replace(limits, stall_limit_s=0.05)
        store.add([make_result("x")])
        with pytest.raises(StoreStalled, match=r"a.duckdb: the disk.* did not answer for 0\.05 s"):
            store.flush()
        assert store.is_stalled
        for call in (store.check, store.flush, lambda: store.add([make_result("y")])):
            with pytest.raises(StoreStalled):
                call()
        store.close()
        with pytest.raises(StoreLocked):
            Store.open(tmp_path / "a.duckdb")
    finally:
        may_go_on.set()


def test_writer_is_stuck_when_one_commit_takes_too_long_not_when_many_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(queue, "time", SimpleNamespace(monotonic=lambda: now_s))
    commits = CommitQueue(tmp_path / "a.duckdb", CommitLimits(max_outcomes=1, stall_limit_s=100))
    for number in range(3):
        commits.put((), [make_result(str(number))])
        assert commits.take() is not None
        now_s += 99
        commits.check()
        commits.mark_committed()
    now_s += 1_000  # nothing to write is no stall
    commits.check()
    commits.put((), [make_result("x")])
    assert commits.take() is not None
    now_s += 101
    with pytest.raises(StoreStalled):
        commits.put((), [make_result("y")])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_bug_in_the_writer_thread_reaches_the_caller_once(tmp_path: Path) -> None:
    def stumble(_commit: Commit) -> None:
        raise ZeroDivisionError

    store = Store.open(tmp_path / "a.duckdb", on_commit=stumble)
    store.begin_run(make_run(), TASK, [make_file()], "body")
    store.add([make_result("x")])
    with pytest.raises(ZeroDivisionError):
        store.flush()
    with pytest.raises(ZeroDivisionError):
        store.add([make_result("y")])
    store.close()
    Store.open(tmp_path / "a.duckdb").close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_bug_that_nobody_met_is_raised_by_close(tmp_path: Path) -> None:
    def stumble(_commit: Commit) -> None:
        raise ZeroDivisionError

    store = Store.open(tmp_path / "a.duckdb", on_commit=stumble)
    store.begin_run(make_run(), TASK, [make_file()], "body")
    store.add([make_result("x")])
    with pytest.raises(ZeroDivisionError):
        store.close()
    store.close()
    Store.open(tmp_path / "a.duckdb").close()


def test_closed_store_takes_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "a.duckdb")
    store.begin_run(make_run(), TASK, [make_file()], "body")
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.add([make_result("x")])


def test_empty_calls_do_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "a.duckdb")
    assert store.begin_run(make_run(), TASK, [], "body") == []
    store.add([])
    store.add_rows([])
    store.flush()
    assert store.find_done([], RunSelection()) == frozenset()
    assert store.count_documents({}) == DocumentCounts(0, 0)
    assert store.count_open_failures({}) == {}
    assert store.latency() == Latency()
    store.close()
    assert select(tmp_path / "a.duckdb", "select count(*) from commits") == [(0,)]


@pytest.mark.parametrize(
    ("only", "asked"),
    [
        (Only.NEW, {"new"}),
        (Only.FAILED, {"cut", "invalid", "cut then invalid"}),
        (Only.TRUNCATED, {"cut"}),
        (Only.INVALID, {"invalid", "cut then invalid"}),
    ],
)
def test_run_asks_only_what_was_asked_for(tmp_path: Path, only: Only, asked: set[str]) -> None:
    database = tmp_path / "a.duckdb"
    later = NOW + timedelta(seconds=1)
    before: dict[str, list[Outcome]] = {
        "new": [],
        "done": [make_result("done")],
        "cut": [make_failure("cut")],
        "invalid": [make_failure("invalid", FailureCode.INVALID_OUTPUT)],
        "cut then invalid": [
            make_failure("cut then invalid", failed_at=NOW),
            make_failure("cut then invalid", FailureCode.INVALID_OUTPUT, failed_at=later),
        ],
        "cut then done": [make_failure("cut then done")],
    }
    store_outcomes(database, [outcome for outcomes in before.values() for outcome in outcomes])
    store_outcomes(database, [make_result("cut then done")])
    store = Store.open(database)
    store.begin_run(make_run(), TASK, [make_file()], "body")
    done = store.find_done([hash_of(text) for text in before], RunSelection(only))
    assert {text for text in before if hash_of(text) not in done} == asked
    store.add([make_failure(text) for text in asked])
    store.flush()
    assert store.find_done([hash_of(text) for text in asked], RunSelection(only)) == {hash_of(text) for text in asked}
    store.close()


def test_outcomes_of_another_task_are_not_done(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    store_outcomes(database, [make_result("x"), make_failure("bad")])
    store = Store.open(database)
    store.begin_run(make_run(), OTHER_TASK, [make_file()], "body")
    assert store.find_done([hash_of("x"), hash_of("bad")], RunSelection()) == frozenset()
    store.close()


def test_a_file_is_at_its_end_only_with_all_its_rows(tmp_path: Path) -> None:
    """Whatever ends up in which commit: an end without the rows before it would hide them for ever."""
    seen: list[tuple[object, ...]] = []
    store: Store | None = None

    def look(_commit: Commit) -> None:
        assert store is not None
        with store.create_reader() as reader:
            sql = "select (select count(*) from scan_ends), (select count(*) from document_rows)"
            seen.extend(reader.query(sql).rows)

    store = Store.open(tmp_path / "a.duckdb", on_commit=look, limits=CommitLimits(max_outcomes=1))
    [scan] = store.begin_run(make_run(), TASK, [make_file()], "body")
    rows = make_rows(scan, [str(number) for number in range(100)])
    for first in range(0, 100, 10):
        store.add_rows(rows[first : first + 10], [scan.scan_id] if first == 90 else [])
        store.add([make_result(str(first))])
        if first == 40:
            store.flush()
    store.flush()
    [again] = store.begin_run(make_run(), TASK, [make_file()], "body")
    assert (again.num_known_rows, again.is_complete) == (100, True)
    store.close()
    assert seen[0][0] == 0
    assert seen[-1] == (1, 100)
    assert all(num_rows == 100 for num_ended, num_rows in seen if num_ended)


def test_an_end_without_all_its_rows_is_none(tmp_path: Path) -> None:
    """Where rows are lost, the file is read from there."""
    database = tmp_path / "a.duckdb"
    store = Store.open(database)
    [scan] = store.begin_run(make_run(), TASK, [make_file()], "body")
    store.add_rows(make_rows(scan, ["a", "b", "c"]), [scan.scan_id])
    store.close()
    with duckdb.connect(database) as connection:
        connection.execute("delete from document_rows where row = 3")
    store = Store.open(database)
    [again] = store.begin_run(make_run(), TASK, [make_file()], "body")
    store.close()
    assert (again.num_known_rows, again.is_complete) == (2, False)


def test_wanted_rows_of_many_files_with_blank_lines_are_placed_by_as_many_questions_as_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(tmp_path / "a.duckdb")
    scans = store.begin_run(make_run(), TASK, [make_file(f"{number}.jsonl") for number in range(30)], "body")
    for scan in scans:
        numbers = (1, 2, 4, 7) if scan.source.name != "3.jsonl" else (1, 2, 3, 4, 5, 6, 7)
        hashes = {2: hash_of(f"done {scan.source.name}"), 7: hash_of(f"last {scan.source.name}")}
        store.add_rows(
            [DocumentRow(scan.scan_id, row, hashes.get(row, hash_of("answered")), f"{row}") for row in numbers]
        )
    store.add([make_result("answered"), make_result("done 5.jsonl")])
    store.flush()
    questions: list[str] = []
    query = lookups._query

    def count_and_query(
        cursor: duckdb.DuckDBPyConnection, sql: str, asked: pa.Table, given: Mapping[str, object], name: str = "asked"
    ) -> pa.Table:
        questions.append(sql)
        return query(cursor, sql, asked, given, name)

    monkeypatch.setattr(lookups, "_query", count_and_query)
    found = store.find_wanted([KnownSpan(scan.scan_id, 0, 7) for scan in scans], RunSelection())
    store.close()
    assert len(questions) == 3
    expected = [WantedRows(4, [2, 7], [2, 4])] * 30
    expected[3], expected[5] = WantedRows(7, [2, 7], [2, 7]), WantedRows(4, [7], [4])
    assert found == expected


def test_rows_are_known_to_the_next_run(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    store = Store.open(database)
    [scan] = store.begin_run(make_run(), TASK, [make_file()], "body")
    store.add_rows(make_rows(scan, ["x", "y"]))
    store.close()
    store = Store.open(database)
    [again, other] = store.begin_run(make_run(), TASK, [make_file(), make_file("b.jsonl")], "body")
    assert (again.scan_id, again.num_known_rows) == (scan.scan_id, 2)
    assert (other.source.name, other.num_known_rows) == ("b.jsonl", 0)
    store.add_rows(make_rows(again, ["x", "y", "z"]))
    store.close()
    assert select(database, "select row, document_id from documents order by row") == [
        (1, "x@1"),
        (2, "y@2"),
        (3, "z@3"),
    ]


@pytest.mark.parametrize("changed_file", [make_file(size_bytes=101), make_file(mtime_ns=2), make_file(inode=2**64 - 1)])
def test_changed_file_is_read_anew(tmp_path: Path, changed_file: SourceFile) -> None:
    database = tmp_path / "a.duckdb"
    store = Store.open(database)
    [scan] = store.begin_run(make_run(), TASK, [make_file()], "body")
    store.add_rows(make_rows(scan, ["x"]))
    [changed] = store.begin_run(make_run(), TASK, [changed_file], "body")
    assert (changed.scan_id == scan.scan_id, changed.num_known_rows) == (False, 0)
    [same] = store.begin_run(make_run(), TASK, [changed_file], "body")
    assert same.scan_id == changed.scan_id
    store.close()


def test_counts_reach_as_far_as_was_read(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    run_job(database, {"a.jsonl": ["x", "bad", "x", "bad", "bad2"]})
    store = Store.open(database)
    [scan] = store.begin_run(make_run(), TASK, [make_file()], "body")
    store.add_rows(make_rows(scan, ["x", "bad", "x", "bad", "bad2"]))
    store.flush()
    assert store.count_documents({scan.scan_id: 5}) == DocumentCounts(num_rows=5, num_distinct=3)
    assert store.count_documents({scan.scan_id: 3}) == DocumentCounts(num_rows=3, num_distinct=2)
    assert store.count_open_failures({scan.scan_id: 3}) == {FailureCode.TRUNCATED: 1}
    assert store.count_open_failures({scan.scan_id: 4}) == {FailureCode.TRUNCATED: 2}
    store.add([make_failure("bad2", FailureCode.EMPTY_PROMPT, failed_at=NOW + timedelta(seconds=1))])
    store.flush()
    assert store.count_open_failures({scan.scan_id: 5}) == {FailureCode.TRUNCATED: 2, FailureCode.EMPTY_PROMPT: 1}
    store.close()


def test_latency_is_of_this_run_alone(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    store_outcomes(database, [make_result("before")])
    store = Store.open(database)
    store.begin_run(make_run(), TASK, [make_file()], "body")
    assert store.latency() == Latency()
    store.add([make_result("x")])
    store.flush()
    assert store.latency() == Latency(
        queue=Percentiles(0.5, 0.5, 0.5), first_token=Percentiles(1.0, 1.0, 1.0), total=Percentiles(2.0, 2.0, 2.0)
    )
    store.close()


def test_end_of_a_run_is_recorded_once(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    run_job(database, {"a.jsonl": ["x"]})
    assert select(database, "select status, exit_code, summary from run_ends") == [("completed", 0, '{"asked":1}')]
    with Reader.open(database) as reader:
        [summary] = reader.summary("job")
    assert (summary.status, summary.exit_code, summary.summary) == (RunStatus.COMPLETED, 0, {"asked": 1})


_FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from bulkinfer.errors import StoreError, StoreLocked, StoreStalled
from bulkinfer.store import Store
from tests.unit.store_support import QUICK, TASK, make_file, make_result, make_run

def allow(num_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))

acknowledged = []
store = Store.open(Path(sys.argv[1]), limits=QUICK, on_commit=lambda commit: acknowledged.append(commit.num_results))
store.begin_run(make_run(), TASK, [make_file()], "body")
allow(4_000_000)
try:
    for part in range(1000):
        store.add([make_result(f"{part}-{k}", output=f"{part} {k} " * 40) for k in range(100)])
        store.flush()
except StoreError as error:
    print(error)
allow(resource.RLIM_INFINITY)
try:
    store.close()
except StoreError as error:
    print("close", error)
print(sum(acknowledged))
"""


def run_script(script: str, database: Path) -> list[str]:
    """The lines that a script prints about a database, in a process of its own."""
    process = subprocess.run(
        [sys.executable, "-c", script, str(database)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (process.returncode, process.stderr) == (0, "")
    return process.stdout.splitlines()


def test_full_disk_ends_the_run_and_loses_nothing(tmp_path: Path) -> None:
    """A limit on file sizes makes writes fail as a full disk does."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    database = tmp_path / "a.duckdb"
    said, num_acknowledged = run_script(_FULL_DISK, database)
    assert said.startswith(f"{database}: a commit failed")
    assert int(num_acknowledged) > 0
    assert select(database, "select count(*), count(distinct document_hash) from results") == [
        (int(num_acknowledged), int(num_acknowledged))
    ]


_DISK_THAT_RECOVERS = _FULL_DISK.replace("range(1000)", "range(100)").replace(
    "allow(4_000_000)", "import time; time.sleep = lambda _s: allow(resource.RLIM_INFINITY); allow(4_000_000)"
)


def test_commit_is_tried_again_on_a_reopened_database(tmp_path: Path) -> None:
    """Room appears while the store waits before its next attempt."""
    database = tmp_path / "a.duckdb"
    assert run_script(_DISK_THAT_RECOVERS, database) == ["10000"]
    assert select(database, "select count(*), count(distinct document_hash) from results") == [(10_000, 10_000)]
    assert select(database, "select count(*), max(seq) from commits") == [(100, 100)]


def test_unclear_commit_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit reached the disk, but that was not told: the second attempt must find it."""
    database = tmp_path / "a.duckdb"
    store = Store.open(database, limits=QUICK)
    [scan] = store.begin_run(make_run(), TASK, [make_file()], "body")
    write = store._connections.write

    def write_twice(transaction: Callable[[duckdb.DuckDBPyConnection], Written], action: str) -> Written:
        write(transaction, action)
        return write(transaction, action)  # no disk fails at that very point

    monkeypatch.setattr(store._connections, "write", write_twice)
    store.add_rows(make_rows(scan, ["x", "bad"]))
    store.add([make_result("x"), make_failure("bad")])
    store.flush()
    store.close()
    for table in ("results", "failures", "commits"):
        assert select(database, f"select count(*) from {table}") == [(1,)]
    assert select(database, "select count(*) from document_rows") == [(2,)]
