"""Where a run can be killed, by name, and what the driver `killable` is told of it. Nothing here kills."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson


class When(StrEnum):
    """When in a call."""

    BEFORE = "before"
    AFTER = "after"
    DURING = "during"
    """Once the database's files have changed `Point.num_changes` times since the call began; by a second thread."""


class Act(StrEnum):
    """What happens at a point."""

    KILL_RUNNER = "runner"
    KILL_ENGINE = "engine"
    KILL_BOTH = "both"
    TERMINATE = "terminate"
    """The runner gets a SIGTERM, and drains."""


@dataclass(frozen=True, slots=True)
class Place:
    """A function of bulkinfer, or of what it stands on, and a side of it."""

    target: str
    """`module:qualified.name`, looked up where it is called from."""
    when: When


@dataclass(frozen=True, slots=True)
class Point:
    """One thing that happens to a run. Of several, each counts calls from when the one before it was reached."""

    place: Place
    call: int = 1
    act: Act = Act.KILL_RUNNER
    num_changes: int = 1


@dataclass(frozen=True, slots=True)
class Orders:
    """All that the driver is told."""

    points: tuple[Point, ...] = ()
    commit_size: int = 40
    """Outcomes in a commit, instead of 1,000."""
    commit_wait_s: float = 30.0
    shard_size: int = 64
    """Documents that are planned together, instead of 65,536."""
    autocheckpoint: str = "256MB"
    """The size of the log at which DuckDB checkpoints by itself."""
    is_premature: bool = False
    """Breaks the store on purpose: a commit is acknowledged before it is made."""
    database: Path = Path()
    journal_path: Path = Path()
    """Appended to: what was acknowledged, which points were reached, who was killed."""

    def encode(self) -> str:
        """For a command line."""
        return orjson.dumps(asdict(self), default=str).decode()


def decode_orders(text: str) -> Orders:
    """What `encode` wrote."""
    told: dict[str, Any] = orjson.loads(text)
    points = tuple(map(_decode_point, told["points"]))
    paths = {name: Path(told[name]) for name in ("database", "journal_path")}
    return Orders(**{**told, **paths, "points": points})


def _decode_point(told: dict[str, Any]) -> Point:
    place = Place(told["place"]["target"], When(told["place"]["when"]))
    return Point(**{**told, "place": place, "act": Act(told["act"])})


_DATABASE = "bulkinfer.store.database"
_CONNECTIONS = "bulkinfer.store.connections:Connections"
_DUCKDB = "tests.crash.watched:Connection"
_COMMIT = "bulkinfer.store.commit"
_WRITER = "bulkinfer.store.writer"
_LOCK = "bulkinfer.store.lock"

START_UP = {
    "before the lock": Place(f"{_LOCK}:RunLock.acquire", When.BEFORE),
    "locked, holder not written": Place(f"{_LOCK}:_write_holder", When.BEFORE),
    "lock taken": Place(f"{_LOCK}:RunLock.acquire", When.AFTER),
    "database file made": Place(f"{_DATABASE}:_create_schema", When.BEFORE),
    "tables made, not committed": Place(f"{_DATABASE}:uuid4", When.BEFORE),
    "schema before its commit": Place(f"{_DUCKDB}.commit", When.BEFORE),
    "schema committed": Place(f"{_DUCKDB}.commit", When.AFTER),
    "in the schema's checkpoint": Place(f"{_DUCKDB}.checkpoint", When.DURING),
    "schema checkpointed": Place(f"{_DATABASE}:_create_schema", When.AFTER),
    "database opened": Place(f"{_CONNECTIONS}.open", When.AFTER),
    "while the database is opened": Place(f"{_CONNECTIONS}.open", When.DURING),
    "run recorded": Place(f"{_CONNECTIONS}.write", When.AFTER),
    "engine's process started": Place("bulkinfer.engines.child_process:_start_process", When.AFTER),
    "engine told to load": Place("bulkinfer.engines.child_process:ChildProcess.__init__", When.AFTER),
    "engine ready": Place("bulkinfer.runner.ledger:Ledger.note_ready", When.AFTER),
    "first requests submitted": Place("bulkinfer.engines.child:ChildEngine.submit", When.AFTER),
}
"""Until the first requests are in the engine. The schema is made once in a database's life."""

COMMIT = {
    "before begin": Place(f"{_CONNECTIONS}._transact", When.BEFORE),
    "after begin": Place(f"{_WRITER}:commit_pending", When.BEFORE),
    "part of a commit inserted": Place(f"{_COMMIT}:insert_table", When.AFTER),
    "end of a file inserted": Place(f"{_COMMIT}:_insert_ends", When.AFTER),
    "commit record written": Place(f"{_WRITER}:commit_pending", When.AFTER),
    "while it commits": Place(f"{_DUCKDB}.commit", When.DURING),
    "committed": Place(f"{_CONNECTIONS}._transact", When.AFTER),
    "acknowledged": Place(f"{_WRITER}:write_status", When.BEFORE),
    "status file not renamed": Place("pathlib:Path.replace", When.BEFORE),
    "status file written": Place(f"{_WRITER}:write_status", When.AFTER),
}
"""The transactions before the first commit are the schema's and the run's."""

END = {
    "signal noted": Place("bulkinfer.runner.signals:StopFlag.note", When.AFTER),
    "an outcome noted": Place("bulkinfer.runner.ledger:Ledger.note_outcome", When.AFTER),
    "before the checkpoint": Place(f"{_CONNECTIONS}.checkpoint", When.BEFORE),
    "in the checkpoint": Place(f"{_CONNECTIONS}.checkpoint", When.DURING),
    "after the checkpoint": Place(f"{_CONNECTIONS}.checkpoint", When.AFTER),
    "before the end is recorded": Place("bulkinfer.store.runs:end_run", When.BEFORE),
    "end written, not committed": Place("bulkinfer.store.runs:end_run", When.AFTER),
    "end recorded": Place(f"{_WRITER}:Store.end_run", When.AFTER),
    "before the lock is released": Place(f"{_LOCK}:RunLock.release", When.BEFORE),
    "lock released": Place(f"{_LOCK}:RunLock.release", When.AFTER),
}
"""Of a drain, and most of it of all work."""

PLACES = START_UP | COMMIT | END
