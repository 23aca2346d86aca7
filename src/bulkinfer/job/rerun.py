"""Which changes of a job cannot alter an answer that is there: what a run over failures may change within its task."""

from bulkinfer.job.spec import JobSpec


def keep_task(changed: JobSpec, original: JobSpec) -> JobSpec:
    """The job that tells which task a run over failures belongs to: the changed one, without what is harmless to it.

    More tokens for an answer: those that are there ended by themselves, unless the job takes cut ones. A policy for
    documents that are too long, where there was none: what was answered had no need of it. Other limits, repairs and
    engine arguments are no part of a task in any case.
    """
    updates: dict[str, object] = {}
    is_longer = (changed.sampling.max_tokens or 0) > (original.sampling.max_tokens or 0) > 0
    if is_longer and not original.output.accept_truncated:
        updates["sampling"] = changed.sampling.model_copy(update={"max_tokens": original.sampling.max_tokens})
    if original.limits.overlong == "fail":
        updates["limits"] = original.limits
    return changed.model_copy(update=updates)
