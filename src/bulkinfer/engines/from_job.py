"""What a job says to its engine."""

from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.scoring import Scoring
from bulkinfer.job import ClassifyTask, EmbedTask, ExtractTask, Job, JobSpec, RowSampling
from bulkinfer.priority import Priority
from bulkinfer.records import FORM, JsonValue

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
        sampling=_describe_sampling(spec),
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
        scoring=_describe_scoring(spec),
        row_sampling=RowSampling(spec.sampling).parameters,
    )


def _describe_sampling(spec: JobSpec) -> dict[str, JsonValue]:
    """With what follows from the task: the length of an answer, and the form that it is held to."""
    if not spec.writes_answers:
        return {}
    sampling: dict[str, JsonValue] = {**spec.sampling.to_engine(), "max_tokens": spec.max_tokens}
    match spec.task:
        case ClassifyTask(choices=choices):
            sampling[FORM] = {"choice": list(choices)}
        case ExtractTask(answer_schema=dict(schema)):
            sampling[FORM] = {"json": schema}
        case ExtractTask(regex=str(regex)):
            sampling[FORM] = {"regex": regex}
    return sampling


def _describe_scoring(spec: JobSpec) -> Scoring | None:
    """Without the prompt of the empty document, which only the plan of a run has."""
    match spec.task:
        case ClassifyTask(choices=choices, is_scored=True, probabilities=probabilities):
            return Scoring(choices, is_told=probabilities)
    return None


def _number_or_none(limit: int | str) -> int | None:
    """None for `auto`."""
    return limit if isinstance(limit, int) else None
