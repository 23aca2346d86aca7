"""What the database knows of runs: how they began, over which input, and how they ended.

All take a connection with an open transaction, and neither begin nor commit. Each may be run again after an unclear
end: what is there is not written twice.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import duckdb
import orjson

from bulkinfer import __version__
from bulkinfer.records import JsonValue, RunStatus, Scan, SourceFile
from bulkinfer.store.arrow import inputs_table, insert_table, scans_table

TICK_NS = 50_000_000
"""A file that was changed less than this before its scan began is not known by its times: it may have been changed once
more during the scan, to the same size and within the same tick of its file system's clock. On Linux one lasts 10 ms."""
COARSE_TICK_NS = 2_000_000_000
"""The same where times have no fraction of a second: FAT's ticks last two."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One execution of a job, as it begins. Host, pid and version are added by the store."""

    run_id: UUID
    name: str
    """The job's name."""
    job_path: str
    started_at: datetime


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """All that can change an answer."""

    task_fingerprint: UUID
    spec: str
    """JSON text of what went into the fingerprint, for people."""


def begin_run(
    connection: duckdb.DuckDBPyConnection,
    run: RunRecord,
    task: TaskRecord,
    files: Sequence[SourceFile],
    layout: str,
    verdicts: Mapping[UUID, bool],
) -> list[Scan]:
    """Record the run and its input. A file that is as its newest scan saw it keeps that scan; others get a new one.

    `verdicts` says of scans that are not settled whether the file, read since the run began, has the rows they know.
    """
    _insert_task(connection, run, task)
    connection.execute(
        """
        insert into runs by name
        select $run_id::uuid as run_id, $name as name, $task::uuid as task_fingerprint, $job_path as job_path,
            $host as host, $pid as pid, $version as version, $started_at::timestamptz as started_at,
            (select coalesce(max(seq), 0) + 1 from runs) as seq
        where not exists (select 1 from runs r where r.run_id = $run_id)
        """,
        {
            "run_id": run.run_id,
            "name": run.name,
            "task": task.task_fingerprint,
            "job_path": run.job_path,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": __version__,
            "started_at": run.started_at,
        },
    )
    scans = _choose_scans(connection, run, files, layout, verdicts)
    _insert_inputs(connection, run, scans)
    return scans


def find_scans(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    files: Sequence[SourceFile],
    layout: str,
    *,
    is_unsettled: bool = False,
) -> list[Scan | None]:
    """For each file its newest scan for the job of this name, unless the file looks otherwise now.

    `is_unsettled`: only those whose files' times do not prove that they are as they were.
    """
    connection.execute(
        """
        select source, layout, size_bytes, mtime_ns, ctime_ns, inode, scan_id, epoch_ns(created_at) from scans
        where name = $name qualify row_number() over (partition by source order by rowid desc) = 1
        """,
        {"name": name},
    )
    newest = {tuple(rest): (scan_id, began_ns) for *rest, scan_id, began_ns in connection.fetchall()}
    found = [newest.get(identify_file(file, layout)) for file in files]
    if is_unsettled:
        found = [old if old and not is_settled(file, old[1]) else None for file, old in zip(files, found, strict=True)]
    scan_ids = [scan_id for scan_id, _ in filter(None, found)]
    if not scan_ids:  # to count the rows of none goes over all of them
        return [None] * len(files)
    known = _count_known_rows(connection, scan_ids)
    last_rows = _find_last_rows(connection, scan_ids)
    return [
        None
        if old is None
        else Scan(
            old[0],
            file,
            known.get(old[0], 0),
            is_complete=last_rows.get(old[0]) == known.get(old[0], 0),
            is_settled=is_settled(file, old[1]),
        )
        for file, old in zip(files, found, strict=True)
    ]


def end_run(
    connection: duckdb.DuckDBPyConnection,
    run_id: UUID,
    status: RunStatus,
    exit_code: int,
    summary: Mapping[str, JsonValue],
) -> None:
    """Record how a run ended."""
    connection.execute(
        """
        insert into run_ends by name
        select $run::uuid as run_id, $status as status, $exit_code as exit_code, $summary::json as summary,
            $now::timestamptz as ended_at
        where not exists (select 1 from run_ends e where e.run_id = $run)
        """,
        {
            "run": run_id,
            "status": str(status),
            "exit_code": exit_code,
            "summary": orjson.dumps(summary).decode(),
            "now": datetime.now(UTC),
        },
    )


