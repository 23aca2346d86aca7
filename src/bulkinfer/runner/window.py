"""One engine and the requests that are in flight in it: starting, feeding, restarting after a death.

It knows nothing of documents' outcomes or of the store.
"""

import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from bulkinfer.engines.base import Engine
from bulkinfer.errors import EngineDied, EngineError, JobError
from bulkinfer.events import EngineLost, EnginePhase, EngineRestarting, EngineStarted, EngineStarting, EventSink
from bulkinfer.records import (
    Aborted,
    Completion,
    EngineEvent,
    EngineReady,
    EngineStats,
    FailureCode,
    Message,
    Origin,
    Rejection,
    Request,
)
from bulkinfer.retry import restart_wait_s
from bulkinfer.runner.ledger import Ledger
from bulkinfer.runner.queue import Supply

MAX_WINDOW_CHARS = 8 * 1024 * 1024
"""Requests in flight hold no more text than this, or 32 times as much of images, or one document: very long ones must
not fill memory and pipe."""

MAX_HALVINGS = 16
"""Deaths in a row that looking for a killer may take on top: the binary logarithm of the largest window, and a second
killer in it."""


_PROBE = Request(bytes(16), Origin("", 0, ""), (Message("user", "Hello"),), num_chars=5)
"""A prompt of our own, of which nobody gets the answer: is the engine broken, or was it the documents?"""


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
    replica: int = 0


