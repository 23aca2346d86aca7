"""How long nothing came of the documents that were asked: what a stall is made of."""

import time
from dataclasses import dataclass, field
from queue import SimpleQueue

_SHORTEST_S = 1.0
"""A shorter silence is nobody's concern."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A time without an outcome while documents were asked."""

    ended_s: float
    """From the start of the run."""
    length_s: float


@dataclass(slots=True)
class Listening:
    """The loop's thread notes; one other thread takes what was longest.

    A run may have a hundred thousand outcomes a second: of those between two ticks, the first alone looks at the clock.
    So a silence may seem longer by the time between two ticks, a quarter of a second.
    """

    began_s: float
    """Monotonic time at which the run began."""
    _since_s: float | None = None
    """Since when documents have been asked without an outcome; None: nothing is asked."""
    _is_noted: bool = False
    """Whether there was an outcome since the last tick."""
    _ended: SimpleQueue[Silence] = field(default_factory=SimpleQueue)

    def note_asked(self) -> None:
        """Documents are in flight, or were until their engine died."""
        if self._since_s is None:
            self._since_s = time.monotonic()

    def note_outcome(self) -> None:
        """One is done with."""
        if self._is_noted:
            return
        self._is_noted = True
        self._since_s = self._note_silence()

    def note_tick(self, *, is_idle: bool) -> None:
        """Some time has passed. `is_idle`: nothing is asked."""
        self._is_noted = False
        if is_idle:
            self._since_s = None

    def note_end(self, *, is_idle: bool) -> None:
        """The run asks no more: what is open now never ends otherwise, and may be why the run was ended. Safe twice."""
        if not is_idle:
            self._note_silence()
        self._since_s = None

    def open_s(self) -> float | None:
        """How long nothing has come until now; None while nothing is asked. For any thread."""
        since_s = self._since_s
        return None if since_s is None else max(0.0, time.monotonic() - since_s)

    def take_longest(self) -> Silence:
        """The longest that ended since it was last called; of none, one of no length."""
        longest = Silence(0.0, 0.0)
        while not self._ended.empty():
            longest = max(longest, self._ended.get(), key=lambda silence: silence.length_s)
        return longest

    def _note_silence(self) -> float:
        """One ends now, if it was long enough. Returns the time."""
        now_s = time.monotonic()
        if self._since_s is not None and now_s - self._since_s >= _SHORTEST_S:
            self._ended.put(Silence(now_s - self.began_s, now_s - self._since_s))
        return now_s
