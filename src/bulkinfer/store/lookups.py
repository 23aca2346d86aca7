"""What a run asks of its own database while it writes: what is done, and what to count. In bounded memory."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import duckdb
import pyarrow as pa

from bulkinfer.records import (
    DocumentRow,
    FailureCode,
    FinishReason,
    KnownSpan,
    Latency,
    Only,
    PartAnswer,
    Percentiles,
    WantedRows,
)
from bulkinfer.store.arrow import (
    hashes_table,
    last_rows_table,
    read_document_rows,
    read_hashes,
    read_parts,
    spans_table,
)

_LATENCY_SAMPLE = 1_000_000
_DURATIONS = ("queue_s", "first_token_s", "total_s")
LATENCY = f"""
    select {", ".join(f"quantile_cont({column}, [0.5, 0.95, 0.99])" for column in _DURATIONS)}
    from (select {", ".join(_DURATIONS)} from results where run_id = $run::uuid)
    using sample reservoir({_LATENCY_SAMPLE} rows) repeatable (1)
"""
"""Percentiles of the three durations of a run's results."""

_HAS_RESULT = "exists (select 1 from results r where r.task_fingerprint = $task and r.document_hash = a.document_hash)"
_HAS_FINAL_FAILURE = """exists (
    select 1 from failures f
    where f.task_fingerprint = $task and f.document_hash = a.document_hash and not f.retryable
)"""
_HAS_FAILURE = (
    "exists (select 1 from failures f where f.task_fingerprint = $task and f.document_hash = a.document_hash)"
)
# A document that failed in this very run is not asked a third time because a later row repeats it.
_FAILED_NOW = """exists (
    select 1 from failures f where f.task_fingerprint = $task and f.run_id = $run and f.document_hash = a.document_hash
)"""
_LAST_FAILED_WITH = """a.document_hash in (
    select f.document_hash from failures f
    where f.task_fingerprint = $task and f.document_hash in (select document_hash from asked)
    group by f.document_hash having arg_max(f.code, (f.failed_at, f.rowid)) = $code
)"""
# A run that takes over the failures of another task asks its own, too. What the other has answered is none of these.
_FAILED_IN_EITHER = """a.document_hash in (
    select f.document_hash from failures f
    where f.task_fingerprint = $task and f.document_hash in (select document_hash from asked)
    group by f.document_hash having $code is null or arg_max(f.code, (f.failed_at, f.rowid)) = $code
    union all
    select f.document_hash from failures f
    where f.task_fingerprint = $failed_task and f.document_hash in (select document_hash from asked)
        and not exists (
            select 1 from results r where r.task_fingerprint = $failed_task and r.document_hash = f.document_hash
        )
    group by f.document_hash having $code is null or arg_max(f.code, (f.failed_at, f.rowid)) = $code
)"""
_ROWS_IN_SPANS = """
    spans s join document_rows d on d.scan_id = s.scan_id and d.row > s.after and d.row <= s.last_row
    where d.row > $after and d.row <= $last_row
"""
_COUNT_IN_SPANS = f"select s.position, count(*) as num_rows from {_ROWS_IN_SPANS} group by s.position"
_NAMES = {code.value: code for code in FailureCode}
_CODES = {only: _NAMES[only.value] for only in Only if only.value in _NAMES} | {
    Only.INVALID: FailureCode.INVALID_OUTPUT
}


@dataclass(frozen=True, slots=True)
class RunSelection:
    """Which documents of its input a run asks."""

    only: Only = Only.NEW
    failed_task: UUID | None = None
    """The task whose failures are meant; None: the run's own."""


@dataclass(frozen=True, slots=True)
class DocumentCounts:
    """Of the input as far as a run has read it."""

    num_rows: int
    num_distinct: int
    """Different document hashes among them."""


def identify(connection: duckdb.DuckDBPyConnection) -> tuple[str, int]:
    """The database's own id, and how many commits it holds."""
    ((database_id, num_commits),) = connection.execute(
        "select (select value from meta where key = 'database_id'), (select count(*) from commits)"
    ).fetchall()
    return str(database_id), int(num_commits)


def find_done(
    connection: duckdb.DuckDBPyConnection,
    run_id: UUID,
    task: UUID,
    document_hashes: Sequence[bytes],
    selection: RunSelection,
) -> frozenset[bytes]:
    """Those of the hashes that a run must not ask; see `Store.find_done`."""
    condition, parameters = _describe_to_do(run_id, task, selection)
    statement = f"select a.document_hash from asked a where {condition}"
    to_do = read_hashes(_query(connection, statement, hashes_table(document_hashes), parameters))
    return frozenset(document_hashes) - to_do