@dataclass(slots=True)
class Window:
    """Requests in flight, up to twice the engine's sequences.

    Enough that there is always one to put into a free slot; few enough that the order chosen outside is the order that
    runs, and that little is lost with an engine.

    What is in flight when the engine dies is asked again. Requests that were in flight at two deaths are suspects: they
    run by themselves, in halves, until one that ends the engine is alone. It is the killer; everything else goes on at
    full size. When nothing else is left, or many killers follow each other, the engine has to answer a prompt of our
    own before any is called one.

    Several windows share `again` and `deaths`: what was in flight in a dead engine may be asked by another, and the
    second engine that dies of a document looks for it, while the others go on.
    """

    engine: Engine
    model: str
    max_concurrency: int
    max_restarts: int
    ledger: Ledger
    emit: EventSink
    replica: int = 0
    again: deque[Request] = field(default_factory=deque)
    """Were in flight when an engine died, or failed for a passing reason; they go first."""
    deaths: Counter[bytes] = field(default_factory=Counter)
    """Of engines, by request in flight; only requests that are not finished."""
    has_others: bool = False
    """Other engines work beside this one: what ends it may have been the documents, which others got meanwhile."""
    is_started: bool = False
    is_ready: bool = False
    """Its engine has a model loaded."""
    has_been_ready: bool = False
    _in_flight: dict[bytes, InFlight] = field(default_factory=dict)
    _in_flight_chars: int = 0
    _suspects: deque[list[Request]] = field(default_factory=deque)
    """Groups that run by themselves, before anything else."""
    _is_trial: bool = False
    """What is in flight is a group of suspects."""
    _killers: list[Request] = field(default_factory=list)
    """Ended the engine alone. Believed once the engine has answered something else: it may be the engine's fault."""
    _is_queue_empty: bool = True
    _must_prove: bool = False
    """It died so often that it gets no documents before it has answered a prompt of our own."""
    _num_deaths_in_a_row: int = 0
    _may_start_s: float = 0.0

    @property
    def num_in_flight(self) -> int:
        """Requests that the engine has."""
        return len(self._in_flight)

    @property
    def num_documents(self) -> int:
        """Those of them that are documents, and not a prompt of our own."""
        return len(self._in_flight) - self._is_probing

    @property
    def num_waiting(self) -> int:
        """Requests that wait here to be submitted again."""
        return len(self.again) + self.num_held

    @property
    def num_held(self) -> int:
        """Those of them that only this engine may get, as it may be them that end it."""
        return sum(map(len, self._suspects)) + len(self._killers)

    @property
    def capacity(self) -> int:
        """The most requests that the engine is given at once; 0 before it is ready."""
        return 2 * self.max_concurrency if self.is_ready else 0

    @property
    def phase(self) -> EnginePhase:
        """What the engine is about, unless it is given up."""
        if self.is_ready:
            return EnginePhase.READY
        if self.is_started:
            return EnginePhase.LOADING
        return EnginePhase.RESTARTING if self._may_start_s > 0 else EnginePhase.UNUSED

    def first_in_flight(self, count: int) -> list[InFlight]:
        """Those that the engine has had longest: they were put in in order."""
        flights = islice(self._in_flight.values(), count)
        return [flight for flight in flights if flight.request is not _PROBE]

    def feed(self, queue: Supply, *, may_grow: bool = False, share: int | None = None) -> None:
        """Fill the window. The first request starts the engine: a run with nothing to do loads no model.

        `may_grow`: an empty queue is not the end of the input. `share`: no more in flight than this, if others are to
        get some. Raises EngineError as `poll` does.
        """
        self._is_queue_empty = not queue and not may_grow
        if self._is_probing:
            return
        is_probe_due = self._is_probe_due()
        if not (queue or self.again or self._suspects or is_probe_due):
            return
        if not self.is_started:
            self._start()
        if not self.is_ready:
            return
        if is_probe_due:
            requests = [_PROBE]
        elif self._suspects or self._is_trial:
            requests = self._take_suspects()
        else:
            requests = list(self._take(queue, share))
        self._submit(requests)

    def _submit(self, requests: list[Request]) -> None:
        if not requests:
            return
        now_s = self.engine.now()
        for request in requests:
            self._in_flight[request.document_hash] = InFlight(request, now_s)
            self._in_flight_chars += request.sent_chars
        self.ledger.note_submit()
        try:
            self.engine.submit(requests)
        except EngineDied as death:
            self._note_death(death)

    def ask_again(self, request: Request) -> None:
        """Submit a request once more: it failed for a reason that may pass."""
        self.again.append(replace(request, attempt=request.attempt + 1))

    def poll(self, timeout_s: float) -> list[Returned]:
        """What the engine finished. An engine that died is closed, and will be started again by a later `feed`.

        Raises EngineError when the engine does not start, or died too often without one answer in between, and JobError
        when the job is at fault for the first start's end.
        """
        if not self.is_started:
            return self._release_killers()
        try:
            events = self.engine.poll(timeout_s)
        except EngineDied as death:
            self._note_death(death)
            return []
        except (EngineError, JobError) as error:
            if not self.has_been_ready:
                raise
            # It loaded before: what keeps it from loading now, such as memory not free yet, may pass.
            self._note_death(EngineDied(str(error)))
            return []
        returned = [finished for event in events if (finished := self._take_event(event))]
        if any(isinstance(finished.event, Completion) for finished in returned):
            self._num_deaths_in_a_row = 0
        return returned + self._release_killers()

    def start_wait_s(self) -> float:
        """Seconds until a dead engine may be started again."""
        return 0.0 if self.is_started else max(0.0, self._may_start_s - time.monotonic())

    def surrender(self) -> list[Request]:
        """Give up what this engine has and what only it was to get, for others to ask: it is broken.

        Call it after `close`.
        """
        asked = [flight.request for flight in self._in_flight.values() if flight.request is not _PROBE]
        asked += self._killers
        held = [replace(request, attempt=request.attempt + 1) for request in asked]
        held += (request for group in self._suspects for request in group)
        self._in_flight.clear()
        self._in_flight_chars = 0
        self._suspects.clear()
        self._killers.clear()
        return held

    def close(self) -> None:
        """End the engine; what is in flight is given up."""
        self.engine.close()
        self.is_started = self.is_ready = False

    def _start(self) -> None:
        if time.monotonic() < self._may_start_s:
            return
        self.ledger.note_start(is_again=self._may_start_s > 0, replica=self.replica)
        self.emit(EngineStarting(self.model, self.ledger.replicas[self.replica].num_restarts, self._name))
        self.is_started = True
        try:
            self.engine.start(self.ledger.workload())
        except (EngineError, JobError) as error:
            if not self.has_been_ready:
                raise
            self._note_death(EngineDied(str(error)))

    @property
    def _name(self) -> int | None:
        """The number of the engine, where there are several."""
        return self.replica if len(self.ledger.replicas) > 1 else None

    @property
    def _is_probing(self) -> bool:
        """It has our own prompt, and gets nothing beside it: its end would prove nothing then."""
        return _PROBE.document_hash in self._in_flight

    def _is_idle(self) -> bool:
        return self._is_queue_empty and not (self._in_flight or self.again or self._suspects)

    def _is_probe_due(self) -> bool:
        """Nothing else is left that could show that the engine works; or many killers in a row would use up the deaths
        that a run bears, and none of them be believed."""
        if self._in_flight or not (self._killers or self._must_prove):
            return False
        return self._must_prove or self._is_idle() or self._num_deaths_in_a_row > self.max_restarts

    def _take(self, queue: Supply, share: int | None) -> Iterator[Request]:
        num_wanted = 2 * self.max_concurrency
        room = (num_wanted if share is None else min(num_wanted, share)) - len(self._in_flight)
        chars = self._in_flight_chars
        while room > 0 and (first := self.again or queue):
            if chars and chars + first[0].sent_chars > MAX_WINDOW_CHARS:
                return
            chars += first[0].sent_chars
            room -= 1
            yield first.popleft()

    def _take_suspects(self) -> list[Request]:
        """The next group, once the engine is empty."""
        if self._in_flight:
            return []
        self._is_trial = bool(self._suspects)
        if not self._suspects:
            return []
        # After a killer the largest group: it most likely holds something that the engine can answer.
        return self._suspects.pop() if self._killers else self._suspects.popleft()

    def _take_event(self, event: EngineEvent) -> Returned | None:
        match event:
            case EngineReady():
                self.is_ready = self.has_been_ready = True
                self.max_concurrency = event.max_concurrency or self.max_concurrency
                self.ledger.note_ready(event, self.replica)
                self.emit(EngineStarted(event.start_s, event.settings, self._name))
            case EngineStats():
                self.ledger.note_stats(event, self.replica)
            case Aborted():  # a run aborts nothing
                pass
            case Completion() | Rejection():
                flight = self._in_flight.pop(event.document_hash)
                self._in_flight_chars -= flight.request.sent_chars
                if flight.request is _PROBE:
                    self._note_probe(event)
                    return None
                del self.deaths[event.document_hash]
                return Returned(flight, event, self.replica)
        return None

    def _note_probe(self, event: Completion | Rejection) -> None:
        if isinstance(event, Rejection):
            raise self._broken(f"it refused a prompt of bulkinfer's own: {event.message}")
        self._num_deaths_in_a_row = 0
        self._must_prove = False

    def _note_death(self, death: EngineDied) -> None:
        """Put what was in flight back, in its order. No document is at fault before it was alone."""
        self.close()
        self._num_deaths_in_a_row += 1
        self.ledger.note_death(self.replica)
        self.emit(EngineLost(self._name))
        if self._is_probing:
            raise self._broken(f"{death}, with nothing but a prompt of bulkinfer's own") from death
        lost = [replace(flight.request, attempt=flight.request.attempt + 1) for flight in self._in_flight.values()]
        self._in_flight.clear()
        self._in_flight_chars = 0
        self._sort_out(lost)
        is_searching = bool(self._suspects or self._killers)
        self._must_prove = self.has_others and bool(lost) and self._num_deaths_in_a_row > self.max_restarts
        if not self._must_prove and self._num_deaths_in_a_row > self.max_restarts + MAX_HALVINGS * is_searching:
            raise self._broken(str(death)) from death
        wait_s = restart_wait_s(1 if is_searching else self._num_deaths_in_a_row)
        self._may_start_s = time.monotonic() + wait_s
        self.emit(EngineRestarting(str(death), len(lost), wait_s, self._name))

    def _sort_out(self, lost: list[Request]) -> None:
        """Decide what each lost request is: innocent so far, a suspect, or the killer."""
        self.deaths.update(request.document_hash for request in lost)
        if self._is_trial and len(lost) == 1:
            self._killers += (replace(request, attempt=request.attempt - 1) for request in lost)  # not asked again
        elif self._is_trial:
            self._suspects.extendleft(reversed(_halve(lost)))
        else:
            suspects = [request for request in lost if self.deaths[request.document_hash] > 1]
            if suspects:
                self._suspects.extend(_halve(suspects))
            self.again.extendleft(request for request in reversed(lost) if self.deaths[request.document_hash] == 1)
        self._is_trial = False

    def _broken(self, last: str) -> EngineError:
        said = f"the engine died {self._num_deaths_in_a_row} times without one answer in between; last: {last}"
        if self.has_others:  # the run goes on
            return EngineError(said)
        return EngineError(f"{said}. What was finished is in the database; run again to resume")

    def _release_killers(self) -> list[Returned]:
        """Give the killers up as failures, if the engine has shown that it can answer."""
        if not self._killers or self._num_deaths_in_a_row > 0:
            return []
        message = "the engine died each time that this document was in it alone"
        killers = [
            Returned(
                InFlight(request, 0.0),
                Rejection(request.document_hash, FailureCode.ENGINE_KILLER, message),
                self.replica,
            )
            for request in self._killers
        ]
        self._killers.clear()
        return killers


def _halve(requests: list[Request]) -> list[list[Request]]:
    middle = (len(requests) + 1) // 2
    return [half for half in (requests[:middle], requests[middle:]) if half]
