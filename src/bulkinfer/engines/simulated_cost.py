"""What a step of the simulated engine costs. See `simulated`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step, by what is computed in it. By the names of `engine.simulated`."""

    seconds_per_prompt_token: float = 0.0005
    seconds_per_output_token: float = 0.002
    """Of each step, whatever is in it."""
    seconds_per_sequence: float = 0.0
    """Of each sequence that gets a token in it."""
    seconds_per_context_token: float = 0.0
    """Of each token in the KV cache that these sequences look back at."""

    def seconds(
        self, num_prompt_tokens: float, num_sequences: float, num_context_tokens: float, num_steps: float = 1
    ) -> float:
        """Of so many steps; the other numbers are sums over them."""
        return (
            num_steps * self.seconds_per_output_token
            + num_prompt_tokens * self.seconds_per_prompt_token
            + num_sequences * self.seconds_per_sequence
            + num_context_tokens * self.seconds_per_context_token
        )


FREE = StepCost(0.0, 0.0)
