"""How a database stands: by the word of the run that writes it, or by what the last runs left."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from bulkinfer.errors import JobError, StoreError, StoreLocked
from bulkinfer.records import RunStatus
from bulkinfer.store.database import check_no_orphaned_log
from bulkinfer.store.lock import Holder, read_holder
from bulkinfer.store.paths import resolve_database
from bulkinfer.store.reader import DatabaseBlank, Reader
from bulkinfer.store.remote import RemoteReader
from bulkinfer.store.reports import add_told_end
from bulkinfer.store.status import read_status

LIVE_TIMEOUT_S = 5.0
"""How long a live run is waited for, before what it wrote last is taken."""


def read_standing(database: Path, name: str | None) -> Mapping[str, object]:
    """What `status --json` prints: the live run, or the last run of each job, or of the one of that name.

    Raises JobError when there is no such run, StoreError when the database cannot be read.
    """
    holder = read_holder(database)
    if holder is not None:
        return _read_live(database, holder)
    with Reader.open(database) as reader:
        runs = [asdict(run) for run in add_told_end(reader.summary(name), read_status(database))]
    if not runs:
        raise JobError(f"{database}: has no run of a job named {name}")
    return {"status": runs[0]["status"] or "killed", "database": str(database), "runs": runs}


def read_standing_if_any(database: Path, name: str | None) -> Mapping[str, object]:
    """The same, for who waits for a run: where there is none yet, `status` is "waiting" and `reason` says for what.

    Raises StoreError where waiting would not help.
    """
    try:
        if read_holder(database) is None and not resolve_database(database).exists():
            check_no_orphaned_log(database)
            return _waiting(database, "no database yet")
        return read_standing(database, name)
    except DatabaseBlank:
        return _waiting(database, "the database is empty")
    except StoreLocked as error:  # a run has just begun, or another program looks at it
        return _waiting(database, str(error))
    except StoreError:
        if read_holder(database) is None:
            raise
        return _waiting(database, "one has just begun")  # and its database was half made
    except JobError:
        return _waiting(database, f"the database has no run of a job named {name}")


def _waiting(database: Path, reason: str) -> Mapping[str, object]:
    return {"status": "waiting", "database": str(database), "reason": reason}


def _read_live(database: Path, holder: Holder) -> Mapping[str, object]:
    found: dict[str, object] = {**asdict(holder), "database": str(database)}
    written = read_status(database) or {}
    # Before its first commit, the file beside a database is still the one of the run before.
    if written.get("pid") == holder.pid and str(written.get("updated_at", "")) >= holder.started_at:
        found |= written
    found["is_answering"] = False
    with suppress(StoreLocked):  # it has just begun, or is stopped
        found |= RemoteReader(database, holder, LIVE_TIMEOUT_S).status()
        found["is_answering"] = True
    for name in ("exit_code", "error"):  # of a run that is ending, and holds the database yet
        found.pop(name, None)
    return found | {"status": RunStatus.RUNNING}
