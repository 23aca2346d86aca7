"""The two clocks of a simulated engine: the machine's, and one that only moves when the simulation says so."""

import time
from typing import Protocol

_VIRTUAL_IDLE_S = 0.001


class Clock(Protocol):
    """Where a simulated engine takes the time from, and where it spends it."""

    def now(self) -> float:
        """Seconds since some moment in the past; never goes back."""

    def sleep(self, seconds: float) -> None:
        """Let `seconds` of this clock pass: the engine is working."""

    def idle(self, seconds: float) -> None:
        """Wait for something outside the engine, at most `seconds`: the engine has nothing to do."""

    def advance_to(self, now_s: float) -> None:
        """An engine that was idle gets something to do at this time: pass over the time that it waited."""


class RealClock:
    """The machine's monotonic clock: a simulated second takes a second."""

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def idle(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def advance_to(self, now_s: float) -> None:
        """It is there by itself."""


class VirtualClock:
    """Starts at 0 and moves only by `sleep`, which takes no real time: hours of simulated work pass in seconds."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """Virtual seconds."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Move the clock."""
        self._now += seconds

    def idle(self, seconds: float) -> None:
        """Leave the clock alone, so that a slow disk does not make the simulated engine look slow.

        Gives up the processor for a moment, because what the caller waits for happens in real time.
        """
        time.sleep(min(seconds, _VIRTUAL_IDLE_S))

    def advance_to(self, now_s: float) -> None:
        """Jump forward; never back."""
        self._now = max(self._now, now_s)


class DrivenClock(VirtualClock):
    """A virtual clock for a sender that goes by it, too: while the engine is idle, it moves to the next arrival."""

    def idle(self, seconds: float) -> None:
        """Move the clock: nothing is waited for in real time."""
        self.sleep(seconds)
