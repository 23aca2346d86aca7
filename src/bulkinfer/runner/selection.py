"""Which documents of its input a run asks: new ones, or those that failed; and what people are told of it."""

from collections.abc import Iterator

from bulkinfer.errors import JobError
from bulkinfer.records import JsonValue, Only
from bulkinfer.runner.plan import RunPlan
from bulkinfer.store import RunSelection, Store


def select_documents(plan: RunPlan, only: Only, store: Store) -> RunSelection | None:
    """Decide; None where a run over failures can find none. Raises StoreError.

    Failures are those of the run's own task; of a task that has none yet, those of the job without its changes.
    """
    if only is Only.NEW or store.has_failures(plan.task_fingerprint):
        return RunSelection(only, plan.task_fingerprint)
    if plan.original_task is not None and store.has_failures(plan.original_task):
        return RunSelection(only, plan.original_task)
    return None


def refuse_selection(only: Only) -> JobError:
    """A selective run that can select nothing must not look like a success."""
    return JobError(
        f"--only {only}: nothing has failed with these settings. A change of prompt, model or sampling in the job file "
        "is a new task: run it without --only. What --set changes stays in the task that failed where it cannot alter "
        "an answer, as sampling.max_tokens upwards and most of limits and output: see docs/failures.md"
    )


def describe_selection(plan: RunPlan, selection: RunSelection | None) -> dict[str, JsonValue]:
    """The part of the summary about it: {} of a run over new documents."""
    if selection is None or selection.only is Only.NEW:
        return {}
    changed: JsonValue = list(dict.fromkeys(plan.job.changed))
    return {
        "selection": {
            "only": selection.only.value,
            "changed": changed,
            "failed_task": str(selection.failed_task),
            "is_new_task": selection.failed_task != plan.task_fingerprint,
        }
    }


def iter_selection_warnings(plan: RunPlan, selection: RunSelection | None) -> Iterator[str]:
    """That answers go elsewhere than people may think."""
    if selection is None or selection.failed_task == plan.task_fingerprint:
        return
    changed = ", ".join(dict.fromkeys(plan.job.changed))
    yield (
        f"what --set changes ({changed}) can alter answers that are there, so this run is a new task, "
        f"{plan.task_fingerprint}: it asks what failed in {selection.failed_task}, whose answers stay beside its own. "
        "`answers`, `failures` and `export` show the newest task; a run without --set shows the old one again"
    )
