"""The store of a run: the only writer of a database. It owns the lock, the connection and the writer thread.

Every outcome goes through `add`; it is on disk when `on_commit` says so, or when `flush` returns. Whatever ends the
writer thread is raised at the next call.
"""

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import duckdb

from bulkinfer.errors import BulkinferError, StoreError, StoreStalled
from bulkinfer.records import (
    Commit,
    DocumentRow,
    Failure,
    JsonValue,
    Outcome,
    PartAnswer,
    RunStatus,
    Scan,
    SourceFile,
)
from bulkinfer.store import lookups, runs
from bulkinfer.store.commit import commit_pending
from bulkinfer.store.connections import Connections
from bulkinfer.store.database import explain_error
from bulkinfer.store.listener import Listener
from bulkinfer.store.lock import RunLock
from bulkinfer.store.paths import clear_spill, measure_database, prepare_folder, resolve_database, wal_path
from bulkinfer.store.questions import Questions
from bulkinfer.store.queue import CommitLimits, CommitQueue, Pending
from bulkinfer.store.reader import Reader
from bulkinfer.store.runs import RunRecord, TaskRecord
from bulkinfer.store.samples import SampleClock, SampleLine
from bulkinfer.store.stall import run_within, stalled_error
from bulkinfer.store.status import count_lost_commits, read_status, write_status

_T = TypeVar("_T")
_TELL_LIMIT_S = 2.0


def _ignore_commit(_commit: Commit) -> None:
    """Nobody listens."""


