"""What a job says to its engine."""

from bulkinfer.engines.base import EngineSpec
from bulkinfer.job import EmbedTask, Job, RowSampling
from bulkinfer.priority import Priority

LOW_PRIORITY = 10
"""Of a request of a run at low priority; lower is earlier, and 0 is the normal one."""
LOW_NICE = 10
"""What the command `nice` adds: a process at 0 gets about nine times the processor time of one at 10."""


def describe_engine(job: Job, priority: Priority = Priority.NORMAL) -> EngineSpec:
    """The engine that the job asks for; what it leaves to the engine is None."""
    spec = job.spec
    is_low = priority is Priority.LOW
    return EngineSpec(
        kind=spec.engine.kind,
        model=job.model,
        revision=spec.model.revision,
        sampling=spec.sampling.to_engine() if spec.writes_answers else {},
        max_concurrency=_number_or_none(spec.limits.max_concurrency),
        max_context_tokens=_number_or_none(spec.limits.max_context_tokens),
        arguments=spec.engine.vllm if spec.engine.kind == "vllm" else spec.engine.simulated,
        chat_template=spec.model.chat_template,
        trust_remote_code=spec.model.trust_remote_code,
        step_timeout_s=spec.engine.step_timeout_s,
        reserve=spec.limits.reserve,
        priority=LOW_PRIORITY if is_low else 0,
        nice=LOW_NICE if is_low else 0,
        has_priorities=is_low,
        task=spec.task.kind,
        is_normalized=spec.task.normalize if isinstance(spec.task, EmbedTask) else True,
        overlong=spec.limits.overlong,
        overlap_tokens=spec.limits.overlap_tokens,
        is_plain=spec.writes_answers and spec.prompt.text is not None,
        reasoning=spec.output.reasoning,
        adapters=job.adapters,
        has_images=spec.prompt.images is not None,
        row_sampling=RowSampling(spec.sampling).parameters,
    )


def _number_or_none(limit: int | str) -> int | None:
    """None for `auto`."""
    return limit if isinstance(limit, int) else None
