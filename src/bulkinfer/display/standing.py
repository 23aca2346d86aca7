"""What `status` says: of a live run from its status file, of the last one from the database."""

from collections.abc import Iterator, Mapping
from typing import Any

from bulkinfer.display.figures import format_s
from bulkinfer.display.summary import describe_fullness
from bulkinfer.records import RunStatus


def describe_status(found: Mapping[str, Any]) -> Iterator[str]:
    """What `status --json` prints, for people, as lines."""
    if found["status"] == RunStatus.RUNNING:
        yield from describe_running(found)
        return
    for past in found["runs"]:
        yield from describe_run(past)


def describe_running(status: Mapping[str, Any]) -> list[str]:
    """A live run, from its status file."""
    lines = [f"{status.get('job', '?')}: running, pid {status.get('pid', '?')} on {status.get('host', '?')}"]
    documents = status.get("documents", {})
    if documents and "queued" not in documents:
        lines += [f"  ending; {documents['succeeded']:,} answered, {documents['failed']:,} failed"]
    elif documents:
        documents, engine = status["documents"], status["engine"]
        lines += [
            f"  {documents['succeeded']:,} answered, {documents['failed']:,} failed of {documents['to_do']:,}",
            f"  {documents['read']:,} rows read{'' if documents['is_read_to_end'] else ', more to come'}",
            f"  {documents['queued']:,} queued, {documents['in_flight']:,} in flight, {engine['active']} active"
            + (f" in {len(engine['replicas'])} engines" if "replicas" in engine else ""),
            f"  KV cache {100 * engine['kv_cache_usage']:.0f} %, {engine['restarts']} restarts"
            + describe_fullness(engine),
            f"  {format_s(status['elapsed_s'])} so far; last commit {status.get('updated_at', '')}",
        ]
    return lines


def describe_run(past: Mapping[str, Any]) -> list[str]:
    """The last run of a job, from the database."""
    ended = past["status"] or "ended without a word (killed, or the machine stopped): run it again to resume"
    failed = ", ".join(f"{count:,} {code}" for code, count in past["failed_by_code"].items())
    error = (past["summary"] or {}).get("error")
    return [
        f"{past['name']}: {ended}" + (f", exit code {past['exit_code']}" if past["exit_code"] is not None else ""),
        f"  {past['num_rows']:,} input rows, {past['num_answered']:,} answered"
        + (f"; failed: {failed}" if failed else ""),
        f"  started {past['started_at']}, ended {past['ended_at'] or '?'}, run {past['run_id']}",
        *([f"  error: {error}"] if error else []),
    ]
