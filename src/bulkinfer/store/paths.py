"""The files that belong to one database, and what can be said of them without DuckDB.

What opens the database file says so. It may not be called in the process that has the database open for writing:
closing any file descriptor of it drops DuckDB's own lock, and another process could then overwrite what is committed.
"""

import fcntl
import hashlib
import os
import shutil
import stat
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bulkinfer.errors import StoreError

MIN_FREE_BYTES = 512 * 1024 * 1024
"""A run does not start with less: the write-ahead log alone may grow to 64 MB before it is folded into the file."""

_MAX_NAME_BYTES = 200
"""A file name holds 255."""
_MAX_SOCKET_NAME_BYTES = 80
"""An address holds 107 bytes; `reach_socket` needs some for itself."""
_MAGIC = b"DUCK"
_MAGIC_OFFSET = 8
_FLOCK_LAYOUT = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid


def resolve_database(path: Path) -> Path:
    """The real path of a database, links followed, so that one database has one lock and one status file.

    Raises StoreError for a path that names no file, or one that DuckDB reads otherwise: it takes `\\` for `/`, and what
    follows `?` for parameters, so that the log would lie elsewhere.
    """
    resolved = path.expanduser().resolve()
    if not resolved.name:
        raise StoreError(f"{path}: is a folder; output.database must name a file")
    if any(sign in "?\\" or "\ud800" <= sign <= "\udfff" for sign in str(resolved)):
        raise StoreError(f"{path}: a database's path cannot hold ?, \\ or bytes that are not UTF-8")
    if len(os.fsencode(resolved.name)) > _MAX_NAME_BYTES:
        raise StoreError(f"{path}: a database's name may have {_MAX_NAME_BYTES} bytes: files beside it need more")
    return resolved


def lock_path(database: Path) -> Path:
    """`<database>.lock`, beside the real file."""
    return _beside(database, ".lock")


def status_path(database: Path) -> Path:
    """`<database>.status.json`, beside the real file."""
    return _beside(database, ".status.json")


def wal_path(database: Path) -> Path:
    """`<database>.wal`: DuckDB's write-ahead log. It holds commits that are not in the database file yet."""
    return _beside(database, ".wal")


def measure_database(database: Path) -> int:
    """Bytes of a database and its write-ahead log, as far as they can be seen."""
    num_bytes = 0
    for path in (database, wal_path(database)):
        with suppress(OSError):
            num_bytes += path.stat().st_size
    return num_bytes


def socket_path(database: Path) -> Path:
    """`<database>.sock`: where a live run answers questions. A name that is too long for that gives way to a hash."""
    path = _beside(database, ".sock")
    name = os.fsencode(path.name)
    if len(name) <= _MAX_SOCKET_NAME_BYTES:
        return path
    return path.with_name(f".{hashlib.sha256(name).hexdigest()[:32]}.sock")


def engine_log_path(database: Path, replica: int = 0) -> Path:
    """`<database>.engine.log`: what the engine of the last run that had one wrote; `.engine-1.log` for a second, ..."""
    return _beside(database, f".engine-{replica}.log" if replica else ".engine.log")


@contextmanager
def reach_socket(path: Path) -> Iterator[str]:
    """A name for a socket that is short enough, valid within the block: an address holds 107 bytes, a path more.

    Raises OSError when its folder cannot be opened.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def spill_path(database: Path) -> Path:
    """`<database>.tmp`: the folder for what does not fit into the memory of who writes; DuckDB makes and removes it."""
    return _beside(database, ".tmp")


def clear_spill(database: Path) -> None:
    """Remove what a killed process left in the spill folder: of no use, and full of answers. For who has the lock."""
    for left in spill_path(database).glob("duckdb_temp_*"):
        with suppress(OSError):
            left.unlink()


def trial_path(database: Path) -> Path:
    """`<database>.repair`: the folder of a repair, while it lasts."""
    return _beside(database, ".repair")


def find_kept_logs(database: Path) -> list[Path]:
    """`<database>.wal.corrupt-<UTC time>`: damaged logs that repairs have set aside, the oldest first."""
    wal = wal_path(database)
    beginning = f"{wal.name}.corrupt-"
    return sorted(path for path in wal.parent.iterdir() if path.name.startswith(beginning))


def has_remains(path: Path) -> bool:
    """Whether a database is or was here: its log or its status file is."""
    return wal_path(path).is_file() or status_path(path).is_file()


def is_database(path: Path) -> bool:
    """Whether a file is a DuckDB database by its first bytes; False as well when it is missing or cannot be read.

    It opens the file: not for the process that writes to it (see the module).
    """
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(_MAGIC_OFFSET + len(_MAGIC))[_MAGIC_OFFSET:] == _MAGIC
    except OSError:
        return False


def prepare_folder(database: Path) -> None:
    """Make sure that a database can be created and written in its folder.

    The folder is created when only its last level is missing; a longer missing path is more likely a typing error.
    Raises StoreError: folder missing, not a folder, not writable, or less than `MIN_FREE_BYTES` free.
    """
    folder = database.parent
    try:
        if not folder.exists():
            folder.mkdir()
    except FileNotFoundError as error:
        raise StoreError(f"{database}: the folder {folder.parent} does not exist; create it first") from error
    except OSError as error:
        raise StoreError(f"{database}: cannot create the folder {folder}: {error.strerror}") from error
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        raise StoreError(f"{database}: cannot write in the folder {folder}: {error.strerror}") from error
    if free_bytes < MIN_FREE_BYTES:
        raise StoreError(
            f"{database}: only {free_bytes // 2**20} MB are free in {folder}, a run needs at least "
            f"{MIN_FREE_BYTES // 2**20} MB; free some space or put the database elsewhere"
        )


def check_is_database(database: Path) -> None:
    """Raise StoreError unless the file is there, readable and a DuckDB database by its first bytes. It opens it."""
    try:
        mode = database.stat().st_mode
    except FileNotFoundError as error:
        raise StoreError(f"{database}: there is no database yet; `bulkinfer run` creates it") from error
    except OSError as error:
        raise StoreError(f"{database}: cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise StoreError(f"{database}: is a folder or a special file, not a database")
    if not os.access(database, os.R_OK):
        raise StoreError(f"{database}: no permission to read it")
    if not is_database(database):
        raise StoreError(
            f"{database}: is not a DuckDB database; name another file in output.database, or move this one away"
        )


def find_locking_pid(database: Path, *, for_writing: bool) -> int | None:
    """The process that keeps DuckDB from opening the file, by asking the kernel for a conflicting lock; None: nobody.

    Locks of this very process are not seen. It opens the file: only for a process that has it not open.
    """
    kind = fcntl.F_WRLCK if for_writing else fcntl.F_RDLCK
    descriptor = os.open(database, os.O_RDONLY | os.O_CLOEXEC)
    try:
        wanted = struct.pack(_FLOCK_LAYOUT, kind, os.SEEK_SET, 0, 0, 0)
        found = struct.unpack(_FLOCK_LAYOUT, fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))
    finally:
        os.close(descriptor)
    return None if found[0] == fcntl.F_UNLCK else int(found[4])


def _beside(database: Path, suffix: str) -> Path:
    real = resolve_database(database)
    return real.with_name(real.name + suffix)
