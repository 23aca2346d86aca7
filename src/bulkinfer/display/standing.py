"""What `status` says: of a live run by its own word or its status file, of the last one from the database."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from bulkinfer.display.console import visible
from bulkinfer.display.figures import format_s
from bulkinfer.display.progress import describe_facts, describe_progress, render_progress
from bulkinfer.display.summary import describe_fullness
from bulkinfer.display.told import read_progress
from bulkinfer.records import RunStatus


def render_standing(found: Mapping[str, Any], height: int = 24) -> RenderableType:
    """What `status --json` prints, for a terminal of so many lines: of a live run the view that its own display has."""
    progress = read_progress(found) if found["status"] == RunStatus.RUNNING else None
    if progress is None:
        return Text("\n".join(visible(line) for line in describe_status(found)))
    head = Text(visible(_head(found))), Text(visible(_since(found)), style="dim")
    return Group(*head, render_progress(progress, height - len(head)))


def describe_status(found: Mapping[str, Any]) -> Iterator[str]:
    """What `status --json` prints, for people, as lines."""
    match found["status"]:
        case RunStatus.RUNNING:
            yield from describe_running(found)
        case "waiting":
            yield f"waiting for a run: {found['reason']}; {found['database']}"
        case _:
            for past in found["runs"]:
                yield from describe_run(past)


def describe_in_one_line(found: Mapping[str, Any]) -> str:
    """A live run, or one that is waited for, as one line of many."""
    progress = read_progress(found) if found["status"] == RunStatus.RUNNING else None
    if progress is None:
        return next(iter(describe_status(found)))
    return f"{found.get('job', '?')}: {describe_progress(progress)}{_doubt(found)}"


def describe_running(status: Mapping[str, Any]) -> list[str]:
    """A live run, by what it told; no more than who it is where that is damaged or of another version."""
    try:
        return [_head(status), *_describe_counts(status)]
    except (AttributeError, LookupError, TypeError, ValueError):
        return [_head(status)]


def _describe_counts(status: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    documents = status.get("documents", {})
    if documents and "queued" not in documents:
        lines += [f"  ending; {documents['succeeded']:,} answered, {documents['failed']:,} failed"]
    elif documents:
        documents, engine = status["documents"], status["engine"]
        progress = read_progress(status)
        lines += [
            f"  {documents['succeeded']:,} answered, {documents['failed']:,} failed of {documents['to_do']:,}",
            f"  {documents['read']:,} rows read{'' if documents['is_read_to_end'] else ', more to come'}",
            f"  {documents['queued']:,} queued, {documents['in_flight']:,} in flight, {engine['active']} active"
            + (f" in {len(engine['replicas'])} engines" if "replicas" in engine else ""),
            f"  KV cache {100 * engine['kv_cache_usage']:.0f} %, {engine['restarts']} restarts"
            + describe_fullness(engine),
            *([] if progress is None else [f"  {fact}" for fact in describe_facts(progress)]),
            f"  {_since(status)}",
        ]
    return lines


def describe_run(past: Mapping[str, Any]) -> list[str]:
    """The last run of a job, from the database."""
    ended = past["status"] or "ended without a word (killed, or the machine stopped): run it again to resume"
    failed = ", ".join(f"{count:,} {code}" for code, count in past["failed_by_code"].items())
    error = (past["summary"] or {}).get("error")
    begin, end = _tell_time(past["started_at"]), _tell_time(past["ended_at"] or "?")
    return [
        f"{past['name']}: {ended}" + (f", exit code {past['exit_code']}" if past["exit_code"] is not None else ""),
        f"  {past['num_rows']:,} input rows, {past['num_answered']:,} answered"
        + (f"; failed: {failed}" if failed else ""),
        f"  started {begin}, ended {end}, run {past['run_id']}",
        *([f"  error: {error}"] if error else []),
    ]


def _head(status: Mapping[str, Any]) -> str:
    about = f"pid {status.get('pid', '?')} on {status.get('host', '?')}"
    return f"{status.get('job', '?')}: running, {about}{_doubt(status)}"


def _doubt(status: Mapping[str, Any]) -> str:
    return "" if status.get("is_answering", True) else "; it does not answer, so this is as of its last commit"


def _since(status: Mapping[str, Any]) -> str:
    committed = _tell_time(status.get("updated_at", ""))
    return f"{format_s(status['elapsed_s'])} so far" + (f"; last commit {committed}" if committed else "")


def _tell_time(moment: object) -> str:
    """To the second; all of ours are in UTC."""
    return re.sub(r"(\.\d+)?\+00:00$", "Z", str(moment))
