"""All that a database tells of one run: how it ended, how it stood over time, what came of its documents.

Every number is counted by DuckDB, in bounded memory, and comes through whatever reads the database, a live run too. No
text of a document, prompt or answer is read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from bulkinfer.records import JsonValue, Latency, RunStatus
from bulkinfer.store.histograms import Histogram, read_durations, read_lengths
from bulkinfer.store.lookups import LATENCY, make_latency
from bulkinfer.store.reports import Reports

MAX_MOMENTS = 120
"""Points of a run over time; a longer run's are those of longer stretches."""
MAX_SILENCES = 1_000
KILLED = "killed"
"""The status of a run that ended without saying so."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Which run, and how it ended."""

    run_id: UUID
    name: str
    task_fingerprint: UUID
    job_path: str
    host: str
    pid: int
    version: str
    started_at: datetime
    seq: int
    """Of the runs of this database."""
    status: str
    """A RunStatus, or KILLED."""
    exit_code: int | None
    ended_at: datetime | None
    summary: Mapping[str, Any] | None
    """What `run --json` printed; None of a run that has not ended, or was killed."""
    num_commits: int


@dataclass(frozen=True, slots=True)
class Moment:
    """How a run stood at a moment; None where the database does not tell, as before there was a table of samples.

    Counts are from the start of the run to the moment. Others are of the stretch since the moment before.
    """

    elapsed_s: float
    succeeded: int
    failed: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    read: int | None = None
    queued: float | None = None
    """The mean; likewise the next two."""
    in_flight: float | None = None
    active: float | None = None
    kv_cache_usage: float | None = None
    """The most."""
    preemptions: int | None = None
    restarts: int | None = None
    engine_steps: int | None = None
    runner_memory_bytes: int | None = None
    """The most that was seen; likewise the next."""
    engine_memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    """The most; None where the database has no such column yet."""


@dataclass(frozen=True, slots=True)
class LongSilence:
    """A time without an outcome while documents were in flight; seconds from the start of the run."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """How long nothing came."""
        return self.end_s - self.begin_s


@dataclass(frozen=True, slots=True)
class Totals:
    """What one run has on disk."""

    num_succeeded: int
    failed_by_code: Mapping[str, int]
    prompt_tokens: int
    """Of answers; likewise the next two."""
    cached_tokens: int
    output_tokens: int
    latency: Latency

    @property
    def writes_answers(self) -> bool:
        """Whether tokens were drawn, as far as can be seen: a run that made vectors or scores has none."""
        return self.output_tokens > 0 or self.num_succeeded == 0

    @property
    def num_failed(self) -> int:
        """Documents that failed."""
        return sum(self.failed_by_code.values())


@dataclass(frozen=True, slots=True)
class RunDetails:
    """One run."""

    run: RunIdentity
    totals: Totals
    moments: Sequence[Moment]
    has_samples: bool
    """Whether `moments` are samples; without them they are the commits, which tell less."""
    silences: Sequence[LongSilence]
    """Those of at least `least_silence_s`; the longest if there are too many."""
    longest_in_engine_s: float | None
    """What 99 of 100 documents took at most from the queue to their end; None where there is no result."""
    settings: Mapping[str, Any]
    """Of the engine; {} where nothing was recorded."""
    spec: Mapping[str, Any]
    """What went into the task's fingerprint."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How the results of a run are spread."""

    queue_s: Histogram
    first_token_s: Histogram
    total_s: Histogram
    prompt_tokens: Histogram
    output_tokens: Histogram


