"""The tables and views of the public contract, and what may be opened as a database of bulkinfer."""

import re
from importlib.resources import files
from pathlib import Path

import duckdb
import pytest

from bulkinfer.errors import StoreError
from bulkinfer.store import Reader, Store
from tests.unit.store_support import run_job, select

CONTRACT = {
    "documents": "document_hash uuid, source varchar, row bigint, document_id varchar",
    "results": "task_fingerprint uuid, document_hash uuid, run_id uuid, output varchar, value json, finish_reason "
    "varchar, prompt_tokens integer, cached_tokens integer, output_tokens integer, queue_s float, first_token_s float, "
    "total_s float, attempts integer, completed_at timestamp with time zone",
    "failures": "task_fingerprint uuid, document_hash uuid, source varchar, row bigint, document_id varchar, run_id "
    "uuid, code varchar, message varchar, raw_output varchar, attempts integer, retryable boolean, "
    "failed_at timestamp with time zone",
    "tasks": "task_fingerprint uuid, name varchar, spec json, created_at timestamp with time zone",
    "runs": "run_id uuid, name varchar, task_fingerprint uuid, started_at timestamp with time zone",
    "commits": "run_id uuid, seq bigint, rows bigint, failed bigint, committed_at timestamp with time zone",
    "answers": "document_id varchar, source varchar, row bigint, output varchar, value json, finish_reason varchar, "
    "name varchar, task_fingerprint uuid, document_hash uuid",
    "open_failures": "name varchar, source varchar, row bigint, document_id varchar, document_hash uuid, code varchar, "
    "message varchar, attempts integer, failed_at timestamp with time zone",
}


@pytest.mark.parametrize("table", CONTRACT)
def test_table_has_the_columns_of_the_contract(tmp_path: Path, table: str) -> None:
    database = tmp_path / "a.duckdb"
    Store.open(database).close()
    found = {f"{name} {str(kind).lower()}" for name, kind, *_ in select(database, f"describe {table}")}
    assert set(CONTRACT[table].split(", ")) - found == set()


def test_nothing_has_an_index(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    Store.open(database).close()
    assert select(database, "select count(*) from duckdb_indexes()") == [(0,)]
    kinds = {kind for (kind,) in select(database, "select constraint_type from duckdb_constraints()")}
    assert kinds == {"NOT NULL"}


def list_additions() -> list[tuple[str, str]]:
    """Tables and columns of additions.sql that a database may lack."""
    sql = (files("bulkinfer.store") / "additions.sql").read_text()
    tables = [(table, "") for table in re.findall(r"create table if not exists (\w+)", sql)]
    return tables + re.findall(r"alter table (\w+) add column if not exists (\w+)", sql)


@pytest.mark.parametrize(("table", "column"), list_additions())
def test_a_database_from_before_a_table_or_column_gets_it(tmp_path: Path, table: str, column: str) -> None:
    database = tmp_path / "a.duckdb"
    Store.open(database).close()
    before = select(database, f"describe {table}")
    with duckdb.connect(database) as connection:
        connection.execute(f"alter table {table} drop column {column}" if column else f"drop table {table}")
    Store.open(database).close()
    assert sorted(map(str, select(database, f"describe {table}"))) == sorted(map(str, before))


def test_meta_says_who_made_it(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    Store.open(database).close()
    assert select(database, "select value from meta where key = 'schema_version'") == [("1",)]
    assert select(database, "select value from meta where key = 'created_by'") == [("bulkinfer 0.1.0",)]


def test_database_of_a_newer_version_is_refused_and_names_the_version(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    Store.open(database).close()
    with duckdb.connect(database) as connection:
        connection.execute("update meta set value = '2' where key = 'schema_version'")
        connection.execute("update meta set value = 'bulkinfer 7.5.0' where key = 'created_by'")
    for attempt in (Store.open, Reader.open):
        with pytest.raises(StoreError, match=r"bulkinfer 7\.5\.0.*schema version 2") as caught:
            attempt(database)
        assert str(database) in str(caught.value)


@pytest.mark.parametrize(
    "statement",
    ["create table sales(x int)", "create table meta(a int, b int)", "create table meta(key text, value text)"],
)
def test_foreign_database_is_refused_and_left_as_it_is(tmp_path: Path, statement: str) -> None:
    database = tmp_path / "a.duckdb"
    with duckdb.connect(database) as connection:
        connection.execute(statement)
    before = database.read_bytes()
    for attempt in (Store.open, Reader.open):
        with pytest.raises(StoreError, match="not bulkinfer's") as caught:
            attempt(database)
        assert str(database) in str(caught.value)
    assert database.read_bytes() == before


def test_foreign_database_with_a_log_keeps_its_log(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    with duckdb.connect(database) as connection:
        connection.execute("create table sales(x int)")
        connection.execute("checkpoint")
        connection.execute("pragma disable_checkpoint_on_shutdown")
        connection.execute("insert into sales values (1)")
    before = (tmp_path / "a.duckdb.wal").read_bytes()
    with pytest.raises(StoreError, match="not bulkinfer's"):
        Store.open(database)
    assert (tmp_path / "a.duckdb.wal").read_bytes() == before


def test_blank_database_is_filled(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    duckdb.connect(database).close()
    with pytest.raises(StoreError, match="is empty"):
        Reader.open(database)
    assert run_job(database, {"a.jsonl": ["x"]}) == {"x"}
    assert select(database, "select output from answers") == [("answer to x",)]
