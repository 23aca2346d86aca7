"""What a run is told from outside, and what it tells at its end."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from bulkinfer.errors import BulkinferError, ExitCode, Interrupted, StoreLocked
from bulkinfer.job import FailureLimit
from bulkinfer.priority import Priority
from bulkinfer.records import JsonValue, Only, RunStatus
from bulkinfer.runner.plan import RunPlan
from bulkinfer.runner.selection import describe_selection
from bulkinfer.store import RunSelection


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the command line adds to the job."""

    only: Only = Only.NEW
    limit: int | None = None
    """Ask so many documents at the most."""
    failure_limit: FailureLimit | None = None
    """Instead of the job's `limits.max_failures`."""
    grace_s: float | None = None
    """Instead of the job's `engine.grace_s`."""
    tells_documents: bool = False
    """Emit `DocumentsFinished`: somebody counts each document."""
    priority: Priority = Priority.NORMAL
    """Whether other work on this machine goes first."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """How a run ended. `summary` is what `run --json` prints; `error` says what went wrong, if anything did."""

    exit_code: ExitCode
    summary: Mapping[str, JsonValue]
    error: BulkinferError | None


def exit_code_of(error: BulkinferError | None) -> ExitCode:
    """The exit code of what ended a run."""
    return ExitCode.OK if error is None else error.exit_code


def status_of(error: BulkinferError | None) -> RunStatus:
    """The status of what ended a run."""
    match error:
        case None:
            return RunStatus.COMPLETED
        case Interrupted():
            return RunStatus.INTERRUPTED
        case StoreLocked():
            return RunStatus.LOCKED
        case _:
            return RunStatus.FAILED


def describe_end(
    plan: RunPlan, run_id: UUID, error: BulkinferError | None, selection: RunSelection
) -> dict[str, JsonValue]:
    """The part of the summary that tells which run it was, and how it ended."""
    return {
        "job": plan.job.spec.name,
        "run_id": str(run_id),
        "task_fingerprint": str(plan.task_fingerprint),
        "status": status_of(error).value,
        "exit_code": int(exit_code_of(error)),
        "error": None if error is None else str(error),
        "database": str(plan.job.database_path),
        **describe_selection(plan, selection),
    }
