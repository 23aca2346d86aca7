"""How long the work that is left will take, and what that rests on. Never a number from nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from bulkinfer.engines.simulated_forecast import cost_of
from bulkinfer.runner.plan import RunPlan
from bulkinfer.store import PastRun, Reader, RemoteReader, read_answer_lengths, read_past_runs

MIN_ANSWERS = 200
"""With fewer an estimate is rough: the engine was hardly full."""


class Basis(StrEnum):
    """What an estimate rests on."""

    NOTHING_TO_DO = "nothing_to_do"
    COST_MODEL = "cost_model"
    EARLIER_RUNS = "earlier_runs"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be asked."""

    num_documents: float
    prompt_tokens: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of output tokens and seconds; None where nothing is known."""

    basis: Basis
    reason: str
    """For people: what it rests on, or why there is none."""
    advice: str = ""
    """A command that gives a base, or a better one."""
    output_tokens: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    engine_start_s: float | None = None
    """In neither of the two."""
    runs: tuple[str, ...] = ()
    """Ids, the newest first."""


def estimate_work(plan: RunPlan, work: Work, reader: Reader | RemoteReader | None) -> Estimate:
    """Estimate what is left. Raises StoreError as the reader does."""
    if work.num_documents == 0:
        return Estimate(Basis.NOTHING_TO_DO, "there is nothing to ask the model", "", 0.0, 0.0, 0.0, 0.0)
    spec = plan.job.spec
    if spec.engine.kind == "simulated":
        replicas = spec.engine.replicas
        num_replicas = replicas if isinstance(replicas, int) else 1  # `auto` is one of these
        cost = cost_of(plan.engine_spec, work.num_documents, work.prompt_tokens, num_replicas)
        reason = "the cost model of the simulated engine"
        return Estimate(Basis.COST_MODEL, reason, "", cost.output_tokens, cost.low_s, cost.high_s, cost.start_s)
    most_tokens = spec.max_tokens * spec.sampling.num_answers
    runs: list[PastRun] = []
    answered: tuple[int, float] = (0, 0.0)
    if reader is not None:
        task = "generate" if spec.writes_answers else spec.task.kind
        runs = read_past_runs(reader, spec.engine.kind, spec.model.path, spec.model.revision, task)
        answered = read_answer_lengths(reader, plan.task_fingerprint, most_tokens)
    return estimate_from_runs(work, runs, answered, most_tokens, plan.job.target)


def estimate_from_runs(
    work: Work, runs: Sequence[PastRun], answered: tuple[int, float], max_tokens: int, job: str
) -> Estimate:
    """From the speed of earlier runs with the model; `answered`: how many answers the task has, and their mean length.

    A run took a * prompt tokens + b * output tokens seconds for some a and b. Whatever they are, the work left takes a
    time between the one that its prompt tokens alone would give, in proportion, and the one of its output tokens; where
    nothing is written, of its documents.
    """
    num_answered, mean_tokens = answered
    advice = f"bulkinfer run {job} --limit {MIN_ANSWERS}"
    if not runs and num_answered == 0:
        return Estimate(Basis.NONE, "no run with this model on this machine yet", advice)
    if num_answered == 0:
        mean_tokens = sum(run.output_tokens for run in runs) / max(1.0, sum(run.num_answered for run in runs))
    output_tokens = work.num_documents * min(mean_tokens, max_tokens)
    if not runs:
        return Estimate(Basis.NONE, "no run with this model has ended on this machine yet", advice, output_tokens)
    bounds = [
        run.generate_s * share
        for run in runs
        for share in (work.prompt_tokens / run.prompt_tokens, _share_of_rest(work, output_tokens, run))
    ]
    num_documents = sum(run.num_answered for run in runs)
    shown = ", ".join(f"{str(run.run_id)[:8]} of {run.started_at[:16]}" for run in runs)
    return Estimate(
        Basis.EARLIER_RUNS,
        f"{num_documents:,.0f} answers of {'the run' if len(runs) == 1 else 'the runs'} {shown}",
        advice if num_documents < MIN_ANSWERS else "",
        output_tokens,
        min(bounds),
        max(bounds),
        runs[0].engine_start_s,
        tuple(str(run.run_id) for run in runs),
    )


def _share_of_rest(work: Work, output_tokens: float, run: PastRun) -> float:
    """What is left besides prompts, as a share of what a run did."""
    if run.output_tokens:
        return output_tokens / run.output_tokens
    return work.num_documents / max(1.0, run.num_answered)
