"""DuckDB's door: settings, opening for writing or for reading, the schema, and DuckDB's errors told as ours."""

import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from uuid import uuid4

import duckdb

from bulkinfer import __version__
from bulkinfer.errors import StoreError, StoreLocked
from bulkinfer.store.paths import check_is_database, find_locking_pid, spill_path, wal_path

SCHEMA_VERSION = 1

NO_ROOM = (duckdb.OutOfMemoryException, duckdb.TransactionException)
"""What opening raises where a log does not fit into memory, nor into the temporary folder. A damaged log is
`duckdb.Error` itself, one of another database `duckdb.IOException`."""

_LOCK_PAUSE_S = 0.05

# Measured for the write path: the default threshold of 16 MB checkpoints so often that the slowest commits take half a
# second, and leaves a file 1.6 times as large; 64 MB takes as much time and space as 256 MB. A log that is not
# folded in counts as memory, and so do the blocks that were read: with 64 MB of log and a limit of 160 MB a run over
# three million rows peaks at 485 MB instead of 579 MB, for 2 % more processor time. Counting ten million failures fits.
_WRITE_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "wal_autocheckpoint": "64MB",
    "memory_limit": "160MB",
    "threads": 2,
    "enable_external_file_cache": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
    "arrow_lossless_conversion": True,
}
_READ_SETTINGS = {name: value for name, value in _WRITE_SETTINGS.items() if name != "wal_autocheckpoint"}
_READ_SETTINGS["memory_limit"] = "1GB"
_SCRATCH_SETTINGS = _READ_SETTINGS | {"memory_limit": "600MB"}  # a plan has one, and one for reading, open at once


_ADDITION = re.compile(
    r"^(?:create|alter) table (?:if not exists )?(\w+)(?: add column if not exists (\w+))?", re.MULTILINE
)
"""A statement of additions.sql: table, and column or nothing."""


def open_for_writing(
    path: Path, lock_wait_s: float, is_stopped: Callable[[], bool] = lambda: False
) -> duckdb.DuckDBPyConnection:
    """Open a database, or create it. The caller holds the run lock, and this process has the file not open.

    Raises StoreError when it is not ours, damaged, of a newer version, or not permitted; StoreLocked when other
    processes still have it open after `lock_wait_s` seconds.
    """
    if not path.exists():
        check_no_orphaned_log(path)
        _create(path)
    else:
        check_is_database(path)
        if (forbidden := _find_forbidden(path, for_writing=True)) is not None:
            raise _forbidden_error(path, forbidden, for_writing=True)
        wait_for_readers(path, lock_wait_s, is_stopped)
        # Read-only first: opening a foreign or damaged file for writing could already change it.
        if _is_blank(path):
            _create(path)
    connection = _connect(path)
    _add_missing_tables(connection, path)
    return connection


def connect_read_only(path: Path, spill_path: Path) -> duckdb.DuckDBPyConnection:
    """A connection that can neither write nor reach outside the database. Raises duckdb.Error.

    What does not fit in memory goes into the folder `spill_path`: the database's own may be read-only.
    """
    settings = {**_READ_SETTINGS, "temp_directory": str(spill_path)}
    return _seal(duckdb.connect(path, read_only=True, config=settings))


def connect_scratch(spill_path: Path) -> duckdb.DuckDBPyConnection:
    """A database in memory that nothing remains of; what does not fit goes into the folder. Raises duckdb.Error."""
    return _seal(duckdb.connect(":memory:", config={**_SCRATCH_SETTINGS, "temp_directory": str(spill_path)}))


def check_schema(connection: duckdb.DuckDBPyConnection, path: Path) -> bool:
    """Whether the database is blank. Raises StoreError when it is not ours, or written by a newer bulkinfer."""
    tables = {str(name) for (name,) in connection.execute("select table_name from duckdb_tables()").fetchall()}
    if not tables:
        return True
    columns = connection.execute("select column_name from duckdb_columns() where table_name = 'meta'").fetchall()
    if not {("key",), ("value",)} <= set(columns):
        raise StoreError(f"{path}: is a DuckDB database, but not bulkinfer's; name another file in output.database")
    meta = dict(connection.execute("select key, value from meta").fetchall())
    version = str(meta.get("schema_version", ""))
    if not version.isdecimal() or "created_by" not in meta:
        raise StoreError(f"{path}: is a DuckDB database, but not bulkinfer's; name another file in output.database")
    if int(version) > SCHEMA_VERSION:
        raise StoreError(
            f"{path}: was written by {meta['created_by']} (schema version {version}); this is bulkinfer {__version__} "
            f"(schema version {SCHEMA_VERSION}): use that version or a newer one"
        )
    return False


def explain_error(error: duckdb.Error, path: Path, action: str) -> StoreError:
    """DuckDB's error as ours, with what to do next. Its own text is left out: it may quote a document."""
    kind = type(error).__name__
    match error:
        case duckdb.OutOfMemoryException():
            advice = (
                f"its memory limit was reached, and {path}.tmp, for what does not fit, did not help: is the disk full?"
            )
        case duckdb.TransactionException() | duckdb.FatalException() | duckdb.PermissionException():
            advice = "is the disk full, or the folder not writable? What is committed is safe: mend that and run again"
        case duckdb.IOException() | duckdb.SerializationException() | duckdb.InternalException():
            advice = (
                f"is the disk full (also for {path}.tmp, which takes what does not fit into memory), or the file "
                "damaged? What is committed is safe: make room and run again; keep the file and its .wal together"
            )
        case duckdb.ConnectionException():
            advice = "it is open in this process with other settings, or was closed"
        case _:
            advice = "what is committed is safe; run again"
    return StoreError(f"{path}: {action} failed ({kind}): {advice}")


