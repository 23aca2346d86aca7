"""Which run a report is about, the one it is compared with, and all that the database knows of them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from bulkinfer.errors import JobError
from bulkinfer.records import JsonValue
from bulkinfer.store import (
    LongSilence,
    Reader,
    RemoteReader,
    RunDetails,
    RunIdentity,
    Spread,
    find_runs,
    read_details,
    read_spread,
    read_status,
)

AnyReader = Reader | RemoteReader

LEAST_STALL_S = 10.0
"""A shorter silence is no stall, however fast the engine is."""

_RUN_ID = re.compile(r"[0-9a-f-]{1,36}")


@dataclass(frozen=True, slots=True)
class Subject:
    """A run and the one before it."""

    details: RunDetails
    spread: Spread
    previous: RunDetails | None
    """The newest earlier run of the same task with outcomes."""
    newest_without: RunIdentity | None = None
    """A newer run of the job, which committed nothing: so the report is not about it."""
    live: Mapping[str, Any] = field(default_factory=dict)
    """How the run stands at this moment, if it lives."""

    @property
    def stall_limit_s(self) -> float:
        """A silence that lasts so long is a stall."""
        return max(LEAST_STALL_S, self.details.longest_in_engine_s or 0.0)

    @property
    def stalls(self) -> Sequence[LongSilence]:
        """Times in which nothing came for longer than 99 of 100 documents take; the one that goes on, too."""
        found = [silence for silence in self.details.silences if silence.length_s >= self.stall_limit_s]
        now_s, open_s = float(self.live.get("elapsed_s") or 0.0), float(self.live.get("since_result_s") or 0.0)
        if open_s >= self.stall_limit_s:
            found.append(LongSilence(max(0.0, now_s - open_s), now_s))
        return found


def read_subject(reader: AnyReader, name: str | None, run_id: str | None) -> Subject:
    """The run with this id (its beginning is enough), or the newest with outcomes; of one job, or of any.

    Raises JobError when there is no such run or it committed nothing; StoreError when the database cannot be read.
    """
    told = read_status(reader.path)
    live = reader.status() if isinstance(reader, RemoteReader) else {}
    live_run_id = str(live["run_id"]) if "run_id" in live else None
    prefix = None if run_id is None else _check_run_id(run_id)

    def find(**wanted: Any) -> list[RunIdentity]:  # noqa: ANN401  # as find_runs takes them
        return find_runs(reader, name=name, told=told, live_run_id=live_run_id, **wanted)

    newest = find(prefix=prefix, most=2)
    if not newest:
        raise _nothing_found(reader, name, run_id)
    if run_id is not None and len(newest) > 1:
        raise JobError(f"--run {run_id}: more than one run begins so; give more of the id")
    with_outcomes = [run for run in newest[:1] if run.num_commits] or find(prefix=prefix, has_commits=True)
    if not with_outcomes:
        raise JobError(
            f"{reader.path}: run {newest[0].run_id} ({newest[0].status}) has committed no outcome, so there is nothing "
            "to report; `bulkinfer status` tells how it stands"
        )
    run = with_outcomes[0]
    before = find_runs(reader, name=run.name, task=run.task_fingerprint, before=run.seq, has_commits=True, told=told)
    return Subject(
        details=read_details(reader, run, LEAST_STALL_S),
        spread=read_spread(reader, run.run_id),
        previous=read_details(reader, before[0], LEAST_STALL_S) if before else None,
        newest_without=newest[0] if newest[0].run_id != run.run_id else None,
        live=live if str(run.run_id) == live_run_id else {},
    )


def _check_run_id(run_id: str) -> str:
    prefix = run_id.strip().lower()
    if not _RUN_ID.fullmatch(prefix):
        raise JobError("--run: expected the id of a run, as `run --json` and `status` tell it, or its beginning")
    try:
        return str(UUID(prefix))  # without dashes it is an id, too
    except ValueError:
        return prefix


def _nothing_found(reader: AnyReader, name: str | None, run_id: str | None) -> JobError:
    if run_id is not None:
        known: list[JsonValue] = [f"{run.run_id} ({run.name})" for run in find_runs(reader, name=name, most=3)]
        newest = f"; the newest are {', '.join(map(str, known))}" if known else ""
        return JobError(f"--run {run_id}: {reader.path} holds no such run{newest}")
    of_job = "" if name is None else f" of a job named {name!r}"
    return JobError(f"{reader.path}: holds no run{of_job}; `bulkinfer run` makes one")
