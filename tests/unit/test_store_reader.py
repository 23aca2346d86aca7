"""Reading: one statement, nothing written, nothing but this database, and no stored text in an error."""

from pathlib import Path

import pytest

from bulkinfer.errors import ExitCode, JobError, StoreError
from bulkinfer.records import FailureCode, RunStatus
from bulkinfer.store import Reader, Store
from tests.unit.store_support import TASK, hash_of, make_file, make_result, make_run, run_job


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Two answers and a failure."""
    path = tmp_path / "a.duckdb"
    run_job(path, {"a.jsonl": ["x", "bad", "y"]})
    return path


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("select document_id from answers order by row", [("x@1",), ("y@3",)]),
        ("from answers select count(*)", [(2,)]),
        ("with a as (select 1 as b) select b from a;", [(1,)]),
        ("values (1), (2)", [(1,), (2,)]),
        ("select code from failures -- and nothing else", [("truncated",)]),
        ("select row from answers where false", []),
    ],
)
def test_statement_that_reads_is_answered(database: Path, sql: str, rows: list[tuple[object, ...]]) -> None:
    with Reader.open(database) as reader:
        assert list(reader.query(sql).rows) == rows


@pytest.mark.parametrize("sql", ["show tables", "describe answers", "explain select 1", "summarize answers"])
def test_statement_about_the_tables_is_answered(database: Path, sql: str) -> None:
    with Reader.open(database) as reader:
        assert list(reader.query(sql).rows) != []


def test_columns_are_named(database: Path) -> None:
    with Reader.open(database) as reader:
        assert reader.query("select source, row as line from answers").columns == ("source", "line")


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("", "expected one SQL statement, found 0"),
        ("-- nothing", "found 0"),
        ("select 1; select 2", "found 2"),
        ("selct 1", "syntax error"),
        ("select nothing from answers", "nothing"),
        ("select * from no_table", "no_table"),
        ("select $1", "parameters"),
        ("insert into results select * from results", "not INSERT"),
        ("delete from results", "not DELETE"),
        ("drop table results", "not DROP"),
        ("create table mine(x int)", "not CREATE"),
        ("with new as (insert into meta values ('a', 'b') returning key) select * from new", "read-only|no details"),
        ("explain analyze insert into meta values ('a', 'b')", "read-only|no details"),
        ("copy results to 'out.csv'", "not COPY"),
        ("attach 'other.duckdb'", "not ATTACH"),
        ("set enable_external_access = true", "not SET"),
        ("pragma version", "not PRAGMA"),
        ("checkpoint", "not CALL"),
        ("select * from checkpoint('a')", "checkpoint\\(\\) does more"),
        ("select * from \"force_checkpoint\"('a')", "checkpoint\\(\\) does more"),
        ("select * from query('select * from Checkpoint ()')", "Checkpoint\\(\\) does more"),
        ("select * from truncate_duckdb_logs()", "truncate_duckdb_logs\\(\\) does more"),
        ("select interval '100000000 years'", "does not fit Python"),
        ("select output, interval '100000000 years' from answers", "does not fit Python"),
        ("install httpfs", "not LOAD"),
        ("begin", "not TRANSACTION"),
        ("select * from read_text('/etc/hostname')", "disabled"),
        ("select * from '/etc/hostname'", "/etc/hostname"),
        ("select * from glob('/*')", "disabled"),
        ("select * from database", "database"),
        ("select cast(output as int) from answers", "no details: they may quote documents"),
        ("select error(output) from answers", "no details: they may quote documents"),
    ],
)
@pytest.mark.parametrize("is_live", [False, True], ids=["read-only", "live"])
def test_anything_else_is_the_users_error_and_changes_nothing(
    database: Path, sql: str, message: str, is_live: bool
) -> None:
    store = Store.open(database) if is_live else None
    reader = Reader.open(database) if store is None else store.create_reader()
    try:
        with pytest.raises(JobError, match=message) as caught:
            list(reader.query(sql).rows)
        assert caught.value.exit_code is ExitCode.USAGE
        assert "answer to" not in str(caught.value)
        assert list(reader.query("select count(*) from results").rows) == [(2,)]
        assert list(reader.query("select count(*) from meta").rows) == [(4,)]
    finally:
        reader.close()
        if store is not None:
            store.close()


def test_times_are_in_utc_whatever_the_machine_says(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    with Reader.open(database) as reader:
        rows = list(reader.query("select completed_at::varchar from results limit 1").rows)
    assert rows == [("2026-01-02 03:04:05.678901+00",)]


def test_reader_leaves_the_file_as_it_is(database: Path) -> None:
    before = database.read_bytes()
    with Reader.open(database) as reader:
        list(reader.query("select * from answers order by output").rows)
    assert database.read_bytes() == before
    assert {path.name for path in database.parent.iterdir()} == {
        "a.duckdb",
        "a.duckdb.lock",
        "a.duckdb.status.json",
    }


def test_query_that_was_left_half_read_does_not_block_the_next(database: Path) -> None:
    with Reader.open(database) as reader:
        assert next(reader.query("select * from range(100000)").rows) == (0,)
        assert list(reader.query("select 1").rows) == [(1,)]


def test_live_reader_sees_what_is_committed(database: Path) -> None:
    store = Store.open(database)
    store.begin_run(make_run(), TASK, [make_file("b.jsonl")], "body")
    reader = store.create_reader()
    store.add([make_result("z")])
    store.flush()
    assert list(reader.query("select count(*) from results").rows) == [(3,)]
    store.add([make_result("zz")])
    store.flush()
    assert list(reader.query("select count(*) from results").rows) == [(4,)]
    store.close()
    with pytest.raises(StoreError):
        reader.names()


def test_summary_is_of_the_last_run_of_each_job(database: Path) -> None:
    run_job(database, {"a.jsonl": ["x", "bad", "y", "x"]})
    run_job(database, {"b.jsonl": ["x"]}, name="another")
    with Reader.open(database) as reader:
        assert reader.names() == ["another", "job"]
        another, job = reader.summary()
        assert reader.summary("job") == [job]
        assert reader.summary("unknown") == []
    assert (job.name, job.num_rows, job.num_answered) == ("job", 4, 3)
    assert (job.status, job.exit_code, job.summary) == (RunStatus.COMPLETED, 0, {"asked": 0})
    assert job.failed_by_code == {FailureCode.TRUNCATED: 1}
    assert (another.num_rows, another.num_answered, another.failed_by_code) == (1, 1, {})
    assert job.ended_at is not None


def test_run_that_did_not_end_has_no_status(database: Path) -> None:
    store = Store.open(database)
    store.begin_run(make_run(), TASK, [make_file("b.jsonl")], "body")
    store.close()
    with Reader.open(database) as reader:
        [job] = reader.summary()
    assert (job.status, job.exit_code, job.summary, job.ended_at, job.num_rows) == (None, None, None, None, 0)


def test_failures_are_those_that_stand(database: Path) -> None:
    with Reader.open(database) as reader:
        [failure] = reader.failures("job")
        assert list(reader.failures()) == [failure]
        assert list(reader.failures("unknown")) == []
    assert (failure.name, failure.source, failure.row, failure.document_id) == ("job", "a.jsonl", 2, "bad@2")
    assert failure.document_hash.bytes == hash_of("bad")
    assert (failure.code, failure.message, failure.attempts) == (FailureCode.TRUNCATED, "cut at 3 tokens", 1)