def explain_open_error(error: duckdb.Error, path: Path, spill_path: Path, *, for_writing: bool) -> StoreError:
    """Why a file that begins like a DuckDB database cannot be opened: held, forbidden, or it or its log is damaged.

    `spill_path` is where it puts what does not fit into memory.

    It opens the file: only for a process that has just failed to.
    """
    pid = find_locking_pid(path, for_writing=for_writing) if path.exists() else None
    if pid is not None:
        return _open_elsewhere(path, pid)
    wal = wal_path(path)
    if (forbidden := _find_forbidden(path, for_writing=for_writing)) is not None:
        return _forbidden_error(path, forbidden, for_writing=for_writing)
    if isinstance(error, NO_ROOM):
        return StoreError(
            f"{path}: cannot be opened ({type(error).__name__}): its log does not fit into the memory that it may use, "
            f"and there is no room for the rest in {spill_path}. Nothing was changed. Make room and run again"
        )
    if isinstance(error, duckdb.ConnectionException):
        return StoreError(f"{path}: cannot be opened, as this process still has it open; run again")
    if wal.exists():
        damaged = f"it or its write-ahead log {wal}"
        advice = f"`bulkinfer repair {path}` sets a damaged log aside, which is never deleted, and keeps its good part"
    else:
        damaged, advice = "it", "Keep it, and restore it from a copy or name a new output.database"
    return StoreError(
        f"{path}: cannot be opened ({type(error).__name__}): {damaged} is damaged, or of another DuckDB version. "
        f"Nothing was changed. {advice}"
    )


def check_no_orphaned_log(path: Path) -> None:
    """Raise StoreError when a missing database has left its log: a new one would not be the one it belongs to."""
    wal = wal_path(path)
    if wal.exists():
        raise StoreError(
            f"{path}: is missing, but its write-ahead log {wal} is there and holds commits of it; "
            f"put the database back beside it, or move the log away"
        )


def wait_for_readers(path: Path, lock_wait_s: float, is_stopped: Callable[[], bool] = lambda: False) -> None:
    """Wait until no other process has the database open. Raises StoreLocked after `lock_wait_s`, or when stopped."""
    limit_s = time.monotonic() + lock_wait_s
    while (pid := find_locking_pid(path, for_writing=True)) is not None:
        if is_stopped() or time.monotonic() > limit_s:
            raise _open_elsewhere(path, pid)
        time.sleep(_LOCK_PAUSE_S)


def _find_forbidden(path: Path, *, for_writing: bool) -> Path | None:
    """What of a database this process may not read, or write to. A log is created and deleted: the folder counts."""
    wal = wal_path(path)
    mode = os.R_OK | os.W_OK if for_writing else os.R_OK
    needed = (path, wal, path.parent) if for_writing else (path, wal)
    return next((file for file in needed if file.exists() and not os.access(file, mode)), None)


def _forbidden_error(path: Path, forbidden: Path, *, for_writing: bool) -> StoreError:
    what = "it" if forbidden == path else str(forbidden)
    return StoreError(f"{path}: no permission to {'write to' if for_writing else 'read'} {what}")


def _open_elsewhere(path: Path, pid: int) -> StoreLocked:
    return StoreLocked(f"{path}: process {pid} has this database open; close it there and try again")


def _is_blank(path: Path) -> bool:
    try:
        with connect_read_only(path, spill_path(path)) as connection:
            return check_schema(connection, path)
    except duckdb.Error as error:
        raise explain_open_error(error, path, spill_path(path), for_writing=False) from error


def _connect(path: Path) -> duckdb.DuckDBPyConnection:
    try:
        connection = duckdb.connect(path, config={**_WRITE_SETTINGS, "temp_directory": str(spill_path(path))})
        # A forked child that ends would checkpoint and delete the log that the parent goes on writing to.
        connection.execute("pragma disable_checkpoint_on_shutdown")
        return _seal(connection)
    except duckdb.Error as error:
        raise explain_open_error(error, path, spill_path(path), for_writing=True) from error


def _seal(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """Same times everywhere; no way to other files; and no way back."""
    connection.execute("set timezone = 'UTC'")
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")
    return connection


def _create(path: Path) -> None:
    try:
        with _connect(path) as connection:
            _create_schema(connection)
    except duckdb.Error as error:
        raise explain_error(error, path, "creating the tables") from error


def _add_missing_tables(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """What schema.sql has got since the database was made.

    Tables, and columns of them. Folded into the file at once, as all DDL. Killed before that, they are in the log
    behind the commits of a killed run, and are read from there like them.
    """
    try:
        found = set(connection.execute("select table_name, column_name from duckdb_columns()").fetchall())
        found |= {(table, "") for table, _ in found}
        additions = _read_sql("additions.sql")
        if not found >= set(_ADDITION.findall(additions)):
            connection.execute(additions)
            connection.execute("checkpoint")
    except duckdb.Error as error:
        connection.close()
        raise explain_error(error, path, "adding a table") from error


def _read_sql(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _create_schema(connection: duckdb.DuckDBPyConnection) -> None:
    """Create all in one transaction, and fold it into the file: replaying DDL from a log is where DuckDB fails."""
    connection.begin()
    connection.execute(_read_sql("schema.sql"))
    connection.execute(_read_sql("additions.sql"))
    meta = {
        "schema_version": str(SCHEMA_VERSION),
        "created_by": f"bulkinfer {__version__}",
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "database_id": str(uuid4()),
    }
    for key, value in meta.items():
        connection.execute("insert into meta values ($key, $value)", {"key": key, "value": value})
    connection.commit()
    connection.execute("checkpoint")
