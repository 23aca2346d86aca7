"""One commit: document rows, ends of files, results, failures and the commit record, in one transaction.

It may be run again after an unclear end: the commit record says whether the first attempt reached the disk, and the
anti-joins keep out whatever is there already.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

import duckdb

from bulkinfer.records import Failure, Outcome, Result
from bulkinfer.store.arrow import (
    failures_table,
    insert_table,
    last_rows_table,
    parts_table,
    results_table,
    rows_table,
)
from bulkinfer.store.queue import Pending
from bulkinfer.store.samples import SampleLine


@dataclass(frozen=True, slots=True)
class Written:
    """What a commit really added; less than it was given where something was there already."""

    num_results: int
    num_failures: int


_INSERT_RESULTS = """
    insert into results by name
    select $task::uuid as task_fingerprint, $run::uuid as run_id, p.*
        replace (try_cast(p.value as json) as value, p.details::json as details)
    from pending p
    where not exists (
        select 1 from results r where r.task_fingerprint = $task and r.document_hash = p.document_hash
    )
"""
_INSERT_FAILURES = """
    insert into failures by name
    select $task::uuid as task_fingerprint, $run::uuid as run_id, p.* replace (p.details::json as details)
    from pending p
    where not exists (
        select 1 from results r where r.task_fingerprint = $task and r.document_hash = p.document_hash
    )
    and not exists (
        select 1 from failures f
        where f.task_fingerprint = $task and f.run_id = $run
            and f.document_hash = p.document_hash and f.code = p.code and f.attempts = p.attempts
    )
"""
_INSERT_PARTS = """
    insert into parts by name
    select $task::uuid as task_fingerprint, $run::uuid as run_id, p.* replace (p.repairs::json as repairs)
    from pending p
    where not exists (
        select 1 from parts o
        where o.task_fingerprint = $task and o.part_hash = p.part_hash and o.finish_reason is not null
    )
"""
_INSERT_ENDS = """
    insert into scan_ends by name
    select p.*, $now::timestamptz as ended_at from pending p
    where not exists (select 1 from scan_ends e where e.scan_id = p.scan_id)
"""
_INSERT_COMMIT = """
    insert into commits by name
    select $run::uuid as run_id, $seq as seq, $rows as rows, $failed as failed, $now::timestamptz as committed_at,
        $document_rows as document_rows, $prompt_tokens as prompt_tokens, $output_tokens as output_tokens,
        $commit_s as commit_s
"""


def commit_pending(
    connection: duckdb.DuckDBPyConnection,
    run_id: UUID,
    task: UUID,
    seq: int,
    pending: Pending,
    line: SampleLine,
) -> Written:
    """Write rows, results, failures, a sample and the commit record; nothing when commit `seq` is there already."""
    began_s = time.monotonic()
    found = connection.execute(
        "select rows, failed from commits where run_id = $run and seq = $seq", {"run": run_id, "seq": seq}
    ).fetchall()
    if found:
        return Written(*found[0])
    keys: dict[str, object] = {"run": run_id, "task": task}
    results = _first_of_each(pending.outcomes)
    failures = list(
        {(o.document_hash, o.code, o.attempts): o for o in pending.outcomes if isinstance(o, Failure)}.values()
    )
    insert_table(connection, "insert into document_rows by name from pending", rows_table(pending.rows), {})
    if pending.ended_scans:
        _insert_ends(connection, pending.ended_scans)
    written = Written(
        num_results=insert_table(connection, _INSERT_RESULTS, results_table(results), keys),
        num_failures=insert_table(connection, _INSERT_FAILURES, failures_table(failures), keys),
    )
    if pending.parts:
        parts = list({part.part_hash: part for part in pending.parts}.values())
        insert_table(connection, _INSERT_PARTS, parts_table(parts), keys)
    line.insert(connection, run_id, seq)
    connection.execute(
        _INSERT_COMMIT,
        {
            "run": run_id,
            "seq": seq,
            "rows": written.num_results,
            "failed": written.num_failures,
            "now": datetime.now(UTC),
            "document_rows": len(pending.rows),
            "prompt_tokens": sum(result.prompt_tokens for result in results),
            "output_tokens": sum(result.output_tokens for result in results),
            "commit_s": time.monotonic() - began_s,
        },
    )
    return written


def _insert_ends(connection: duckdb.DuckDBPyConnection, ended_scans: Mapping[UUID, int]) -> None:
    insert_table(connection, _INSERT_ENDS, last_rows_table(ended_scans), {"now": datetime.now(UTC)})


def _first_of_each(outcomes: Iterable[Outcome]) -> list[Result]:
    """The first result of each document: within one statement the anti-join does not see the statement's own lines."""
    results: dict[bytes, Result] = {}
    for outcome in outcomes:
        if isinstance(outcome, Result):
            results.setdefault(outcome.document_hash, outcome)
    return list(results.values())
