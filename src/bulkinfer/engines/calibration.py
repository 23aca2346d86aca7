"""Fits the cost model of the simulated engine to the readings of a real one. `simulated_cost` has its terms.

What a step costs is a sum over what is in it, so what passed between two readings is one equation: so many steps,
prompt tokens, sequences and tokens looked back at took so many seconds. Least squares over many of them gives the
seconds of each; what was left out of the fit says how far it can be trusted.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from itertools import pairwise

from bulkinfer.engines.simulated_cost import StepCost
from bulkinfer.records import EngineReady, EngineStats, JsonValue

MIN_STRETCHES = 16
"""Between readings. With less, four costs and their error say nothing."""
_HOLD_OUT_EVERY = 4


@dataclass(frozen=True, slots=True)
class Stretch:
    """What an engine did between two readings. The order is that of `StepCost`, and the time."""

    num_prompt_tokens: int
    """That were computed."""
    num_steps: int
    num_sequences: int
    """Summed over the steps: each got a token in each."""
    num_context_tokens: int
    """Summed over the steps, and over their sequences."""
    seconds: float

    def predict(self, cost: StepCost) -> float:
        """Seconds that it should have taken."""
        return cost.seconds(self.num_prompt_tokens, self.num_sequences, self.num_context_tokens, self.num_steps)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A cost model, and how far it is off where it was not fitted."""

    cost: StepCost
    num_stretches: int
    num_held_out: int
    mean_error: float
    """Of a stretch that was held out: the mean of the absolute differences over the mean of the times."""
    total_error: float
    """Of all of them together; above 0: the model is too slow."""
    computed_share: float
    """Of the prompt tokens; the others came from the prefix cache."""

    def to_arguments(self, ready: EngineReady, prompt_tokens_factor: float = 1.0) -> dict[str, JsonValue]:
        """`engine.simulated` for an engine like the one that said that it is ready.

        The simulated engine has no prefix cache: a prompt token costs the less, the more came from the cache.
        `prompt_tokens_factor`: tokens of a prompt for each that the simulated engine takes it to have.
        """
        prompt_s = self.cost.seconds_per_prompt_token * self.computed_share
        cost = replace(self.cost, seconds_per_prompt_token=prompt_s)
        arguments: dict[str, JsonValue] = {one.name: getattr(cost, one.name) for one in fields(StepCost)}
        arguments["prompt_tokens_factor"] = prompt_tokens_factor
        if ready.num_kv_cache_tokens > 0:
            arguments["kv_cache_tokens"] = ready.num_kv_cache_tokens
        if isinstance(step_tokens := ready.settings.get("max_num_batched_tokens"), int):
            arguments["max_num_batched_tokens"] = step_tokens
        return arguments


def calibrate(readings: Sequence[EngineStats]) -> Calibration | None:
    """Fit the cost of a step to the readings of one engine, in their order; None where they are too few, or alike.

    Every fourth stretch is held out, to tell the error by. No cost is negative: a term whose best fit is, is left out.
    """
    stretches = [stretch for earlier, later in pairwise(readings) if (stretch := _subtract(earlier, later))]
    if len(stretches) < MIN_STRETCHES:
        return None
    held_out = stretches[_HOLD_OUT_EVERY - 1 :: _HOLD_OUT_EVERY]
    fitted = [one for number, one in enumerate(stretches, start=1) if number % _HOLD_OUT_EVERY]
    cost = _fit(fitted)
    if cost is None:
        return None
    differences = [one.predict(cost) - one.seconds for one in held_out]
    total_s = sum(one.seconds for one in held_out)
    num_prompt_tokens = readings[-1].num_prompt_tokens
    computed_share = readings[-1].num_computed_prompt_tokens / num_prompt_tokens if num_prompt_tokens else 1.0
    return Calibration(
        cost=cost,
        num_stretches=len(stretches),
        num_held_out=len(held_out),
        mean_error=sum(map(abs, differences)) / total_s,
        total_error=sum(differences) / total_s,
        computed_share=min(1.0, computed_share),
    )


def _subtract(earlier: EngineStats, later: EngineStats) -> Stretch | None:
    """None where nothing ran, or where the engine was started anew: its counters begin at zero."""
    stretch = Stretch(
        later.num_computed_prompt_tokens - earlier.num_computed_prompt_tokens,
        later.num_steps - earlier.num_steps,
        later.num_output_tokens - earlier.num_output_tokens,
        later.num_context_tokens - earlier.num_context_tokens,
        later.busy_s - earlier.busy_s,
    )
    return stretch if stretch.num_steps > 0 and stretch.seconds > 0 and min(astuple(stretch)) >= 0 else None


def _fit(stretches: Sequence[Stretch]) -> StepCost | None:
    import numpy as np  # noqa: PLC0415 - it takes a tenth of a second, and only this needs it

    rows = np.array([astuple(stretch) for stretch in stretches], dtype=float)
    amounts, seconds = rows[:, :-1], rows[:, -1]
    scales = amounts.max(axis=0)  # so that tokens and steps weigh the same in the solver
    terms = [index for index in range(len(scales)) if scales[index] > 0]
    while terms:
        solution, _, rank, _ = np.linalg.lstsq(amounts[:, terms] / scales[terms], seconds, rcond=None)
        if rank < len(terms):
            return None
        if solution.min() >= 0:
            found = dict(zip(terms, solution / scales[terms], strict=True))
            return StepCost(*(float(found.get(index, 0.0)) for index in range(len(scales))))
        terms.pop(int(solution.argmin()))
    return None