_RUNS = """
    select r.run_id, r.name, r.task_fingerprint, r.job_path, r.host, r.pid, r.version, r.started_at, r.seq,
        e.status, e.exit_code, e.ended_at, e.summary, coalesce(c.num_commits, 0) as num_commits
    from runs r
    left join run_ends e on e.run_id = r.run_id
    left join (
        select run_id, count(*) as num_commits from commits where rows > 0 or failed > 0 group by run_id
    ) c on c.run_id = r.run_id
    where ($name is null or r.name = $name) and ($task is null or r.task_fingerprint = $task::uuid)
        and ($prefix is null or r.run_id::varchar like $prefix || '%') and r.seq < $before
        and (not $has_commits or c.num_commits > 0)
    order by r.seq desc limit $most
"""
_TOTALS = """
    select count(*), coalesce(sum(prompt_tokens), 0)::bigint, coalesce(sum(cached_tokens), 0)::bigint,
        coalesce(sum(output_tokens), 0)::bigint
    from results where run_id = $run::uuid
"""
_FAILURES = """
    select code, count(*) from failures where run_id = $run::uuid group by code order by count(*) desc, code
"""
_IN_ENGINE = "select approx_quantile(total_s - queue_s, 0.99) from results where run_id = $run::uuid"
_COLUMNS = "select column_name from duckdb_columns() where table_name = 'samples'"
_SAMPLES = """
    select max(elapsed_s), max(succeeded), max(failed), max(prompt_tokens), max(output_tokens), max(cached_tokens),
        max(read), avg(queued), avg(in_flight), avg(active), max(kv_cache_usage)::double, max(preemptions),
        max(restarts), max(engine_steps), max(runner_memory_bytes), max(engine_memory_bytes), {gpu_memory}
    from samples s, (
        select greatest(max(elapsed_s), 1e-3) / $most as width from samples where run_id = $run::uuid
    ) w
    where s.run_id = $run::uuid group by least(floor(s.elapsed_s / w.width), $most - 1) order by 1
"""
_COMMITS = """
    with timed as (
        select greatest(0, epoch(c.committed_at) - epoch(r.started_at)) as elapsed_s, c.rows, c.failed,
            c.prompt_tokens, c.output_tokens
        from commits c join runs r on r.run_id = c.run_id where c.run_id = $run::uuid
    ),
    spread as (
        select max(t.elapsed_s) as elapsed_s, sum(t.rows) as rows, sum(t.failed) as failed,
            sum(t.prompt_tokens) as prompt_tokens, sum(t.output_tokens) as output_tokens
        from timed t, (select greatest(max(elapsed_s), 1e-3) / $most as width from timed) w
        group by least(floor(t.elapsed_s / w.width), $most - 1)
    )
    select elapsed_s, (sum(rows) over o)::bigint, (sum(failed) over o)::bigint, (sum(prompt_tokens) over o)::bigint,
        (sum(output_tokens) over o)::bigint
    from spread window o as (order by elapsed_s rows unbounded preceding) order by elapsed_s
"""
_SILENCES = """
    select * from (
        select silence_ended_s, silence_s::double as silence_s from samples
        where run_id = $run::uuid and silence_s >= $least_s order by silence_s desc limit $most
    ) order by silence_ended_s
"""
_SETTINGS = """
    select arg_max(settings, elapsed_s) from samples where run_id = $run::uuid and settings is not null
"""
_SPEC = "select spec from tasks where task_fingerprint = $task::uuid and name = $name limit 1"


def find_runs(
    reader: Reports,
    *,
    name: str | None = None,
    task: UUID | None = None,
    prefix: str | None = None,
    before: int | None = None,
    has_commits: bool = False,
    most: int = 1,
    told: Mapping[str, JsonValue] | None = None,
    live_run_id: str | None = None,
) -> list[RunIdentity]:
    """Runs, the newest first: of a job, of a task, with an id that begins so, before another, with outcomes on disk.

    `told` is what the status file says, which knows the end of a run that could not record it; `live_run_id` the run
    that writes the database now. Raises StoreError.
    """
    parameters: dict[str, JsonValue] = {
        "name": name,
        "task": None if task is None else str(task),
        "prefix": prefix,
        "before": 2**62 if before is None else before,
        "has_commits": has_commits,
        "most": most,
    }
    return [_identify(line, told, live_run_id) for line in list(reader.select(_RUNS, parameters))]


