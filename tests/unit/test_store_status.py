"""The status file: whole or not there, and never a reason to stop."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bulkinfer.records import RunStatus
from bulkinfer.store import Reader, Store, read_status, write_status
from bulkinfer.store.reports import add_told_end
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


def test_last_status_is_written_over_the_old_one_where_no_new_one_can_be_made(tmp_path: Path) -> None:
    """Whole, however much longer the old one was."""
    database = tmp_path / "a.duckdb"
    assert write_status(database, {"documents": "x" * 1_000})
    (tmp_path / "a.duckdb.status.json.tmp").mkdir()
    assert not write_status(database, {"status": "running"})
    assert write_status(database, {"status": "failed"}, is_last=True)
    status = read_status(database)
    assert status is not None
    assert (status["status"], status["pid"]) == ("failed", os.getpid())


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (None, ("completed", 0)),
        ({"status": "running"}, ("completed", 0)),
        ({"status": "odd", "exit_code": 4}, ("completed", 0)),
        ({"status": "failed", "exit_code": 4, "run_id": "another"}, ("completed", 0)),
        ({"status": "failed", "exit_code": 4, "error": "the disk is full"}, ("failed", 4)),
    ],
)
def test_end_that_only_the_status_file_tells_counts(
    tmp_path: Path, told: dict[str, str | int] | None, expected: tuple[str, int]
) -> None:
    database = tmp_path / "a.duckdb"
    run_job(database, {"a.jsonl": ["x"]})
    with Reader.open(database) as reader:
        runs = reader.summary()
    if told is not None:
        write_status(database, {"run_id": str(runs[0].run_id), **told})
    [run] = add_told_end(runs, None if told is None else read_status(database))
    assert (run.status, run.exit_code) == expected
    assert (run.summary or {}).get("error") == ("the disk is full" if expected[1] else None)


def test_run_that_could_not_record_its_end_ended_when_its_status_was_written(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    store = Store.open(database)
    run = make_run()
    store.begin_run(run, TASK, [make_file()], "body")
    store.tell_end({"run_id": str(run.run_id), "status": "failed", "exit_code": 4})
    store.close()
    with Reader.open(database) as reader:
        [before] = reader.summary()
    assert (before.status, before.ended_at) == (None, None)
    [after] = add_told_end([before], read_status(database))
    assert (after.status, after.exit_code) == (RunStatus.FAILED, 4)
    assert after.ended_at is not None


def test_a_pipe_in_the_place_of_the_status_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.duckdb.status.json")
    assert read_status(tmp_path / "a.duckdb") is None
