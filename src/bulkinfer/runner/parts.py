"""What a run is made of besides its loop: the store that it holds, the engine that it drives, the planner of shards."""

from collections.abc import Callable, Sequence

from bulkinfer.engines import EngineGroup, create_engines
from bulkinfer.errors import Interrupted, StoreLocked
from bulkinfer.priority import Priority
from bulkinfer.records import Commit, Overlong, Scan
from bulkinfer.runner.plan import RunPlan
from bulkinfer.runner.signals import StopFlag
from bulkinfer.shards import MAX_SHARD_CHARS, MAX_SHARD_DOCUMENTS, ShardPlanner
from bulkinfer.store import CommitLimits, RunSelection, Store, engine_log_path


def create_engines_of(plan: RunPlan, priority: Priority = Priority.NORMAL) -> EngineGroup:
    """The job's engines, not started. Raises JobError for their arguments, or if there is no room for so many."""
    section = plan.job.spec.engine
    return create_engines(
        plan.describe_engine(priority),
        None if section.replicas == "auto" else section.replicas,
        start_timeout_s=section.start_timeout_s,
        silence_timeout_s=section.silence_timeout_s,
        log_path_of=lambda replica: engine_log_path(plan.job.database_path, replica),
    )


def open_store(plan: RunPlan, stop: StopFlag, on_commit: Callable[[Commit], None]) -> Store:
    """The job's database, for this run alone.

    Raises StoreLocked and StoreError as `Store.open` does; Interrupted when a signal comes while others have it open.
    """
    output = plan.job.spec.output
    try:
        return Store.open(
            plan.job.database_path,
            job=plan.job.shown,
            on_commit=on_commit,
            limits=CommitLimits(lock_wait_s=output.lock_timeout_s, stall_limit_s=output.stall_timeout_s),
            is_stopped=lambda: stop.is_set,
        )
    except StoreLocked:
        if stop.is_set:
            raise Interrupted(stop.received[0]) from None
        raise


def create_planner(
    plan: RunPlan, selection: RunSelection, limit: int | None, scans: Sequence[Scan], store: Store
) -> ShardPlanner:
    """What makes the shards of a run out of its input."""
    return ShardPlanner(
        scans=scans,
        template=plan.template,
        id_field=plan.job.spec.input.id,
        find_done=lambda hashes: store.find_done(hashes, selection),
        limit=limit,
        max_documents=MAX_SHARD_DOCUMENTS,
        max_chars=MAX_SHARD_CHARS,
        find_wanted=lambda spans: store.find_wanted(spans, selection),
        notes_spans=Overlong(plan.job.spec.limits.overlong) is not Overlong.FAIL,
    )
