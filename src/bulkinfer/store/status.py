"""The status file beside a database: how a live run stands, for whoever cannot open the database while it is written.

It is replaced at each commit, whole or not at all. Its counts may be a moment ahead of the database. It also keeps how
many commits there were, so that the next run notices a lost write-ahead log; besides that, losing it loses nothing.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import orjson

from bulkinfer.records import JsonValue
from bulkinfer.store.paths import status_path


def write_status(database: Path, status: Mapping[str, JsonValue], *, is_last: bool = False) -> bool:
    """Replace the status file of a database; pid, host and updated_at (UTC) are added.

    Returns False when it cannot be written: a run never stops for that. No fsync: after a power cut an older one will
    do. The last one of a run is written over the old file where there is no room, or no permission, for a new one.
    """
    path = status_path(database)
    temporary = path.with_name(f"{path.name}.tmp")
    about = {"pid": os.getpid(), "host": socket.gethostname(), "updated_at": datetime.now(UTC)}
    content = orjson.dumps({**status, **about})
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        return is_last and _write_over(path, content)
    return True


def _write_over(path: Path, content: bytes) -> bool:
    """Change a file in place: it may have room in the block that it has. Not whole or not at all, as a new one is."""
    try:
        with path.open("r+b") as file:
            file.write(content)
            file.truncate()
    except OSError:
        return False
    return True


def read_status(database: Path) -> Mapping[str, JsonValue] | None:
    """What the last commit of the last run left, or None when there is no readable status file.

    Whether that run still lives, `lock.read_holder` tells; the age of the file does not.
    """
    path = status_path(database)
    try:
        content = orjson.loads(path.read_bytes()) if path.is_file() else None  # a pipe would be waited for
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def count_lost_commits(status: Mapping[str, JsonValue] | None, database_id: str, num_commits: int) -> int | None:
    """How many commits a database of `num_commits` lacks that were on disk before, as far as a status file tells.

    At least: a run may have been killed between a commit and its status. None: the file is of another database, or
    there is none.
    """
    if status is None or status.get("database_id") != database_id:
        return None
    known = status.get("num_commits")
    return max(0, known - num_commits) if isinstance(known, int) else None
