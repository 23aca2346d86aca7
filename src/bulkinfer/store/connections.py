"""The connections of the one process that writes: its transactions and lookups, and reopening when DuckDB gives up.

A database that met an error once may be dead as a whole ("invalidated"), so every failed transaction closes it, opens
it anew and tries again. The caller holds the run lock.
"""

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar, cast

import duckdb

from bulkinfer.errors import StoreError
from bulkinfer.retry import retry_commit
from bulkinfer.store.database import explain_error, open_for_writing

_T = TypeVar("_T")
_MIN_DATABASE_BYTES = 3 * 4096
"""DuckDB's three headers."""
_CLOSE_LIMIT_S = 10.0
_CLOSE_PAUSE_S = 0.01
_FAULTS = (duckdb.Error, StoreError)
_Transaction = Callable[[duckdb.DuckDBPyConnection], _T]


class _FileLostError(Exception):
    """The database file is not there any more: to try again would only make a new one."""


class Connections:
    """One connection that writes, one that looks up, each for one thread at a time; more come from `create_cursor`."""

    def __init__(
        self,
        path: Path,
        lock_wait_s: float,
        retry_waits_s: tuple[float, ...],
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Opens nothing yet. `retry_waits_s` are the pauses before a transaction is tried again.

        `is_stopped`: other processes that have the database open are not waited for any longer.
        """
        self._is_stopped = is_stopped
        self.drop_readers: Callable[[], None] = lambda: None
        """Called when all is closed: whoever reads in threads of their own must let go."""
        self._path = path
        self._lock_wait_s = lock_wait_s
        self._retry_waits_s = retry_waits_s
        self._pid = os.getpid()
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._changing = threading.Lock()
        """Of what is open: a cursor that is made while the rest is closed would keep the dead database alive."""
        self._inode: tuple[int, int] | None = None
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._lookup_cursor: duckdb.DuckDBPyConnection | None = None
        self._cursors: list[duckdb.DuckDBPyConnection] = []
        _keep_open_in_forked_children(self)

    def open(self) -> None:
        """Open or create the database, without trying twice. Raises StoreError or StoreLocked."""
        self._check_file()
        if self._cursors:
            self._close_cursors()
        self._connection = open_for_writing(self._path, self._lock_wait_s, self._is_stopped)
        if self._inode is None:
            self._inode = _find_inode(self._path)

    def write(self, transaction: _Transaction[_T], action: str) -> _T:
        """Run a transaction and commit it; after an error, reopen the database and run it again, `retry_waits_s` times.

        An error may come after the commit reached the disk, so `transaction` must look what is there. Raises
        StoreError, in which `action` says what failed.
        """
        self.check_process()
        with self._writing:
            try:
                return cast(_T, retry_commit(self._retry_waits_s, _FAULTS)(self._attempt, transaction))
            except duckdb.Error as error:
                raise explain_error(error, self._path, action) from error
            except _FileLostError as error:
                self.close()
                raise StoreError(str(error)) from error

    def read(self, query: _Transaction[_T]) -> _T:
        """Run a query beside the writer, on committed data. Raises duckdb.Error, or StoreError while it is closed."""
        self.check_process()
        with self._reading:
            if self._lookup_cursor is None:
                self._lookup_cursor = self.create_cursor()
            return query(self._lookup_cursor)

    def create_cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection for one other thread. It ends with `close`. Raises StoreError while the database is closed."""
        self.check_process()
        with self._changing:
            if self._connection is None:
                raise StoreError(f"{self._path}: the database is closed")
            cursor = self._connection.cursor()
            self._cursors.append(cursor)
            return cursor

    def close_cursor(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Close one that `create_cursor` made. Safe twice, and after `close`."""
        with self._changing:
            if cursor in self._cursors:
                self._cursors.remove(cursor)
        _close_soon(cursor)

    def checkpoint(self) -> None:
        """Fold the write-ahead log into the file, so that the file alone is complete. Raises StoreError."""
        if self._connection is None:
            return
        try:
            self._connection.execute("checkpoint")
        except duckdb.Error as error:
            raise explain_error(error, self._path, "the last checkpoint (all commits are on disk)") from error

    def close(self) -> None:
        """Close everything, without a checkpoint. Nothing happens in a forked child: it would delete the log."""
        if os.getpid() != self._pid:
            return
        with self._changing:
            connection, self._connection = self._connection, None
            for cursor in self._cursors:
                _interrupt(cursor)
        self.drop_readers()
        with self._reading:
            self._lookup_cursor = None
            self._close_cursors()
            if connection is not None:
                connection.close()

    def abandon(self) -> None:
        """Leave everything as it is, for good: a thread hangs in it, and to close or to free it would hang as well."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def check_file(self) -> None:
        """Raise StoreError when the file of this name is not the one that was opened: DuckDB would not notice."""
        try:
            self._check_file()
        except _FileLostError as error:
            raise StoreError(str(error)) from error

    def check_process(self) -> None:
        """Raise StoreError in a forked child of the process that opened the database."""
        if os.getpid() != self._pid:
            raise StoreError(f"{self._path}: belongs to process {self._pid}; a forked child must not use it")

    def _close_cursors(self) -> None:
        """Raises StoreError when a statement in one of them does not end: the database must not be opened beside it."""
        with self._changing:
            self._cursors = [cursor for cursor in self._cursors if not _close_soon(cursor)]
            if self._cursors:
                raise StoreError(f"{self._path}: a statement of another process could not be ended")

    def _attempt(self, transaction: _Transaction[_T]) -> _T:
        try:
            return self._transact(transaction)
        except _FAULTS:
            self.close()
            raise

    def _check_file(self) -> None:
        # Only from outside: to open the file here would drop DuckDB's lock.
        if self._inode is not None and _find_inode(self._path) != self._inode:
            raise _FileLostError(
                f"{self._path}: was deleted, replaced or cut short while the run wrote to it, and what it held is gone "
                "with it. Put it back, or run again to compute all anew"
            )

    def _transact(self, transaction: _Transaction[_T]) -> _T:
        if self._connection is None:
            self.open()
        assert self._connection is not None
        self._connection.begin()
        self._check_file()
        result = transaction(self._connection)
        self._connection.commit()
        return result


def _interrupt(cursor: duckdb.DuckDBPyConnection) -> None:
    with suppress(duckdb.ConnectionException):  # closed already
        cursor.interrupt()


def _close_soon(cursor: duckdb.DuckDBPyConnection) -> bool:
    """Close a connection that another thread may be using: DuckDB refuses that while a statement runs. Did it work?"""
    until_s = time.monotonic() + _CLOSE_LIMIT_S
    while True:
        try:
            cursor.close()
        except duckdb.Error:
            if time.monotonic() > until_s:
                return False
            _interrupt(cursor)
            time.sleep(_CLOSE_PAUSE_S)
        else:
            return True


def _find_inode(path: Path) -> tuple[int, int] | None:
    """Device and inode of a database file; None where there is none, or one too short to be a database."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found.st_size >= _MIN_DATABASE_BYTES else None


def _keep_open_in_forked_children(connections: Connections) -> None:
    """In a forked child, never run DuckDB's destructors: they would checkpoint and delete the parent's log."""
    reference = weakref.ref(connections)

    def keep() -> None:
        alive = reference()
        if alive is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(alive))

    os.register_at_fork(after_in_child=keep)
