"""What a run did in the last minutes, stretch by stretch, in bounded memory."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from bulkinfer.events import NO_TREND, Trend

NUM_STRETCHES = 60
"""As many are kept; a terminal of 80 columns shows about 40 of them."""
MAX_STRETCH_S = 8.0
"""They begin with a second and become twice as long whenever there are too many, up to this: then the oldest go."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What was done since the run began."""

    num_documents: int
    num_prompt_tokens: int
    num_output_tokens: int


@dataclass(slots=True)
class TrendKeeper:
    """Counts at the ends of stretches. A stretch in which nothing was noted is one in which nothing was done."""

    _stretch_s: float = 1.0
    _end_s: float | None = None
    """When the stretch that goes on ends; None before the first."""
    _last: Counts = field(default_factory=lambda: Counts(0, 0, 0))
    _marks: deque[Counts] = field(default_factory=deque)

    def note(self, now_s: float, counts: Counts) -> None:
        """What was done until now, several times a second: how it spreads over the time since the last is not known."""
        if self._end_s is None:
            self._end_s = now_s + self._stretch_s
            self._marks.append(counts)
        while now_s >= self._end_s:
            self._marks.append(self._last)
            self._make_room()
            self._end_s += self._stretch_s
        self._last = counts

    def read(self) -> Trend:
        """Each stretch that is over. Tokens that were lost with an engine are not taken off again."""
        if len(self._marks) < 2:
            return NO_TREND
        return Trend(
            stretch_s=self._stretch_s,
            num_documents=_find_steps([mark.num_documents for mark in self._marks]),
            num_prompt_tokens=_find_steps([mark.num_prompt_tokens for mark in self._marks]),
            num_output_tokens=_find_steps([mark.num_output_tokens for mark in self._marks]),
        )

    def _make_room(self) -> None:
        if len(self._marks) <= NUM_STRETCHES:
            return
        if self._stretch_s >= MAX_STRETCH_S:
            self._marks.popleft()
        else:
            self._stretch_s *= 2
            self._marks = deque(list(self._marks)[::2])


def _find_steps(counts: Sequence[int]) -> tuple[int, ...]:
    return tuple(max(0, after - before) for before, after in pairwise(counts))
