"""What a run is made of besides its loop: the store that it holds, and the engine that it drives."""

from collections.abc import Callable

from bulkinfer.engines import create_engine
from bulkinfer.engines.base import Engine
from bulkinfer.errors import Interrupted, StoreLocked
from bulkinfer.records import Commit
from bulkinfer.runner.plan import RunPlan
from bulkinfer.runner.signals import StopFlag
from bulkinfer.store import CommitLimits, Store, engine_log_path


def create_engine_of(plan: RunPlan) -> Engine:
    """The job's engine, not started. Raises JobError for its arguments."""
    section = plan.job.spec.engine
    return create_engine(
        plan.engine_spec,
        start_timeout_s=section.start_timeout_s,
        silence_timeout_s=section.silence_timeout_s,
        log_path=engine_log_path(plan.job.database_path),
    )


def open_store(plan: RunPlan, stop: StopFlag, on_commit: Callable[[Commit], None]) -> Store:
    """The job's database, for this run alone.

    Raises StoreLocked and StoreError as `Store.open` does; Interrupted when a signal comes while others have it open.
    """
    output = plan.job.spec.output
    try:
        return Store.open(
            plan.job.database_path,
            job=str(plan.job.path),
            on_commit=on_commit,
            limits=CommitLimits(lock_wait_s=output.lock_timeout_s, stall_limit_s=output.stall_timeout_s),
            is_stopped=lambda: stop.is_set,
        )
    except StoreLocked:
        if stop.is_set:
            raise Interrupted(stop.received[0]) from None
        raise
