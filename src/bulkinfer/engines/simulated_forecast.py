"""How long the simulated engine will take, from its cost model: without running it. See `simulated`."""

from dataclasses import dataclass

from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.simulated_arguments import parse_simulated_arguments


@dataclass(frozen=True, slots=True)
class SimulatedCost:
    """Of so many documents, on the engine's clock; faults and sequences put back for lack of KV cache left out."""

    output_tokens: float
    """Of all answers."""
    start_s: float
    low_s: float
    """All slots are filled to the end."""
    high_s: float
    """The longest answer begins last."""


def cost_of(spec: EngineSpec, num_documents: float, prompt_tokens: float, num_replicas: int = 1) -> SimulatedCost:
    """What these documents will cost. Raises JobError for wrong arguments.

    A step gives each of `max_concurrency` sequences a token, so list scheduling's bounds hold: at least the sum of the
    answers' tokens over the slots, at most that and one answer more (Graham, 1969).
    """
    arguments = parse_simulated_arguments(spec.arguments)
    if spec.is_pooling:  # each prompt is computed in the step that it enters, and a step has as many as there are slots
        num_steps = num_documents / spec.expected_concurrency
        seconds = arguments.cost.seconds(prompt_tokens, num_documents, 0, num_steps) / num_replicas
        last_s = arguments.cost.seconds_per_output_token if num_documents else 0.0
        return SimulatedCost(0.0, arguments.engine_start_s if num_documents else 0.0, seconds, seconds + last_s)
    answer_tokens = (spec.max_tokens + 1) / 2  # a hash modulo max_tokens, plus 1
    answer_tokens_squared = (spec.max_tokens + 1) * (2 * spec.max_tokens + 1) / 6
    if arguments.output_tokens is not None:
        answer_tokens = min(arguments.output_tokens, spec.max_tokens)
        answer_tokens_squared = answer_tokens**2
    # Each answer is a sequence of its own, with the prompt.
    num_answers = spec.num_answers_of({})
    num_documents, prompt_tokens = num_documents * num_answers, prompt_tokens * num_answers
    output_tokens = num_documents * answer_tokens
    # A token looks back at the prompt, except the first, and at the tokens of the answer before it.
    context_tokens = prompt_tokens * (answer_tokens - 1)
    context_tokens += num_documents * (answer_tokens_squared - answer_tokens) / 2
    num_steps = output_tokens / spec.expected_concurrency
    low_s = arguments.cost.seconds(prompt_tokens, output_tokens, context_tokens, num_steps) / num_replicas
    tail_s = spec.max_tokens * arguments.cost.seconds_per_output_token if num_documents else 0.0
    return SimulatedCost(output_tokens, arguments.engine_start_s if num_documents else 0.0, low_s, low_s + tail_s)
