"""The lock that makes one run the only writer of a database: an `flock` on `<database>.lock`, with who holds it inside.

DuckDB's own lock is not enough: it is a POSIX lock, which any `close` of the file within the process drops. An `flock`
belongs to the open file, dies with the process, and works for a process on the same machine. The lock file is never
deleted: a deleted one could be locked by two at once.
"""

import fcntl
import os
import socket
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson
import psutil

from bulkinfer.errors import StoreError, StoreLocked
from bulkinfer.store.paths import lock_path

_PROBE_LIMIT_S = 5.0
_PROBE_PAUSE_S = 0.01
_NAMING_LIMIT_S = 1.0
"""A new holder writes itself down within a millisecond of its lock, unless its machine is very busy."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The run that holds a database."""

    pid: int
    host: str
    started_at: str
    """ISO 8601, UTC."""
    job: str
    """Path of its job file."""

    def describe(self) -> str:
        """For a message: pid, host, start, job."""
        return f"pid {self.pid} on {self.host}, started {self.started_at}, job {self.job}"


class RunLock:
    """Held from `acquire` to `release`, or to the end of the process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._pid = os.getpid()

    @classmethod
    def acquire(cls, database: Path, job: str) -> "RunLock":
        """Take the lock of a database, at once or not at all.

        Raises StoreLocked naming the run that holds it, StoreError when the lock file cannot be written.
        """
        path = lock_path(database)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"{path}: the lock file cannot be opened: {error.strerror}") from error
        try:
            _lock_exclusively(descriptor, database)
            _write_holder(descriptor, job)
        except OSError as error:
            os.close(descriptor)
            raise StoreError(f"{path}: the lock file cannot be locked or written: {error.strerror}") from error
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor)

    def release(self) -> None:
        """Let the next run in. Safe twice; does nothing in a forked child, whose parent still holds the lock."""
        if self._descriptor < 0 or os.getpid() != self._pid:
            return
        # Unlock before closing: a child that was forked meanwhile shares the open file and would keep the lock.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)
        self._descriptor = -1


def read_holder(database: Path) -> Holder | None:
    """The live run that holds the lock of a database on this machine, or None. Raises StoreError: lock unreadable."""
    path = lock_path(database)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: the lock file cannot be read: {error.strerror}") from error
    try:
        return None if _try_flock(descriptor, fcntl.LOCK_SH) else _wait_for_holder(descriptor)
    except OSError as error:
        raise StoreError(f"{path}: the lock file cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)


def locked_error(database: Path, holder: Holder) -> StoreLocked:
    """The error that names the run which holds a database."""
    return StoreLocked(
        f"{database}: another run holds this database ({holder.describe()}); try again when it has ended"
    )


def _lock_exclusively(descriptor: int, database: Path) -> None:
    """Lock, or raise StoreLocked when a run has it. A `read_holder` elsewhere holds it shared for an instant: retry."""
    limit_s = time.monotonic() + _PROBE_LIMIT_S
    while not _try_flock(descriptor, fcntl.LOCK_EX):
        if not _try_flock(descriptor, fcntl.LOCK_SH) or time.monotonic() > limit_s:
            raise locked_error(database, _wait_for_holder(descriptor))
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        time.sleep(_PROBE_PAUSE_S)


def _try_flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_holder(descriptor: int, job: str) -> None:
    holder = Holder(os.getpid(), socket.gethostname(), datetime.now(UTC).isoformat(timespec="seconds"), job)
    content = orjson.dumps(asdict(holder))
    os.pwrite(descriptor, content, 0)
    os.ftruncate(descriptor, len(content))


def _wait_for_holder(descriptor: int) -> Holder:
    """Who holds the lock. Until that is written down, the file is empty or names the run before: wait for it."""
    until_s = time.monotonic() + _NAMING_LIMIT_S
    while not _may_live(holder := _parse_holder(descriptor)) and time.monotonic() < until_s:
        time.sleep(_PROBE_PAUSE_S)
    return holder


def _may_live(holder: Holder) -> bool:
    """Whether the holder can be the one that has the lock; of another host's processes nothing is known here."""
    is_here = holder.pid == 0 or holder.host == socket.gethostname()
    return not is_here or psutil.pid_exists(holder.pid)


def _parse_holder(descriptor: int) -> Holder:
    """Who wrote the lock file; with pid 0 when nobody has, or nothing that can be read."""
    try:
        content = orjson.loads(os.pread(descriptor, 65536, 0))
        return Holder(int(content["pid"]), str(content["host"]), str(content["started_at"]), str(content["job"]))
    except (ValueError, KeyError, TypeError):
        return Holder(0, "an unknown host", "just now", "unknown")