def find_parts(
    connection: duckdb.DuckDBPyConnection, task: UUID, part_hashes: Sequence[bytes], *, accepts_cut: bool
) -> dict[bytes, PartAnswer]:
    """Those of the parts that are answered; where cut answers are none, those whose answer is known to be whole."""
    statement = """
        select p.part_hash, p.document_hash, p.output, p.prompt_tokens, p.cached_tokens, p.output_tokens, p.attempts,
            p.answered_at, p.finish_reason, p.repairs::varchar
        from parts p
        where p.task_fingerprint = $task and p.part_hash in (select document_hash from asked)
            and (p.finish_reason = $whole or ($accepts_cut and p.finish_reason is not null))
    """
    parameters = {"task": task, "whole": FinishReason.STOP.value, "accepts_cut": accepts_cut}
    table = _query(connection, statement, hashes_table(part_hashes), parameters)
    return {part.part_hash: part for part in read_parts(table)}


def find_wanted(
    connection: duckdb.DuckDBPyConnection, run_id: UUID, task: UUID, spans: Sequence[KnownSpan], selection: RunSelection
) -> list[WantedRows]:
    """For each span, how many rows it has and which of them a run must ask; see `Store.find_wanted`."""
    condition, parameters = _describe_to_do(run_id, task, selection)
    spans_arrow = spans_table(spans)
    counts = _query(connection, _COUNT_IN_SPANS, spans_arrow, _bounds_of(spans), name="spans")
    statement = f"""
        with asked as (select s.position, d.row, d.document_hash from {_ROWS_IN_SPANS})
        select a.position, a.row from asked a where {condition} order by a.position, a.row
    """
    wanted = _query(connection, statement, spans_arrow, parameters | _bounds_of(spans), name="spans")
    num_rows = dict(zip(*counts.to_pydict().values(), strict=True))
    rows: dict[int, list[int]] = {}
    for position, row in zip(*wanted.to_pydict().values(), strict=True):
        rows.setdefault(position, []).append(row)
    found = [
        WantedRows(
            num_rows.get(position, 0), rows.get(position, []), [row - span.after for row in rows.get(position, [])]
        )
        for position, span in enumerate(spans)
    ]
    # Blank lines are no rows: the numbers have gaps.
    gapped = [p for p, span in enumerate(spans) if rows.get(p) and num_rows[p] < span.last_row - span.after]
    placed = _place_rows(connection, [(spans[p], rows[p]) for p in gapped])
    for position, places in zip(gapped, placed, strict=True):
        found[position] = replace(found[position], places=places)
    return found


def read_rows(connection: duckdb.DuckDBPyConnection, spans: Sequence[KnownSpan]) -> list[DocumentRow]:
    """The rows of some spans, in order. One question, however many spans."""
    columns = "s.position, d.row, d.document_hash, d.document_id"
    statement = f"select {columns} from {_ROWS_IN_SPANS} order by s.position, d.row"
    table = _query(connection, statement, spans_table(spans), _bounds_of(spans), name="spans")
    return read_document_rows(table, [span.scan_id for span in spans])


def _place_rows(
    connection: duckdb.DuckDBPyConnection, gapped: Sequence[tuple[KnownSpan, Sequence[int]]]
) -> list[list[int]]:
    """Of rows of some spans, ascending: the how-manieth of its span each is. One question, however many spans."""
    if not gapped:
        return []
    spans = [span for span, _ in gapped]
    statement = f"select s.position, d.row from {_ROWS_IN_SPANS} order by s.position, d.row"
    known = _query(connection, statement, spans_table(spans), _bounds_of(spans), name="spans")
    known_rows: list[list[int]] = [[] for _ in spans]
    for position, row in zip(*known.to_pydict().values(), strict=True):
        known_rows[position].append(row)
    return [[bisect_right(known_rows[position], row) for row in rows] for position, (_, rows) in enumerate(gapped)]


def _bounds_of(spans: Sequence[KnownSpan]) -> dict[str, object]:
    """Over all spans: they let DuckDB leave out most of a large table, which those of each span do not."""
    return {"after": min(span.after for span in spans), "last_row": max(span.last_row for span in spans)}


def count_documents(connection: duckdb.DuckDBPyConnection, last_rows: Mapping[UUID, int]) -> DocumentCounts:
    """Rows and distinct documents of the given scans, each up to its last row read. Spills to disk when large."""
    statement = """
        select coalesce(sum(num_rows), 0)::bigint, count(*) from (
            select count(*) as num_rows from asked a
            join document_rows d on d.scan_id = a.scan_id and d.row <= a.last_row
            group by d.document_hash
        )
    """
    (line,) = _query(connection, statement, last_rows_table(last_rows), {}).to_pylist()
    return DocumentCounts(*line.values())


def has_failures(connection: duckdb.DuckDBPyConnection, task: UUID) -> bool:
    """Whether any document ever failed for the task."""
    found = connection.execute(
        "select 1 from failures where task_fingerprint = $task limit 1", {"task": task}
    ).fetchall()
    return bool(found)


