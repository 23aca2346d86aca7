"""What a prompt token and an output token cost in time, learnt from a run as it goes.

Computing prompts is several times faster than answering, token by token, and a run does much of the first before the
second: one common speed would promise an end in a second when all prompts are computed and no answer is.
"""

from dataclasses import dataclass, field

_LEAST_INTERVAL_S = 2.0
"""Shorter ones are noise: the engine's readings come every half second."""
_LEAST_SPREAD = 1e-3
"""Below it, prompt and output tokens came in the same proportion all the time: what each costs cannot be told."""


@dataclass(slots=True)
class Pace:
    """A least-squares fit of seconds = prompt tokens * a + output tokens * b over the intervals so far."""

    _then: tuple[float, int, int] | None = None
    _seconds: float = 0.0
    _tokens: int = 0
    _sums: list[float] = field(default_factory=lambda: [0.0] * 5)
    """Of prompt**2, prompt * output, output**2, prompt * seconds, output * seconds."""

    def note(self, now_s: float, prompt_tokens: int, output_tokens: int) -> None:
        """Tokens computed since the beginning. An interval in which nothing was computed is a wait, and not counted."""
        if self._then is None:
            self._then = (now_s, prompt_tokens, output_tokens)
            return
        then_s, prompt_then, output_then = self._then
        seconds, prompt, output = now_s - then_s, prompt_tokens - prompt_then, output_tokens - output_then
        if seconds < _LEAST_INTERVAL_S:
            return
        self._then = (now_s, prompt_tokens, output_tokens)
        if prompt < 0 or output < 0 or prompt + output == 0:
            return
        self._seconds += seconds
        self._tokens += prompt + output
        terms = (prompt * prompt, prompt * output, output * output, prompt * seconds, output * seconds)
        self._sums = [total + term for total, term in zip(self._sums, terms, strict=True)]

    def seconds_for(self, prompt_tokens: float, output_tokens: float) -> float | None:
        """How long so many more take; None before anything was computed."""
        if self._tokens == 0:
            return None
        common = self._seconds / self._tokens
        prompt_cost, output_cost = self._fit() or (common, common)
        return prompt_tokens * prompt_cost + output_tokens * output_cost

    def _fit(self) -> tuple[float, float] | None:
        prompt2, both, output2, prompt_s, output_s = self._sums
        determinant = prompt2 * output2 - both * both
        if determinant <= _LEAST_SPREAD * prompt2 * output2:
            return None
        prompt_cost = (prompt_s * output2 - output_s * both) / determinant
        output_cost = (output_s * prompt2 - prompt_s * both) / determinant
        return (prompt_cost, output_cost) if prompt_cost >= 0 and output_cost >= 0 else None
