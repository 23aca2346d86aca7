"""One run at a time, and others are told which."""

import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

from bulkinfer.errors import ExitCode, StoreError, StoreLocked
from bulkinfer.store import Reader, Store, read_holder
from bulkinfer.store.lock import Holder, RunLock, locked_error
from tests.unit.store_support import QUICK, run_job

_HOLD = """
import sys
from pathlib import Path
from bulkinfer.store import Store
store = Store.open(Path(sys.argv[1]), job="night.yaml")
print("ready", flush=True)
sys.stdin.read()
store.close()
"""
_READ = """
import sys, duckdb
connection = duckdb.connect(sys.argv[1], read_only=True)
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def other_process(script: str, database: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that has the database open until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.communicate(timeout=20)


def test_second_run_is_told_who_holds_the_database(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    with other_process(_HOLD, database) as process:
        for attempt in (Store.open, Reader.open):
            with pytest.raises(StoreLocked, match=rf"pid {process.pid} on .*job night\.yaml") as caught:
                attempt(database)
            assert str(database) in str(caught.value)
            assert caught.value.exit_code is ExitCode.LOCKED
        holder = read_holder(database)
        assert holder is not None
        assert (holder.pid, holder.job) == (process.pid, "night.yaml")
    assert read_holder(database) is None
    Store.open(database).close()


def test_killed_run_leaves_no_lock(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    with other_process(_HOLD, database) as process:
        process.kill()
        process.wait(timeout=20)
    assert (tmp_path / "a.duckdb.lock").exists()
    assert read_holder(database) is None
    assert run_job(database, {"a.jsonl": ["x"]}) == {"x"}


def test_second_store_in_the_same_process_is_refused(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    store = Store.open(database)
    with pytest.raises(StoreLocked, match=f"pid {os.getpid()}"):
        Store.open(database)
    store.close()


def test_link_to_a_database_has_the_same_lock(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    store = Store.open(database)
    link = tmp_path / "other" / "b.duckdb"
    link.parent.mkdir()
    link.symlink_to(database)
    with pytest.raises(StoreLocked):
        Store.open(link)
    assert read_holder(link) == read_holder(database)
    store.close()


def test_reading_process_is_waited_for_and_then_named(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    Store.open(database).close()
    with other_process(_READ, database) as process:
        with pytest.raises(StoreLocked, match=f"process {process.pid} has this database open"):
            Store.open(database, limits=QUICK)
        assert read_holder(database) is None
        assert process.stdin is not None
        process.stdin.close()  # the reader ends while the store waits for it
        Store.open(database).close()
        process.stdin = None


def test_foreign_writer_is_named_to_a_reader(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    Store.open(database).close()
    with other_process(_READ.replace(", read_only=True", ""), database) as process:
        for attempt in (Store.open, Reader.open):
            with pytest.raises(StoreLocked, match=f"process {process.pid} has this database open"):
                attempt(database) if attempt is Reader.open else Store.open(database, limits=QUICK)


def test_probe_of_another_process_does_not_keep_a_run_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looks whether a run lives holds the lock shared for an instant; here until the run waits once."""
    database = tmp_path / "a.duckdb"
    RunLock.acquire(database, "job.yaml").release()
    with (tmp_path / "a.duckdb.lock").open() as probe:
        fcntl.flock(probe, fcntl.LOCK_SH)
        monkeypatch.setattr("time.sleep", lambda _s: fcntl.flock(probe, fcntl.LOCK_UN))
        RunLock.acquire(database, "job.yaml").release()


def test_lock_file_without_sense_still_locks(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    lock = RunLock.acquire(database, "job.yaml")
    (tmp_path / "a.duckdb.lock").write_text("no json")
    assert read_holder(database) == Holder(0, "an unknown host", "just now", "unknown")
    lock.release()
    lock.release()
    assert read_holder(database) is None


@pytest.mark.parametrize("before", ["", "the one that ended"], ids=["new", "used"])
def test_holder_that_is_just_about_to_write_itself_down_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Starts that overlap: the second is told of the first, not of nobody or of the run before."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(timeout=20)
    database = tmp_path / "a.duckdb"
    path = tmp_path / "a.duckdb.lock"

    def write(pid: int) -> None:
        holder = {"pid": pid, "host": socket.gethostname(), "started_at": "now", "job": "night.yaml"}
        path.write_text(json.dumps(holder), encoding="utf-8")

    for attempt in (lambda: RunLock.acquire(database, "job.yaml"), lambda: require(read_holder(database), database)):
        path.write_text("")
        if before:
            write(ended.pid)
        with path.open() as first:
            fcntl.flock(first, fcntl.LOCK_EX)
            monkeypatch.setattr("time.sleep", lambda _s: write(os.getpid()))
            with pytest.raises(StoreLocked, match=f"pid {os.getpid()} on "):
                attempt()


def require(holder: Holder | None, database: Path) -> None:
    assert holder is not None
    raise locked_error(database, holder)


def test_lock_file_is_rewritten_whole(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    RunLock.acquire(database, "a-very-long-name-" * 20).release()
    RunLock.acquire(database, "b").release()
    assert json.loads((tmp_path / "a.duckdb.lock").read_text())["job"] == "b"


def test_store_stays_locked_when_its_file_is_only_looked_at(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    store = Store.open(database)
    database.read_bytes()  # drops DuckDB's own lock; ours is another
    with pytest.raises(StoreLocked):
        Store.open(database)
    store.close()
    duckdb.connect(database).close()


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/full"), Path.mkdir])
def test_a_lock_file_that_cannot_be_one_is_named(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "a.duckdb.lock")
    with pytest.raises(StoreError, match=r"a\.duckdb\.lock: the lock file cannot be"):
        Store.open(tmp_path / "a.duckdb")
