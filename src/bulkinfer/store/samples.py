"""How a run stood every few seconds: a line of `samples`, written in the transaction of a commit.

There is one at the first commit, then at the first commit after `interval_s`, and at the end: as many as there are
commits at most, and 18,000 in a run of ten days.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from uuid import UUID

import duckdb
import orjson

from bulkinfer.bugs import attempt
from bulkinfer.records import JsonValue

SHORTEST_INTERVAL_S = 2.0
LONGEST_INTERVAL_S = 60.0
_SHARE_OF_RUN = 1 / 1_000

_INSERT = """
    insert into samples by name
    select $run::uuid as run_id, $seq as seq, $now::timestamptz as sampled_at, $settings::json as settings,
        {columns}
    where not exists (
        select 1 from samples s where s.run_id = $run and s.seq = $seq and s.elapsed_s = $elapsed_s
    )
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """Counts of a run from its start to this moment; the fields are the columns of the table."""

    elapsed_s: float
    read: int
    succeeded: int
    failed: int
    queued: int
    in_flight: int
    active: int
    """Sequences that the engine was running at its last reading, half a second ago or so."""
    kv_cache_usage: float
    """At that reading, 0 to 1."""
    preemptions: int
    restarts: int
    engine_steps: int
    prompt_tokens: int
    """Of completions; likewise the next two."""
    cached_tokens: int
    output_tokens: int
    runner_memory_bytes: int
    """Resident now."""
    engine_memory_bytes: int
    """The most that was resident so far."""
    gpu_memory_bytes: int = 0
    """In use on the engines' GPUs at the last reading, by whomever; 0 without one."""
    silence_s: float = 0.0
    """The longest time without an outcome since the line before, while documents were in flight."""
    silence_ended_s: float = 0.0
    """When it ended, from the start of the run."""


SampleSource = Callable[[], tuple[Sample, Mapping[str, JsonValue]]]
"""How the run stands now, and the settings of its engine; called from the thread that writes."""

_COLUMNS = ", ".join(f"${name} as {name}" for name in Sample.__dataclass_fields__)


class SampleClock:
    """When a line is due, and what stands in it. For one thread."""

    def __init__(self) -> None:
        self.source: SampleSource | None = None
        self._began_s = time.monotonic()
        self._taken_s: float | None = None
        self._settings: Mapping[str, JsonValue] = {}

    def take_if_due(self, *, is_last: bool = False) -> "Taken | None":
        """A sample, when the last one is long enough ago. Settings are told when they are others than before."""
        now_s = time.monotonic()
        if self.source is None or not (is_last or self._is_due(now_s)):
            return None
        self._taken_s = now_s
        found = attempt(self.source)
        if isinstance(found, Exception):  # a line that a report lacks never stops a run
            return None
        sample, settings = found
        changed = None if settings == self._settings else settings
        self._settings = settings
        return Taken(sample, changed)

    def _is_due(self, now_s: float) -> bool:
        return self._taken_s is None or now_s - self._taken_s >= interval_s(now_s - self._began_s)


@dataclass(frozen=True, slots=True)
class Taken:
    """What goes into one line."""

    sample: Sample
    settings: Mapping[str, JsonValue] | None


def interval_s(elapsed_s: float) -> float:
    """Seconds between two lines of a run that has lasted so long."""
    return min(LONGEST_INTERVAL_S, max(SHORTEST_INTERVAL_S, elapsed_s * _SHARE_OF_RUN))


class SampleLine:
    """The line that a commit writes, if one is due. Where it alone cannot be written, the commit goes on without it."""

    def __init__(self, taken: Taken | None) -> None:
        self._taken = taken

    def insert(self, connection: duckdb.DuckDBPyConnection, run_id: UUID, seq: int) -> None:
        """Write it in the open transaction. What it raises ends the transaction; the next attempt has no line."""
        if self._taken is None:
            return
        try:
            insert_sample(connection, run_id, seq, self._taken)
        except duckdb.Error:
            self._taken = None
            raise


def insert_sample(connection: duckdb.DuckDBPyConnection, run_id: UUID, seq: int, taken: Taken) -> None:
    """Write a line, in the open transaction of commit `seq`; not twice, if it is run again."""
    settings = None if taken.settings is None else orjson.dumps(taken.settings, default=str).decode()
    keys = {"run": run_id, "seq": seq, "now": datetime.now(UTC), "settings": settings}
    connection.execute(_INSERT.format(columns=_COLUMNS), keys | asdict(taken.sample)).fetchall()
