"""How one thread waits for several engines: each rings when there is something to poll in it."""

import queue
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

from bulkinfer.engines.clock import Clock

_LOOK_EVERY_S = 1.0
_STRIDE_S = 0.05


class Bell(Protocol):
    """What all engines of a group ring."""

    poll_s: float
    """How long each engine that rang should be polled for."""

    def ring(self, replica: int) -> None:
        """There is something to poll in this engine. Any thread may call this."""

    def wait(self, timeout_s: float) -> Sequence[int]:
        """The engines to poll now, in order; waits up to `timeout_s` seconds for one that rings."""

    def now(self) -> float:
        """Seconds on the clock that all engines share."""


@dataclass(frozen=True, slots=True)
class Ringer:
    """The bell, for one engine."""

    bell: Bell
    replica: int

    def ring(self) -> None:
        """There is something to poll in this engine."""
        self.bell.ring(self.replica)

    def now(self) -> float:
        """Seconds on the clock that all engines share."""
        return self.bell.now()


class RealBell:
    """For engines with processes of their own: their readers ring, and time is the machine's.

    Once a second it names all engines: one that hangs never rings.
    """

    poll_s = 0.0

    def __init__(self, num_engines: int) -> None:
        self._num_engines = num_engines
        self._rung: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._looked_at_s = 0.0

    def ring(self, replica: int) -> None:
        """There is something to poll in this engine."""
        self._rung.put(replica)

    def wait(self, timeout_s: float) -> Sequence[int]:
        """The engines that rang since the last call."""
        rung: set[int] = set()
        with suppress(queue.Empty):
            rung.add(self._rung.get(timeout=timeout_s) if timeout_s > 0 else self._rung.get_nowait())
            while True:
                rung.add(self._rung.get_nowait())
        now_s = time.monotonic()
        if now_s - self._looked_at_s >= _LOOK_EVERY_S:
            self._looked_at_s = now_s
            return range(self._num_engines)
        return sorted(rung)

    def now(self) -> float:
        """The monotonic clock."""
        return time.monotonic()


class VirtualBell:
    """For simulated engines in this process, each with a virtual clock of its own: a simulation by discrete events.

    The engine whose clock is earliest goes first, and with it those that are at most 50 ms ahead. That is the error of
    a time at which something passes from one engine to another; within an engine times are exact.
    """

    poll_s = _STRIDE_S

    def __init__(self, clocks: Sequence[Clock]) -> None:
        self._clocks = clocks
        self._rung: list[tuple[float, int]] = []
        """A heap: when an engine goes on, the engine."""
        self._waiting: set[int] = set()
        self._now_s = 0.0

    def ring(self, replica: int) -> None:
        """There is something to poll in this engine, at the time of its own clock."""
        if replica not in self._waiting:
            self._waiting.add(replica)
            heappush(self._rung, (self._clocks[replica].now(), replica))

    def wait(self, timeout_s: float) -> Sequence[int]:  # noqa: ARG002 - nothing outside rings: there is nothing to wait for
        """The engines that go on next."""
        due = []
        if self._rung:
            self._now_s = max(self._now_s, self._rung[0][0])
        while self._rung and self._rung[0][0] <= self._now_s + _STRIDE_S:
            due.append(heappop(self._rung)[1])
        self._waiting.difference_update(due)
        return due

    def now(self) -> float:
        """Where the earliest of the engines that have something to do stands."""
        return self._now_s
