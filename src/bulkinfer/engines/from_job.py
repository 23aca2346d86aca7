"""What a job says to its engine."""

from bulkinfer.engines.base import EngineSpec
from bulkinfer.job import Job


def describe_engine(job: Job) -> EngineSpec:
    """The engine that the job asks for; what it leaves to the engine is None."""
    spec = job.spec
    return EngineSpec(
        kind=spec.engine.kind,
        model=job.model,
        revision=spec.model.revision,
        sampling=spec.sampling.to_engine(),
        max_concurrency=_number_or_none(spec.limits.max_concurrency),
        max_context_tokens=_number_or_none(spec.limits.max_context_tokens),
        arguments=spec.engine.vllm if spec.engine.kind == "vllm" else spec.engine.simulated,
        chat_template=spec.model.chat_template,
        trust_remote_code=spec.model.trust_remote_code,
        step_timeout_s=spec.engine.step_timeout_s,
    )


def _number_or_none(limit: int | str) -> int | None:
    """None for `auto`."""
    return limit if isinstance(limit, int) else None
