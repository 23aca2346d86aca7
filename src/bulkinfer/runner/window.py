"""The engine and the requests that are in flight in it: starting, feeding, restarting after a death.

It knows nothing of documents' outcomes or of the store.
"""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from bulkinfer.engines.base import Engine
from bulkinfer.errors import EngineDied, EngineError
from bulkinfer.events import EngineRestarting, EngineStarted, EngineStarting, EventSink
from bulkinfer.records import Completion, EngineEvent, EngineReady, EngineStats, Rejection, Request
from bulkinfer.retry import restart_wait_s
from bulkinfer.runner.ledger import Ledger

MAX_WINDOW_CHARS = 8 * 1024 * 1024
"""Requests in flight hold no more text than this, or one document: very long ones must not fill memory and pipe."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A request that the engine has."""

    request: Request
    submitted_at_s: float
    """On the engine's clock."""


@dataclass(frozen=True, slots=True)
class Returned:
    """A request that the engine is done with."""

    flight: InFlight
    event: Completion | Rejection


@dataclass(slots=True)
class Window:
    """Requests in flight, up to twice the engine's sequences.

    Enough that there is always one to put into a free slot; few enough that the order chosen outside is the order that
    runs, and that little is lost with an engine.
    """

    engine: Engine
    model: str
    max_concurrency: int
    max_restarts: int
    ledger: Ledger
    emit: EventSink
    is_started: bool = False
    is_ready: bool = False
    _in_flight: dict[bytes, InFlight] = field(default_factory=dict)
    _in_flight_chars: int = 0
    _lost: deque[Request] = field(default_factory=deque)
    """Were in flight when the engine died; they go first."""
    _num_deaths_in_a_row: int = 0
    _may_start_s: float = 0.0

    @property
    def num_in_flight(self) -> int:
        """Requests that the engine has."""
        return len(self._in_flight)

    @property
    def num_lost(self) -> int:
        """Requests that wait to be submitted again."""
        return len(self._lost)

    def feed(self, queue: deque[Request]) -> None:
        """Fill the window. The first request starts the engine: a run with nothing to do loads no model."""
        if not (queue or self._lost):
            return
        if not self.is_started:
            self._start()
        if not self.is_ready:
            return
        now_s = self.engine.now()
        requests = list(self._take(queue))
        for request in requests:
            self._in_flight[request.document_hash] = InFlight(request, now_s)
            self._in_flight_chars += request.num_chars
        if requests:
            self.ledger.note_submit()
            self.engine.submit(requests)

    def poll(self, timeout_s: float) -> list[Returned]:
        """What the engine finished. An engine that died is closed, and will be started again by a later `feed`.

        Raises EngineError when the engine does not start, or died too often without one answer in between.
        """
        if not self.is_started:
            return []
        try:
            events = self.engine.poll(timeout_s)
        except EngineDied as death:
            self._note_death(death)
            return []
        returned = [finished for event in events if (finished := self._take_event(event))]
        if returned:
            self._num_deaths_in_a_row = 0
        return returned

    def start_wait_s(self) -> float:
        """Seconds until a dead engine may be started again."""
        return 0.0 if self.is_started else max(0.0, self._may_start_s - time.monotonic())

    def close(self) -> None:
        """End the engine; what is in flight is given up."""
        self.engine.close()
        self.is_started = self.is_ready = False

    def _start(self) -> None:
        if time.monotonic() < self._may_start_s:
            return
        self.emit(EngineStarting(self.model, self.ledger.num_restarts))
        self.engine.start()
        self.is_started = True

    def _take(self, queue: deque[Request]) -> Iterator[Request]:
        room = 2 * self.max_concurrency - len(self._in_flight)
        chars = self._in_flight_chars
        while room > 0 and (first := self._lost or queue):
            if chars and chars + first[0].num_chars > MAX_WINDOW_CHARS:
                return
            chars += first[0].num_chars
            room -= 1
            yield first.popleft()

    def _take_event(self, event: EngineEvent) -> Returned | None:
        match event:
            case EngineReady():
                self.is_ready = True
                self.ledger.note_ready(event)
                self.emit(EngineStarted(event.start_s, event.settings))
            case EngineStats():
                self.ledger.note_stats(event)
            case Completion() | Rejection():
                flight = self._in_flight.pop(event.document_hash)
                self._in_flight_chars -= flight.request.num_chars
                return Returned(flight, event)
        return None

    def _note_death(self, death: EngineDied) -> None:
        """Put what was in flight back, in its order. No document is at fault yet."""
        self.close()
        self._num_deaths_in_a_row += 1
        self.ledger.note_restart()
        lost = [replace(flight.request, attempt=flight.request.attempt + 1) for flight in self._in_flight.values()]
        self._in_flight.clear()
        self._in_flight_chars = 0
        self._lost.extendleft(reversed(lost))
        if self._num_deaths_in_a_row > self.max_restarts:
            raise EngineError(
                f"the engine died {self._num_deaths_in_a_row} times without one answer in between; last: {death}. "
                "What was finished is in the database; run again to resume"
            ) from death
        wait_s = restart_wait_s(self._num_deaths_in_a_row)
        self._may_start_s = time.monotonic() + wait_s
        self.emit(EngineRestarting(str(death), len(lost), wait_s))
