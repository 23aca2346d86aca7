"""What `status` and `failures` tell of a database: its jobs, their last runs, and the rows that have no answer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
import pyarrow as pa

from bulkinfer.records import FailureCode, JsonValue, RunStatus

Select = Callable[[str, Mapping[str, JsonValue]], Iterator[tuple[Any, ...]]]
"""`Reports.select`."""


@dataclass(frozen=True, slots=True)
class OpenFailure:
    """One input row that failed and has no answer, with its newest failure."""

    name: str
    source: str
    row: int
    document_id: str
    document_hash: UUID
    code: FailureCode
    message: str
    attempts: int
    retryable: bool
    failed_at: datetime


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Input rows without an answer whose newest failure has one code."""

    code: FailureCode
    rows: int
    documents: int
    """Different ones among them."""
    retryable: int
    """Rows that the next run asks again by itself."""
    examples: tuple[str, ...]
    """Ids of the first of them, in input order."""
    message: str
    """Of the first of them."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The last run of one job, and what stands in the database for its input."""

    name: str
    run_id: UUID
    task_fingerprint: UUID
    job_path: str
    host: str
    pid: int
    started_at: datetime
    ended_at: datetime | None
    status: RunStatus | None
    """None when the run ended without saying so: killed, or the machine stopped."""
    exit_code: int | None
    summary: Mapping[str, JsonValue] | None
    """What `run --json` printed."""
    num_rows: int
    num_answered: int
    """Input rows with an answer of the newest task; likewise the next."""
    failed_by_code: Mapping[FailureCode, int]


_RUNS = """
    select n.name, n.run_id, n.task_fingerprint, n.job_path, n.host, n.pid, n.started_at, e.ended_at, e.status,
        e.exit_code, e.summary
    from newest_runs n left join run_ends e on e.run_id = n.run_id
    where $name is null or n.name = $name order by n.name
"""
_FAILURES = """
    select name, source, row, document_id, document_hash, code, message, attempts, retryable, failed_at
    from open_failures where ($name is null or name = $name) and ($code is null or code = $code)
    order by name, position, row
"""
NUM_EXAMPLES = 5
_GROUPS = f"""
    select code, count(*), count(distinct document_hash), count(*) filter (retryable),
        list(document_id order by place) filter (place <= {NUM_EXAMPLES}), any_value(message) filter (place = 1)
    from (
        select *, row_number() over (partition by code order by name, position, row) as place
        from open_failures where $name is null or name = $name
    ) group by code order by count(*) desc, code
"""


def add_told_end(runs: Sequence[RunSummary], told: Mapping[str, JsonValue] | None) -> list[RunSummary]:
    """The same, with the end that the status file tells of a run that could not record it, or not that it failed then.

    The status file outweighs the database: a run that failed in its last step had recorded its success before.
    """
    if told is None:
        return list(runs)
    return [_add_end(run, told) if str(run.run_id) == told.get("run_id") else run for run in runs]


class Reports(ABC):
    """What every way of reading a database can tell of it."""

    @abstractmethod
    def select(self, sql: str, parameters: Mapping[str, JsonValue]) -> Iterator[tuple[Any, ...]]:
        """Run bulkinfer's own SQL; rows as DuckDB gives them, each column in its own Python type. Raises StoreError."""

    @abstractmethod
    def iter_arrow(self, sql: str, parameters: Mapping[str, JsonValue], num_rows: int) -> Iterator[pa.RecordBatch]:
        """Run bulkinfer's own SQL; batches of about `num_rows` rows, as they are read. Raises StoreError."""

    def names(self) -> list[str]:
        """The jobs that ran into this database, sorted. Raises StoreError."""
        return [name for (name,) in self.select("select name from newest_runs order by name", {})]

    def summary(self, name: str | None = None) -> list[RunSummary]:
        """The last run of each job, or of one, by name. Raises StoreError."""
        lines = list(self.select(_RUNS, {"name": name}))  # all of them first: a reader answers one question at a time
        return [_summarize(self.select, line) for line in lines]

    def failure_groups(self, name: str | None = None) -> list[FailureGroup]:
        """The same rows by code, the most frequent first. Raises StoreError."""
        return [
            FailureGroup(FailureCode(code), rows, documents, retryable, tuple(examples), message)
            for code, rows, documents, retryable, examples, message in self.select(_GROUPS, {"name": name})
        ]

    def failures(self, name: str | None = None, code: FailureCode | None = None) -> Iterator[OpenFailure]:
        """Input rows without an answer, in input order, of one job or of all, of one code or any. Raises StoreError."""
        for line in self.select(_FAILURES, {"name": name, "code": None if code is None else code.value}):
            name_, source, row, document_id, document_hash, found, *rest = line
            yield OpenFailure(name_, source, row, document_id, document_hash, FailureCode(found), *rest)


def _summarize(select: Select, line: tuple[Any, ...]) -> RunSummary:
    name, run_id, task, job_path, host, pid, started_at, ended_at, status, exit_code, summary = line
    return RunSummary(
        name,
        run_id,
        task,
        job_path,
        host,
        pid,
        started_at,
        ended_at,
        status=None if status is None else RunStatus(status),
        exit_code=exit_code,
        summary=None if summary is None else orjson.loads(summary),
        num_rows=_count_rows(select, "documents", name),
        num_answered=_count_rows(select, "answers", name),
        failed_by_code=_count_failures(select, name),
    )


def _add_end(run: RunSummary, told: Mapping[str, JsonValue]) -> RunSummary:
    exit_code, status, told_at = told.get("exit_code"), told.get("status"), told.get("updated_at")
    if not isinstance(exit_code, int) or status not in set(RunStatus):  # the run was killed
        return run
    ended_at = datetime.fromisoformat(str(told_at)) if run.ended_at is None else run.ended_at
    return replace(run, status=RunStatus(str(status)), exit_code=exit_code, ended_at=ended_at, summary=told)


def _count_rows(select: Select, view: str, name: str) -> int:
    ((num_rows,),) = select(f"select count(*) from {view} where name = $name", {"name": name})
    return int(num_rows)


def _count_failures(select: Select, name: str) -> dict[FailureCode, int]:
    statement = "select code, count(*) from open_failures where name = $name group by code order by code"
    return {FailureCode(code): num_rows for code, num_rows in select(statement, {"name": name})}