def has_results(connection: duckdb.DuckDBPyConnection, task: UUID) -> bool:
    """Whether any document has an answer of the task."""
    found = connection.execute(
        "select 1 from results where task_fingerprint = $task limit 1", {"task": task}
    ).fetchall()
    return bool(found)


def has_unasked(connection: duckdb.DuckDBPyConnection, task: UUID, failed_task: UUID, only: Only) -> bool:
    """Whether the task has no outcome yet for a document that failed in another, of the codes that are meant."""
    statement = f"""
        select 1 from (
            select document_hash from failures where task_fingerprint = $failed_task
            group by document_hash having $code is null or arg_max(code, (failed_at, rowid)) = $code
        ) a
        where not {_HAS_RESULT} and not {_HAS_FAILURE} and not {_HAS_RESULT.replace("$task", "$failed_task")}
        limit 1
    """
    parameters = {"task": task, "failed_task": failed_task, "code": _code_of(only)}
    return bool(connection.execute(statement, parameters).fetchall())


def _code_of(only: Only) -> str | None:
    """None: any."""
    return None if only is Only.FAILED else str(_CODES[only])


def count_without_outcome(connection: duckdb.DuckDBPyConnection, task: UUID, last_rows: Mapping[UUID, int]) -> int:
    """Distinct documents of the given rows that have neither a result nor a failure."""
    statement = f"""
        select count(distinct a.document_hash) as num from (
            select d.document_hash from asked s
            join document_rows d on d.scan_id = s.scan_id and d.row <= s.last_row
        ) a where not {_HAS_RESULT} and not {_HAS_FAILURE}
    """
    (line,) = _query(connection, statement, last_rows_table(last_rows), {"task": task}).to_pylist()
    return int(line["num"])


def count_open_failures(
    connection: duckdb.DuckDBPyConnection, task: UUID, last_rows: Mapping[UUID, int]
) -> dict[FailureCode, int]:
    """Rows among the given whose document has a failure and no result, by the code of its newest failure."""
    statement = f"""
        select n.code, count(*)
        from asked s
        join document_rows a on a.scan_id = s.scan_id and a.row <= s.last_row
        join (
            select f.document_hash, arg_max(f.code, (f.failed_at, f.rowid)) as code
            from failures f where f.task_fingerprint = $task group by f.document_hash
        ) n on n.document_hash = a.document_hash
        where not {_HAS_RESULT}
        group by n.code order by n.code
    """
    table = _query(connection, statement, last_rows_table(last_rows), {"task": task})
    return {FailureCode(code): count for code, count in zip(*table.to_pydict().values(), strict=True)}


def read_latency(connection: duckdb.DuckDBPyConnection, run_id: UUID) -> Latency:
    """Percentiles of what the run committed; exact up to a million results, above that of a sample of a million."""
    (found,) = connection.execute(LATENCY, {"run": run_id}).fetchall()
    return make_latency(found)


def make_latency(percentiles: Sequence[Sequence[float] | None]) -> Latency:
    """Of what LATENCY answers. To the microsecond: the columns are single precision, and 0.1 is not 0.10000000149 s."""
    return Latency(*(Percentiles(*(round(value, 6) for value in values or ())) for values in percentiles))


def _describe_to_do(run_id: UUID, task: UUID, selection: RunSelection) -> tuple[str, dict[str, object]]:
    """Which lines of `asked a` a run must ask, as a condition with its parameters.

    Only of parts that are joined by `and`: so each is a join that keeps the few lines of `asked` in memory and lets the
    results pass by. With an `or`, DuckDB keeps all results in memory: four times as slow at a million of them.
    """
    parameters: dict[str, object] = {"task": task, "run": run_id}
    only, failed_task = selection.only, selection.failed_task or task
    conditions = [f"not {_HAS_RESULT}", f"not {_FAILED_NOW}"]
    if only is Only.NEW:
        conditions.append(f"not {_HAS_FINAL_FAILURE}")
    elif failed_task != task:
        parameters |= {"failed_task": failed_task, "code": _code_of(only)}
        conditions.append(_FAILED_IN_EITHER)
    elif only is Only.FAILED:
        conditions.append(_HAS_FAILURE)
    else:
        parameters["code"] = _code_of(only)
        conditions.append(_LAST_FAILED_WITH)
    return " and ".join(conditions), parameters


def _query(
    connection: duckdb.DuckDBPyConnection,
    statement: str,
    asked: pa.Table,
    parameters: Mapping[str, object],
    name: str = "asked",
) -> pa.Table:
    """Run a query that reads the Arrow table as `asked`, or by another name."""
    connection.register(name, asked)
    try:
        return connection.sql(statement, params=dict(parameters)).to_arrow_table()
    finally:
        connection.unregister(name)
