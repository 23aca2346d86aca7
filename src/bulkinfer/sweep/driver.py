"""One point of a sweep: the loop that sends, admits, cancels and counts, over any engine and on the engine's clock."""

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from bulkinfer.engines.base import Engine
from bulkinfer.errors import EngineError
from bulkinfer.records import Aborted, Completion, EngineStats, FailureCode, Rejection
from bulkinfer.sweep.admission import Admission, Reason, Refusal, Waiting
from bulkinfer.sweep.clients import Clients
from bulkinfer.sweep.point import (
    MAX_SHOWN_CANCELLATIONS,
    Cancellation,
    Counters,
    Point,
    PointSettings,
    Tally,
)

MAX_OUTSIDE = 10_000
"""With so many before a full queue a point ends: it can never be served."""
MAX_DUE = 1000
"""Arrivals that are seen at once, so that the engine is looked after too."""
REST_TIMEOUT_S = 60.0
_POLL_S = 0.5
_LEAST_POLL_S = 1e-6
"""Less would not move a virtual clock."""
_GRACE_S = 60.0
"""A point takes no longer than its length and this on the machine's clock, whatever the engine's says."""
_REFUSALS = frozenset({FailureCode.PROMPT_TOO_LONG, FailureCode.ENGINE_REJECTED})
"""The engine will never take such a request. Anything else that it does not answer is an error."""


@dataclass(slots=True)
class _Flight:
    """A request in the engine."""

    waiting: Waiting
    given_at_s: float


@dataclass(order=True, slots=True)
class _Cancel:
    at_s: float
    number: int
    waiting: Waiting


