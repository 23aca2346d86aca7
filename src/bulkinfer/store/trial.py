"""Trying a write-ahead log, or the beginning of one, without touching the database: what would DuckDB make of it?

A trial opens the database under another name (a hard link) in a private folder, beside it a copy of the beginning of
its log, read-only: DuckDB then writes to neither. A symbolic link would not do: DuckDB follows it, to the real log.

Measured with DuckDB 2.0.1: a log that is cut anywhere opens, with exactly the transactions that are whole; one that
includes a damaged entry, or whose first entry is that of another database, does not open. So the good part ends where
the shortest beginning that does not open ends, and halving finds it.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import duckdb

from bulkinfer.errors import StoreError
from bulkinfer.store.database import NO_ROOM, check_schema, connect_read_only, explain_open_error
from bulkinfer.store.lookups import identify
from bulkinfer.store.paths import trial_path

_PIECE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Content:
    """What a database holds."""

    database_id: str
    """Empty for a database without tables: its creation was interrupted."""
    num_commits: int
    num_answers: int


class Trial:
    """Trials of one database and its log; both are closed, and nobody else writes to them."""

    def __init__(self, database: Path, wal: Path, folder: Path) -> None:
        """`begin_trial` makes one."""
        self._database = database
        self._wal = wal
        self._path = folder / "trial.duckdb"
        self._spill_path = folder / "trial.tmp"
        self.copy_path = folder / "trial.duckdb.wal"
        """The beginning of the log that was tried last."""
        try:
            os.link(database, self._path)
        except OSError as error:
            raise StoreError(
                f"{database}: cannot be given another name ({error.strerror}), which a repair needs. Nothing was "
                f"changed. Where a file system has no hard links, repair a copy of it and of {wal} on another one"
            ) from error
        self.copy_path.touch(mode=0o600)

    def cut_at_damage(self) -> None:
        """Make the copy the longest beginning of the log with which the database opens.

        Raises StoreError when the database does not open even without its log.
        """
        good, bad = 0, self._wal.stat().st_size + 1
        if not self._opens(0):
            raise damaged_file(self._database)
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if self._opens(middle) else (good, middle)
        self._cut(good)

    def read_content(self) -> Content:
        """What the database and the copy of its log hold together. Raises StoreError as the function does."""
        with self._connect() as connection:
            return read_content(connection, self._database)

    def read_content_of_file(self) -> Content:
        """What the database file holds by itself; the copy is then gone."""
        self.copy_path.unlink(missing_ok=True)
        return self.read_content()

    def _opens(self, num_bytes: int) -> bool:
        self._cut(num_bytes)
        try:
            self._connect().close()
        except NO_ROOM as error:  # that is no word about the log
            raise explain_open_error(error, self._database, self._spill_path, for_writing=True) from error
        except duckdb.Error:
            return False
        return True

    def _connect(self) -> duckdb.DuckDBPyConnection:
        return connect_read_only(self._path, self._spill_path)

    def _cut(self, num_bytes: int) -> None:
        """Make the copy the first bytes of the log."""
        with self.copy_path.open("r+b") as copy, self._wal.open("rb") as log:
            copy.truncate(min(num_bytes, copy.seek(0, os.SEEK_END)))
            log.seek(copy.seek(0, os.SEEK_END))
            while piece := log.read(min(_PIECE_BYTES, num_bytes - copy.tell())):
                copy.write(piece)


@contextmanager
def begin_trial(database: Path, wal: Path) -> Iterator[Trial]:
    """A private folder for trials, beside the database; what a killed one left there is removed. Raises StoreError."""
    folder = trial_path(database)
    try:
        _remove(folder)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise StoreError(
            f"{database}: {folder} cannot be made: {error.strerror}. Nothing was changed; a repair needs to write there"
        ) from error
    try:
        yield Trial(database, wal, folder)
    except OSError as error:
        raise StoreError(
            f"{database}: its log cannot be copied or replaced: {error.strerror}. Nothing is lost. A repair needs as "
            f"much room in {database.parent} as {wal} takes, and may write there; mend that and repair again"
        ) from error
    finally:
        with suppress(OSError):
            _remove(folder)


def damaged_file(database: Path) -> StoreError:
    """The error for a database that no log can mend."""
    return StoreError(
        f"{database}: the database file itself is damaged, not only its log, and cannot be repaired. Nothing was "
        "changed. Restore it and its .wal together from a copy; or move both away and run again, which asks everything "
        "anew"
    )


def read_content(connection: duckdb.DuckDBPyConnection, database: Path) -> Content:
    """Read all that a database holds, which finds damaged blocks, and count it.

    Raises StoreError when it is not ours, of a newer version, or damaged.
    """
    try:
        if check_schema(connection, database):
            return Content("", 0, 0)
        for (table,) in connection.execute("select table_name from duckdb_tables()").fetchall():
            connection.execute(f'select bit_xor(hash(t)) from "{table}" t').fetchall()
        database_id, num_commits = identify(connection)
        ((num_answers,),) = connection.execute("select count(*) from results").fetchall()
    except duckdb.Error as error:
        raise damaged_file(database) from error
    return Content(database_id, num_commits, int(num_answers))


def _remove(folder: Path) -> None:
    """Remove the folder and what trials leave in it: copies, and a second name of the database. Nothing else."""
    if not folder.is_dir():
        return
    for path in folder.glob("trial.*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    folder.rmdir()
