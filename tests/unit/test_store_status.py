"""The status file: whole or not there, and never a reason to stop."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bulkinfer.store import Store, read_status, write_status
from tests.unit.store_support import TASK, make_file, make_result, make_run, run_job, select


def test_status_comes_back_with_who_wrote_it(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    assert write_status(database, {"documents": {"succeeded": 3}, "model": "é"})
    status = read_status(database)
    assert status is not None
    assert (status["documents"], status["model"], status["pid"]) == ({"succeeded": 3}, "é", os.getpid())
    assert isinstance(status["updated_at"], str)
    assert abs((datetime.now(UTC) - datetime.fromisoformat(status["updated_at"])).total_seconds()) < 60
    assert [path.name for path in tmp_path.iterdir()] == ["a.duckdb.status.json"]


@pytest.mark.parametrize("content", [None, b"", b"[1]", b'{"half', b"\xff"])
def test_unreadable_status_is_none(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "a.duckdb.status.json").write_bytes(content)
    assert read_status(tmp_path / "a.duckdb") is None


def test_status_is_written_at_each_commit(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    store = Store.open(database)
    store.begin_run(make_run(), TASK, [make_file()], "body")
    num_calls = 0

    def describe() -> dict[str, int]:
        nonlocal num_calls
        num_calls += 1
        return {"calls": num_calls}

    store.status_source = describe
    for number in (1, 2):
        store.add([make_result(str(number))])
        store.flush()
        status = read_status(database)
        assert status is not None
        assert (status["calls"], status["num_commits"]) == (number, number)
    store.close()


def test_status_that_cannot_be_written_does_not_stop_a_run(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    (tmp_path / "a.duckdb.status.json").mkdir()
    run_job(database, {"a.jsonl": ["x"]})
    assert select(database, "select output from answers") == [("answer to x",)]
    assert not write_status(database, {})
    assert not (tmp_path / "a.duckdb.status.json.tmp").exists()
