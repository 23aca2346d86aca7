"""Mending a database whose write-ahead log is damaged or was lost: what can be had is kept, what is damaged set aside.

Nothing is ever deleted. Killed at any point, a repair can simply be started again: the damaged log has its second name
before the good part takes its place, and the status file, which remembers how much there was, changes last.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import count
from pathlib import Path

import duckdb

from bulkinfer.errors import StoreError
from bulkinfer.store.database import (
    NO_ROOM,
    check_no_orphaned_log,
    connect_read_only,
    explain_error,
    explain_open_error,
    open_for_writing,
    wait_for_readers,
)
from bulkinfer.store.lock import RunLock
from bulkinfer.store.paths import check_is_database, find_kept_logs, resolve_database, spill_path, status_path, wal_path
from bulkinfer.store.status import count_lost_commits, read_status, write_status
from bulkinfer.store.trial import Content, begin_trial, damaged_file, read_content

_LOCK_WAIT_S = 10.0
_PIECE_BYTES = 1024 * 1024


class RepairOutcome(StrEnum):
    """What a repair found and did."""

    INTACT = "intact"
    """It opens, and nothing is missing: nothing was changed."""
    REPAIRED = "repaired"
    """The damaged log was set aside; what was good of it is in the database."""
    LOSS_ACCEPTED = "loss_accepted"
    """It opens, but commits are missing with their log: the next run goes on with what is there."""


@dataclass(frozen=True, slots=True)
class Repair:
    """How a database stands after a repair. Counts are of all tasks."""

    database: Path
    outcome: RepairOutcome
    num_commits: int
    num_answers: int
    num_recovered_commits: int
    """Those of `num_commits` that came out of a damaged log; likewise the answers."""
    num_recovered_answers: int
    num_lost_commits: int | None
    """At least: the status file may have been one commit behind. None where no status file tells."""
    kept_logs: tuple[Path, ...]
    """Damaged logs that were set aside, by this repair or an earlier one; the newest last."""

    def describe(self) -> Iterator[str]:
        """For people, as lines."""
        match self.outcome:
            case RepairOutcome.INTACT:
                yield f"{self.database}: opens, and nothing is missing; nothing was changed"
            case RepairOutcome.LOSS_ACCEPTED:
                yield f"{self.database}: its write-ahead log was removed. If you have it, put it back now"
            case RepairOutcome.REPAIRED:
                yield f"{self.database}: repaired; its write-ahead log was damaged, or of another database"
                yield f"  recovered from the log: {_count(self.num_recovered_commits, self.num_recovered_answers)}"
        yield f"  in the database: {_count(self.num_commits, self.num_answers)}"
        if self.outcome is not RepairOutcome.INTACT:
            yield f"  lost: {self._describe_loss()}; the next run asks again what has no answer"
        for path in self.kept_logs:
            yield f"  damaged log, kept: {path}"

    def _describe_loss(self) -> str:
        match self.num_lost_commits:
            case None:
                return "nobody knows how many commits: no status file tells"
            case 0:
                return "no commit that was finished"
            case num_commits:
                return f"{num_commits:,} commits"


def repair_database(path: Path) -> Repair:
    """Mend a database, if it needs it.

    Raises StoreLocked while a run writes it or another process has it open; StoreError, with nothing lost, when it
    cannot be mended: missing, not ours, of a newer version, the file itself damaged, no room, no permission.
    """
    database = resolve_database(path)
    if not database.exists():
        check_no_orphaned_log(database)
    check_is_database(database)
    lock = RunLock.acquire(database, "bulkinfer repair")
    try:
        wait_for_readers(database, _LOCK_WAIT_S)
        return _repair(database)
    finally:
        lock.release()


def _repair(database: Path) -> Repair:
    content = _read_as_it_is(database)
    num_lost = 0 if content is None else _count_lost(database, content)
    if content is not None and not num_lost:
        return _describe(database, RepairOutcome.INTACT, content, content, num_lost)
    if content is not None and not _has_log(database):
        _remember(database, content)
        return _describe(database, RepairOutcome.LOSS_ACCEPTED, content, content, num_lost)
    if content is None and not _has_log(database):
        raise damaged_file(database)
    before = _set_log_aside(database)
    content = _fold_log_in(database)
    num_lost = _count_lost(database, content)
    _remember(database, content)
    return _describe(database, RepairOutcome.REPAIRED, content, before, num_lost)


def _read_as_it_is(database: Path) -> Content | None:
    """What the database and its log hold; None when they do not open together."""
    try:
        connection = connect_read_only(database, spill_path(database))
    except NO_ROOM as error:
        raise explain_open_error(error, database, spill_path(database), for_writing=True) from error
    except duckdb.Error:
        return None
    with connection:
        return read_content(connection, database)


def _has_log(database: Path) -> bool:
    wal = wal_path(database)
    return wal.exists() and wal.stat().st_size > 0


def _count_lost(database: Path, content: Content) -> int | None:
    return count_lost_commits(read_status(database), content.database_id, content.num_commits)


def _set_log_aside(database: Path) -> Content:
    """Give the log a second name that lasts, put its good part in its place; return what the file holds without it.

    The log may open and still have lost its end: damage in the size of an entry looks like an interrupted write.
    """
    wal = wal_path(database)
    if not os.access(database, os.W_OK):
        raise StoreError(f"{database}: no permission to write to it. Nothing was changed")
    with begin_trial(database, wal) as trial:
        trial.cut_at_damage()
        trial.read_content()
        _keep(database, wal)
        _sync(trial.copy_path)
        trial.copy_path.chmod(wal.stat().st_mode & 0o666)
        trial.copy_path.replace(wal)
        _sync(database.parent)
        return trial.read_content_of_file()


def _keep(database: Path, wal: Path) -> None:
    """Another name for the log, unless a repair that was killed has made it already."""
    if any(_begins_with(kept, wal) for kept in find_kept_logs(database)):
        return
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    for number in count(1):
        try:
            os.link(wal, wal.with_name(f"{wal.name}.corrupt-{now}" + (f"-{number}" if number > 1 else "")))
        except FileExistsError:
            continue
        break
    _sync(database.parent)


def _begins_with(whole: Path, beginning: Path) -> bool:
    with whole.open("rb") as one, beginning.open("rb") as other:
        while piece := other.read(_PIECE_BYTES):
            if one.read(len(piece)) != piece:
                return False
    return True


def _fold_log_in(database: Path) -> Content:
    """Open the database with what is good of its log, and write that into the file."""
    with open_for_writing(database, 0.0) as connection:
        content = read_content(connection, database)
        try:
            connection.execute("checkpoint")
        except duckdb.Error as error:
            raise explain_error(error, database, "folding the log into it (repair it again)") from error
    return content


def _remember(database: Path, content: Content) -> None:
    """Let the status file say what there is now, so that the next run misses nothing."""
    if not write_status(database, {"database_id": content.database_id, "num_commits": content.num_commits}):
        raise StoreError(
            f"{status_path(database)}: cannot be written, and says that there was more. The database is mended; make "
            "room or give permission, and repair again"
        )


def _describe(
    database: Path, outcome: RepairOutcome, content: Content, before: Content, num_lost: int | None
) -> Repair:
    return Repair(
        database,
        outcome,
        content.num_commits,
        content.num_answers,
        content.num_commits - before.num_commits,
        content.num_answers - before.num_answers,
        num_lost,
        tuple(find_kept_logs(database)),
    )


def _count(num_commits: int, num_answers: int) -> str:
    return f"{num_commits:,} commits with {num_answers:,} answers"


def _sync(path: Path) -> None:
    """Make a file, or the names in a folder, outlive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