class PointRun:
    """Measures one point. The engine is ready and empty before and after it."""

    def __init__(
        self,
        engine: Engine,
        settings: PointSettings,
        admission: Admission,
        clients: Clients,
        *,
        warmup_s: float,
        duration_s: float,
        aborted_before: int = 0,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._admission = admission
        self._clients = clients
        self._is_stopped = is_stopped
        self._start_s = engine.now()
        self._end_s = self._start_s + warmup_s + duration_s
        self._wall_end_s = time.monotonic() + warmup_s + duration_s + _GRACE_S
        self._tally = Tally(self._start_s + warmup_s)
        self._flights: dict[bytes, _Flight] = {}
        self._cancels: list[_Cancel] = []
        self._aborting: set[bytes] = set()
        self._over: set[int] = set()
        """Numbers of requests with a cancel to come that are over before it."""
        self._mean_total_s: float | None = None
        self._last: EngineStats | None = None
        self._aborted_before = aborted_before

    def run(self) -> Point:
        """Raises EngineError when the engine fails."""
        is_complete = True
        while (now_s := self._engine.now()) < self._end_s:
            if self._is_stopped() or time.monotonic() > self._wall_end_s or self._admission.num_outside > MAX_OUTSIDE:
                is_complete = False
                break
            self._let_arrive(now_s)
            self._cancel_due(now_s)
            self._submit(now_s)
            if self._is_measured(now_s):
                admission = self._admission
                self._tally.note_waiting(admission.num_queued, admission.num_outside, admission.num_waiting_by_level)
            num_active = len(self._flights)
            # With slots free only the reserve keeps them waiting: for them the engine is full.
            num_used = max(num_active, self._settings.concurrency) if self._admission.num_low else num_active
            self._poll(self._find_timeout_s(self._engine.now()))
            self._note_active(num_active, num_used, now_s, self._engine.now())
        end_s = min(self._engine.now(), self._end_s)
        point = self._tally.finish(
            self._settings,
            end_s,
            is_complete=is_complete,
            waiting=self._admission.num_waiting_by_level,
            num_running=len(self._flights),
        )
        rest = self._come_to_rest()
        return replace(
            point,
            at_rest=Counters.of(rest),
            engine_aborted=rest.num_aborted - self._aborted_before,
            num_preemptions=self._tally.count_preemptions(rest),
        )

    def _note_active(self, num_active: int, num_used: int, from_s: float, to_s: float) -> None:
        measured_s = min(to_s, self._end_s) - max(from_s, self._tally.from_s)
        self._tally.active_s += num_active * max(0.0, measured_s)
        self._tally.used_s += num_used * max(0.0, measured_s)

    def _is_measured(self, now_s: float) -> bool:
        return self._tally.from_s <= now_s < self._end_s

    def _find_timeout_s(self, now_s: float) -> float:
        moments = [self._end_s, now_s + _POLL_S]
        next_at_s = self._clients.next_at_s()
        if next_at_s is not None:
            moments.append(next_at_s)
        if self._cancels:
            moments.append(self._cancels[0].at_s)
        if now_s < self._tally.from_s:
            moments.append(self._tally.from_s)
        return max(_LEAST_POLL_S, min(moments) - now_s)

    def _let_arrive(self, now_s: float) -> None:
        for waiting in self._clients.take_due(now_s, MAX_DUE):
            is_measured = self._is_measured(now_s)
            if is_measured:
                demand = self._tally.demand[waiting.level]
                demand.arrived += waiting.attempt == 1
                demand.retries += waiting.attempt > 1
            refusal = self._admission.offer(waiting, len(self._flights), now_s)
            if refusal is not None:
                self._refuse(waiting, refusal, now_s)
                continue
            if is_measured:
                self._tally.retries_taken += waiting.attempt > 1
            if waiting.load.cancel_draw is not None:
                at_s = now_s + waiting.load.cancel_draw * (self._mean_total_s or 1.0)
                heapq.heappush(self._cancels, _Cancel(at_s, waiting.load.number, waiting))

    def _refuse(self, waiting: Waiting, refusal: Refusal, now_s: float) -> None:
        self._clients.note_refusal(waiting, refusal, now_s)
        if self._is_measured(now_s):
            self._tally.refused[str(refusal.reason)] += 1
            self._tally.demand[waiting.level].turned_away += refusal.reason == Reason.QUEUE_FULL
            self._tally.with_retry_after += refusal.retry_after_s is not None

    def _cancel_due(self, now_s: float) -> None:
        dropped = []
        while self._cancels and self._cancels[0].at_s <= now_s:
            waiting = heapq.heappop(self._cancels).waiting
            document_hash = waiting.load.request.document_hash
            if waiting.load.number in self._over:
                self._over.remove(waiting.load.number)
                self._tally.late_cancels += self._is_measured(now_s)
            elif document_hash in self._flights:
                dropped.append(document_hash)
            elif self._admission.remove(waiting):
                self._tally.cancelled_waiting += self._is_measured(now_s)
                self._clients.note_end(waiting, now_s)
        if dropped:
            self._aborting.update(dropped)
            self._engine.abort(dropped)

    def _submit(self, now_s: float) -> None:
        given = []
        while (waiting := self._admission.take(len(self._flights))) is not None:
            self._flights[waiting.load.request.document_hash] = _Flight(waiting, now_s)
            given.append(waiting.load.request)
        if given:
            self._engine.submit(given)

    def _poll(self, timeout_s: float) -> None:
        for event in self._engine.poll(timeout_s):
            now_s = self._engine.now()
            match event:
                case Completion():
                    self._note_completion(event, now_s)
                case Rejection():
                    self._note_rejection(event, now_s)
                case Aborted(document_hashes):
                    self._note_aborted(document_hashes, now_s)
                case EngineStats():
                    self._note_stats(event, now_s)
                case _:
                    pass

    def _note_completion(self, completion: Completion, now_s: float) -> None:
        flight = self._end_flight(completion.document_hash, now_s)
        if flight is None:
            return
        waited_s = flight.given_at_s - flight.waiting.arrived_at_s
        total_s = waited_s + completion.total_s
        self._mean_total_s = total_s if self._mean_total_s is None else 0.9 * self._mean_total_s + 0.1 * total_s
        if self._is_measured(now_s):
            self._tally.note_completion(flight.waiting, waited_s, completion)

    def _note_rejection(self, rejection: Rejection, now_s: float) -> None:
        flight = self._flights.pop(rejection.document_hash, None)
        if flight is None:
            return
        self._note_over(flight)
        if rejection.code in _REFUSALS:
            self._refuse(flight.waiting, Refusal(rejection.code, None), now_s)
            return
        self._clients.note_end(flight.waiting, now_s)
        if self._is_measured(now_s):
            self._tally.errors[rejection.code] += 1

    def _note_aborted(self, document_hashes: tuple[bytes, ...], now_s: float) -> None:
        for document_hash in document_hashes:
            self._aborting.discard(document_hash)
            flight = self._end_flight(document_hash, now_s)
            if flight is not None:
                self._over.discard(flight.waiting.load.number)  # its cancel is done
                self._tally.cancelled_running += self._is_measured(now_s)

    def _note_stats(self, stats: EngineStats, now_s: float) -> None:
        num_more = 0 if self._last is None else stats.num_aborted - self._last.num_aborted
        if self._last and num_more and len(self._tally.cancellations) < MAX_SHOWN_CANCELLATIONS:
            before, after = Counters.of(self._last), Counters.of(stats)
            self._tally.cancellations.append(Cancellation(now_s - self._start_s, num_more, before, after))
        self._last = stats
        if now_s < self._tally.from_s:
            self._tally.preemptions_before = stats.num_preemptions
        elif self._is_measured(now_s):
            self._tally.readings.append(stats)

    def _end_flight(self, document_hash: bytes, now_s: float) -> _Flight | None:
        flight = self._flights.pop(document_hash, None)
        if flight is None:
            return None
        self._note_over(flight)
        self._admission.note_drained(now_s)
        self._clients.note_end(flight.waiting, now_s)
        return flight

    def _note_over(self, flight: _Flight) -> None:
        load = flight.waiting.load
        self._admission.note_left(flight.waiting)
        if load.cancel_draw is not None:
            if load.request.document_hash in self._aborting:
                self._aborting.discard(load.request.document_hash)  # it was answered just before
                self._tally.late_cancels += self._is_measured(self._engine.now())
            else:
                self._over.add(load.number)

    def _come_to_rest(self) -> EngineStats:
        """Drop what is still open, and wait for the reading that shows an empty engine."""
        self._cancels.clear()
        until_s = time.monotonic() + REST_TIMEOUT_S
        still_open = set(self._flights)  # an earlier drop may be acknowledged only now
        self._engine.abort(list(still_open))
        empty: EngineStats | None = None
        while time.monotonic() < until_s:
            events = self._engine.poll(_POLL_S)
            for event in events:
                match event:
                    case Aborted(document_hashes):
                        still_open.difference_update(document_hashes)
                    case Completion(document_hash=document_hash) | Rejection(document_hash=document_hash):
                        still_open.discard(document_hash)
                    case EngineStats() if not still_open and event.num_active == event.num_waiting == 0:
                        empty = event
                        if event.num_free_kv_blocks == event.num_kv_blocks:
                            return event
                    case _:
                        pass
            if not events:
                self._engine.abort(())  # an idle engine sends a reading only when it is asked
        if empty is not None:
            return empty  # the report tells that blocks are missing
        raise EngineError(f"the engine did not drop its requests within {REST_TIMEOUT_S:g} s")