class Store(Questions):
    """Open, `begin_run`, then any number of `add_rows`, `add` and lookups from any thread, `end_run`, `close`."""

    def __init__(
        self,
        path: Path,
        lock: RunLock,
        on_commit: Callable[[Commit], None],
        limits: CommitLimits,
        is_stopped: Callable[[], bool],
    ) -> None:
        """Not for callers: `open` does the checks and takes the lock."""
        self.path = path
        self.status_source: Callable[[], Mapping[str, JsonValue]] | None = None
        """What the status file shall say at each commit; called from the writer thread."""
        self.samples = SampleClock()
        """What is written of the run every few seconds, once `samples.source` is set."""
        self._lock = lock
        self._on_commit = on_commit
        self._limits = limits
        self._pid = os.getpid()
        self._connections = Connections(path, limits.lock_wait_s, limits.retry_waits_s, is_stopped)
        self._queue = CommitQueue(path, limits)
        self._writer = threading.Thread(target=self._run_writer, name="bulkinfer-store", daemon=True)
        self._run: RunRecord | None = None
        self._task: TaskRecord | None = None
        self._last_rows: dict[UUID, int] = {}
        self._seq = 0
        self._database_id = ""
        self._num_commits = 0
        self._is_settled = False
        self._is_closed = False
        self._listener: Listener | None = None

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        job: str = "",
        on_commit: Callable[[Commit], None] = _ignore_commit,
        limits: CommitLimits | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> "Store":
        """Take a database for one run; create it when it is not there, and its folder when only that level is missing.

        `job` is the job file's path, for those who find the database locked. `on_commit` is called from the writer
        thread once a commit is on disk. Raises StoreLocked at once when another run holds it, and after
        `limits.lock_wait_s`, or once `is_stopped`, when other processes keep it open for reading; StoreError when it
        cannot be written or is not ours; StoreStalled when the disk does not answer.
        """
        limits = limits or CommitLimits()
        database = resolve_database(path)
        try:
            lock = run_within(limits.stall_limit_s, lambda: _take(database, job))
        except TimeoutError as error:
            raise stalled_error(database, limits.stall_limit_s) from error
        store = cls(database, lock, on_commit, limits, is_stopped)
        try:
            store._within_limit(store._open_database, wait_s=limits.lock_wait_s)
        except StoreStalled:
            store._connections.abandon()
            raise
        except BaseException:
            store._connections.close()
            store._lock.release()
            raise
        store._writer.start()
        return store

    def begin_run(
        self,
        run: RunRecord,
        task: TaskRecord,
        files: Sequence[SourceFile],
        layout: str,
        verdicts: Mapping[UUID, bool] | None = None,
    ) -> list[Scan]:
        """Record the run, its task and its input, in one transaction; the scans come back in the order of `files`.

        `layout` is what of the job makes a row's hash and id: a scan of another layout is not used again. Rows of a
        scan above its `num_known_rows` are still to be given to `add_rows`. `verdicts` says of scans that
        `find_unsettled` named whether the files hold what they list: a scan that does not hold is not used again.
        Raises StoreError.
        """
        scans = self._write(
            lambda connection: runs.begin_run(connection, run, task, files, layout, verdicts or {}), "recording the run"
        )
        self._run, self._task = run, task
        self._last_rows = {scan.scan_id: scan.num_known_rows for scan in scans}
        return scans

    def add_rows(self, rows: Sequence[DocumentRow], ended_scans: Sequence[UUID] = ()) -> None:
        """Queue input rows, each scan's in ascending order; rows that the store knows already are dropped.

        `ended_scans` have no rows but those given until now. All is committed before, or together with, any outcome
        queued after it. Blocks and raises as `add` does.
        """
        self._connections.check_process()
        unknown = self._drop_known(rows)
        self._queue.put(unknown, (), {scan_id: self._last_rows[scan_id] for scan_id in ended_scans})

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Queue outcomes. Blocks while the writer is behind.

        Raises StoreError when the writer thread has ended, StoreStalled when one commit takes longer than
        `limits.stall_limit_s`: nothing more can be stored.
        """
        self._connections.check_process()
        self._queue.put((), outcomes)

    def add_parts(self, parts: Sequence[PartAnswer]) -> None:
        """Queue answers to parts of documents. Blocks and raises as `add` does."""
        self._connections.check_process()
        self._queue.put((), (), parts=parts)

    def flush(self) -> None:
        """Return when all that was queued is on disk. Raises as `add` does."""
        self._connections.check_process()
        self._queue.flush()

    def create_reader(self) -> Reader:
        """A reader on the live database, for another thread. It sees what is committed; it ends with the store."""
        cursor = self._connections.create_cursor()
        return Reader(self.path, cursor, lambda: self._connections.close_cursor(cursor))

    def listen(self, client_timeout_s: float) -> None:
        """Answer the questions of other processes on a socket beside the database, until `close`.

        A client that says nothing or does not read for `client_timeout_s` seconds is dropped. Raises StoreError when
        there can be no socket; a run can do without.
        """
        self._listener = Listener(self.path, self.create_reader, self._describe, client_timeout_s)
        self._connections.drop_readers = self._listener.drop_clients

    def end_run(self, status: RunStatus, exit_code: int, summary: Mapping[str, JsonValue]) -> None:
        """Flush, then record how the run ended. Raises StoreError."""
        run, _ = self._begun()
        self.flush()
        line = SampleLine(self.samples.take_if_due(is_last=True))

        def write_end(connection: duckdb.DuckDBPyConnection) -> None:
            runs.end_run(connection, run.run_id, status, exit_code, summary)
            line.insert(connection, run.run_id, self._seq)

        self._write(write_end, "recording the end of the run")
        self._within_limit(self._write_status)

    def check(self) -> None:
        """Raise as `add` does, without waiting: for a run that has nothing to store for a while."""
        self._queue.check()

    @property
    def is_stalled(self) -> bool:
        """Whether the database hangs: no thread that uses it may be waited for."""
        return self._queue.is_stalled

    def settle(self) -> None:
        """Write what is queued and fold the log into the file. Nothing can be stored afterwards. Safe twice.

        Raises what ended the writer thread, unless a call before did; StoreError when the file cannot be written.
        """
        if self._is_settled:
            return
        self._is_settled = True
        self._stop_listener()
        self._stop_writer()
        if not self.is_stalled:
            self._within_limit(self._fold_log_in)

    def tell_end(self, summary: Mapping[str, JsonValue]) -> None:
        """Let the status file say how a run ended that could not record it in the database; if that can be written.

        It waits a moment at most.
        """
        with suppress(TimeoutError):
            run_within(_TELL_LIMIT_S, lambda: self._write_status(summary, is_last=True))

    def close(self) -> None:
        """Settle, close, and let the next run in. Safe twice.

        Raises as `settle` does. Whatever happens the lock is released; but not while a thread hangs in the database:
        then everything stays as it is until the process ends.
        """
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        try:
            self.settle()
        finally:
            if not self.is_stalled:
                with suppress(StoreError):  # everything is on disk
                    self._within_limit(self._connections.close)
            if self.is_stalled:
                self._connections.abandon()
            else:
                self._lock.release()

    def _fold_log_in(self) -> None:
        self._connections.checkpoint()
        self._connections.check_file()

    def _open_database(self) -> None:
        """Open, and compare with what the status file says of it: DuckDB does not notice when its log was removed."""
        self._connections.open()
        self._database_id, self._num_commits = self._connections.read(lookups.identify)
        num_lost = count_lost_commits(read_status(self.path), self._database_id, self._num_commits)
        if num_lost:
            raise StoreError(
                f"{self.path}: {num_lost} commits are missing that were on disk before; was {wal_path(self.path)} "
                f"moved, deleted or damaged, or an older copy put back? Put the log back; or let `bulkinfer repair "
                f"{self.path}` keep what is there, and run again: lost documents are asked again"
            )

    def _run_writer(self) -> None:
        """The writer thread. It ends when the queue is closed and empty, or with an error that all others get."""
        try:
            while (pending := self._queue.take()) is not None:
                self._commit(pending)
                self._queue.mark_committed()
        except BulkinferError as error:
            self._queue.fail(error)
        finally:
            bug = sys.exception()
            if bug is not None:
                self._queue.fail(bug)

    def _commit(self, pending: Pending) -> None:
        run, task = self._begun()
        began_s = time.monotonic()
        seq = self._seq + 1
        line = SampleLine(self.samples.take_if_due())
        written = self._connections.write(
            lambda connection: commit_pending(connection, run.run_id, task.task_fingerprint, seq, pending, line),
            "a commit",
        )
        self._seq = seq
        self._num_commits += 1
        hashes = tuple(outcome.document_hash for outcome in pending.outcomes)
        codes = Counter(outcome.code for outcome in pending.outcomes if isinstance(outcome, Failure))
        self._on_commit(
            Commit(
                seq,
                written.num_results,
                written.num_failures,
                hashes,
                codes,
                time.monotonic() - began_s,
                measure_database(self.path),
                tuple(part.part_hash for part in pending.parts),
            )
        )
        self._write_status()

    def _read(self, query: Callable[[duckdb.DuckDBPyConnection], _T]) -> _T:
        """Look up; once again after the writer, if it was in trouble, has reopened the database.

        Where memory was short, it may be a client that has it: none shall end a run, so all are sent away first.
        """
        try:
            return self._within_limit(lambda: self._connections.read(query))
        except StoreStalled:
            raise
        except duckdb.OutOfMemoryException:
            self._connections.drop_readers()
            self.flush()
        except (duckdb.Error, StoreError):
            self.flush()
        try:
            return self._within_limit(lambda: self._connections.read(query))
        except duckdb.Error as error:
            raise explain_error(error, self.path, "a lookup") from error

    def _drop_known(self, rows: Sequence[DocumentRow]) -> list[DocumentRow]:
        unknown = []
        for row in rows:
            if row.row > self._last_rows[row.scan_id]:
                self._last_rows[row.scan_id] = row.row
                unknown.append(row)
        return unknown

    def _write(self, transaction: Callable[[duckdb.DuckDBPyConnection], _T], action: str) -> _T:
        return self._within_limit(lambda: self._connections.write(transaction, action))

    def _within_limit(self, action: Callable[[], _T], *, wait_s: float = 0.0) -> _T:
        try:
            return run_within(self._limits.stall_limit_s + wait_s, action)
        except TimeoutError as error:
            raise self._queue.fail_stalled() from error

    def _write_status(self, status: Mapping[str, JsonValue] | None = None, *, is_last: bool = False) -> None:
        write_status(self.path, self._describe(status), is_last=is_last)

    def _describe(self, status: Mapping[str, JsonValue] | None = None) -> Mapping[str, JsonValue]:
        if status is None:
            status = {} if self.status_source is None else self.status_source()
        return {**status, "database_id": self._database_id, "num_commits": self._num_commits}

    def _stop_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _stop_writer(self) -> None:
        self._queue.close()
        self._queue.wait_for_end()
        if not self.is_stalled:
            self._writer.join()

    def _begun(self) -> tuple[RunRecord, TaskRecord]:
        assert self._run is not None, "begin_run comes first"
        assert self._task is not None
        return self._run, self._task


def _take(database: Path, job: str) -> RunLock:
    """The lock of a database whose folder can be written."""
    prepare_folder(database)
    lock = RunLock.acquire(database, job)
    clear_spill(database)
    return lock