def _insert_task(connection: duckdb.DuckDBPyConnection, run: RunRecord, task: TaskRecord) -> None:
    connection.execute(
        """
        insert into tasks by name
        select $task::uuid as task_fingerprint, $name as name, $spec::json as spec, $now::timestamptz as created_at
        where not exists (select 1 from tasks t where t.task_fingerprint = $task and t.name = $name)
        """,
        {"task": task.task_fingerprint, "name": run.name, "spec": task.spec, "now": run.started_at},
    )


def _choose_scans(
    connection: duckdb.DuckDBPyConnection,
    run: RunRecord,
    files: Sequence[SourceFile],
    layout: str,
    verdicts: Mapping[UUID, bool],
) -> list[Scan]:
    known = find_scans(connection, run.name, files, layout)
    kept = [_keep(scan, verdicts) if scan is not None else None for scan in known]
    scans = [scan or Scan(uuid4(), file, 0) for scan, file in zip(kept, files, strict=True)]
    _insert_scans(connection, run, [new for new, scan in zip(scans, kept, strict=True) if scan is None], layout)
    return scans


def _keep(scan: Scan, verdicts: Mapping[UUID, bool]) -> Scan | None:
    match verdicts.get(scan.scan_id):
        case None:
            return scan
        case True:  # its rows were read since the run began, so it is as good as a scan of this run
            return replace(scan, is_settled=True)
        case False:
            return None


def is_settled(file: SourceFile, began_ns: int) -> bool:
    """Whether a change after the beginning of the scan would show in the file's times."""
    is_coarse = file.mtime_ns % 1_000_000_000 == 0
    return max(file.mtime_ns, file.ctime_ns) + (COARSE_TICK_NS if is_coarse else TICK_NS) < began_ns


def identify_file(file: SourceFile, layout: str) -> tuple[str, str, int, int, int, int]:
    """What is the same as long as a file is as a scan of it with this layout saw it."""
    return (file.name, layout + file.layout + file.choice, file.size_bytes, file.mtime_ns, file.ctime_ns, file.inode)


def _count_known_rows(connection: duckdb.DuckDBPyConnection, scan_ids: Sequence[UUID]) -> dict[UUID, int]:
    """The last row of each scan. Rows are committed in order and by whole commits, so all before it are there."""
    connection.execute(
        "select scan_id, max(row) from document_rows where scan_id in (select unnest($scans::uuid[])) group by scan_id",
        {"scans": list(scan_ids)},
    )
    return dict(connection.fetchall())


def _find_last_rows(connection: duckdb.DuckDBPyConnection, scan_ids: Sequence[UUID]) -> dict[UUID, int]:
    """The last row of the file, of each scan that reached its end: complete are those that have all rows to there."""
    connection.execute(
        "select scan_id, last_row from scan_ends where scan_id in (select unnest($scans::uuid[]))",
        {"scans": list(scan_ids)},
    )
    return dict(connection.fetchall())


def _insert_scans(connection: duckdb.DuckDBPyConnection, run: RunRecord, scans: Sequence[Scan], layout: str) -> None:
    statement = """
        insert into scans by name
        select p.* exclude (file_layout), $name as name, $layout || p.file_layout as layout,
            $now::timestamptz as created_at
        from pending p
    """
    insert_table(connection, statement, scans_table(scans), {"name": run.name, "layout": layout, "now": run.started_at})


def _insert_inputs(connection: duckdb.DuckDBPyConnection, run: RunRecord, scans: Sequence[Scan]) -> None:
    statement = """
        insert into run_inputs by name
        select p.*, $run::uuid as run_id
        from pending p
        where not exists (select 1 from run_inputs i where i.run_id = $run)
    """
    insert_table(connection, statement, inputs_table(scans), {"run": run.run_id})
