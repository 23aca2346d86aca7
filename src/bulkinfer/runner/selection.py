"""Which documents of its input a run asks: new ones, or those that failed; and what people are told of it."""

from collections.abc import Iterator

from bulkinfer.errors import JobError
from bulkinfer.records import JsonValue, Only
from bulkinfer.runner.plan import RunPlan
from bulkinfer.store import RunSelection, Store


def select_documents(plan: RunPlan, only: Only, store: Store) -> RunSelection:
    """Decide, before the run is written down: one that selects nothing must not be the newest, and hide answers.

    Failures are those of the run's own task; of a task that has none yet, or has not come to all of them, those of the
    job without its changes. Raises JobError where there can be none and the task has no answers either: that would look
    like a success; StoreError.
    """
    task, original = plan.task_fingerprint, plan.original_task
    if only is Only.NEW:
        return RunSelection(only, task)
    if (
        original is not None
        and store.has_failures(original)
        and (not store.has_failures(task) or store.has_unasked(task, original, only))
    ):
        return RunSelection(only, original)
    if store.has_failures(task) or store.has_results(task):
        return RunSelection(only, task)
    raise JobError(
        f"--only {only}: nothing has failed with these settings. A change of prompt, model or sampling in the job file "
        "is a new task: run it without --only. What --set changes stays in the task that failed where it cannot alter "
        "an answer, as sampling.max_tokens upwards and most of limits and output: see docs/failures.md"
    )


def describe_selection(plan: RunPlan, selection: RunSelection) -> dict[str, JsonValue]:
    """The part of the summary about it: {} of a run over new documents."""
    if selection.only is Only.NEW:
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


def iter_selection_warnings(plan: RunPlan, selection: RunSelection) -> Iterator[str]:
    """That answers go elsewhere than people may think."""
    if selection.failed_task == plan.task_fingerprint:
        return
    changed = ", ".join(dict.fromkeys(plan.job.changed))
    yield (
        f"what --set changes ({changed}) can alter answers that are there, so this run is a new task, "
        f"{plan.task_fingerprint}: it asks what failed in {selection.failed_task}, whose answers stay beside its own. "
        "`answers`, `failures` and `export` show the newest task; a run without --set shows the old one again"
    )