def read_totals(reader: Reports, run_id: UUID) -> Totals:
    """Counts of what a run has on disk. Raises StoreError."""
    run = {"run": str(run_id)}
    ((num_succeeded, prompt_tokens, cached_tokens, output_tokens),) = list(reader.select(_TOTALS, run))
    failed = {str(code): int(count) for code, count in reader.select(_FAILURES, run)}
    (percentiles,) = list(reader.select(LATENCY, run))
    return Totals(num_succeeded, failed, prompt_tokens, cached_tokens, output_tokens, make_latency(percentiles))


def read_details(reader: Reports, run: RunIdentity, least_silence_s: float) -> RunDetails:
    """All of one run but how its results are spread. Raises StoreError."""
    keys: dict[str, JsonValue] = {"run": str(run.run_id)}
    moments, has_samples = _read_moments(reader, keys)
    ((in_engine_s,),) = list(reader.select(_IN_ENGINE, keys))
    silences = []
    settings = _pick(run.summary, "engine", "settings")
    if has_samples:
        limits = {**keys, "least_s": least_silence_s, "most": MAX_SILENCES}
        silences = [LongSilence(end_s - length_s, end_s) for end_s, length_s in reader.select(_SILENCES, limits)]
        ((recorded,),) = list(reader.select(_SETTINGS, keys))
        settings = settings or (None if recorded is None else orjson.loads(recorded))
    specs = list(reader.select(_SPEC, {"task": str(run.task_fingerprint), "name": run.name}))
    return RunDetails(
        run=run,
        totals=read_totals(reader, run.run_id),
        moments=moments,
        has_samples=has_samples,
        silences=silences,
        longest_in_engine_s=in_engine_s,
        settings=settings or {},
        spec=orjson.loads(specs[0][0]) if specs and specs[0][0] is not None else {},
    )


def read_spread(reader: Reports, run_id: UUID) -> Spread:
    """How the results of a run are spread. Raises StoreError."""
    return Spread(
        queue_s=read_durations(reader, run_id, "queue_s"),
        first_token_s=read_durations(reader, run_id, "first_token_s"),
        total_s=read_durations(reader, run_id, "total_s"),
        prompt_tokens=read_lengths(reader, run_id, "prompt_tokens"),
        output_tokens=read_lengths(reader, run_id, "output_tokens"),
    )


def _read_moments(reader: Reports, keys: Mapping[str, JsonValue]) -> tuple[list[Moment], bool]:
    limits = {**keys, "most": MAX_MOMENTS}
    columns = {name for (name,) in reader.select(_COLUMNS, {})}
    gpu_memory = "max(gpu_memory_bytes)" if "gpu_memory_bytes" in columns else "null"
    samples = _SAMPLES.format(gpu_memory=gpu_memory)
    moments = [Moment(*line) for line in reader.select(samples, limits)] if columns else []
    if moments:
        return moments, True
    return [Moment(*line) for line in reader.select(_COMMITS, limits)], False


def _identify(line: tuple[Any, ...], told: Mapping[str, JsonValue] | None, live_run_id: str | None) -> RunIdentity:
    found = RunIdentity(*line)
    run_id, summary = str(found.run_id), None if found.summary is None else orjson.loads(str(found.summary))
    if run_id == live_run_id:
        return replace(found, status=str(RunStatus.RUNNING), exit_code=None, ended_at=None, summary=None)
    if told is not None and told.get("run_id") == run_id and _is_end(told):
        # The status file outweighs the database: a run that failed in its last step had recorded its success before.
        ended_at = found.ended_at or datetime.fromisoformat(str(told["updated_at"]))
        exit_code = int(str(told["exit_code"]))
        return replace(found, status=str(told["status"]), exit_code=exit_code, ended_at=ended_at, summary=told)
    return replace(found, status=found.status or KILLED, summary=summary)


def _is_end(told: Mapping[str, JsonValue]) -> bool:
    return isinstance(told.get("exit_code"), int) and told.get("status") in set(RunStatus) and "updated_at" in told


def _pick(summary: Mapping[str, Any] | None, *path: str) -> Any:  # noqa: ANN401  # what JSON holds
    """A value somewhere in a summary, which may be of another version; None where it is not."""
    found: Any = summary
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found
