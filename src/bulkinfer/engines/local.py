"""An `Engine` that runs its `StepEngine` in the caller's own thread: no process to supervise, and none to lose."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from bulkinfer.engines.base import EngineRequest, StepEngine
from bulkinfer.engines.bell import Ringer
from bulkinfer.engines.clock import Clock, RealClock
from bulkinfer.engines.images import ImageFault, reject_image
from bulkinfer.errors import EngineDied, EngineError
from bulkinfer.records import UNKNOWN_WORKLOAD, Aborted, EngineEvent, Request, Workload

_STATS_EVERY_S = 0.5


class LocalEngine:
    """An `Engine` over the `StepEngine` that `step_engine_factory` makes, anew at each start.

    The engine only works inside `poll`. `clock` is the one that the step engine uses (the machine's by default), and
    `start_s` is how long a start takes on it; `priority` is of requests without one of their own. Among other engines,
    `ringer` says when this one has something to do. A `RuntimeError` of the step engine is its death; any other
    exception is a bug.
    """

    def __init__(
        self,
        step_engine_factory: Callable[[], StepEngine],
        *,
        clock: Clock | None = None,
        start_s: float = 0.0,
        priority: int = 0,
        ringer: Ringer | None = None,
    ) -> None:
        self._create_step_engine = step_engine_factory
        self._priority = priority
        self._clock: Clock = RealClock() if clock is None else clock
        self._start_s = start_s
        self._ringer = ringer
        self._step_engine: StepEngine | None = None
        self._started_at_s: float | None = None
        self._events: list[EngineEvent] = []
        self._stats_at_s = 0.0
        self._num_steps_told = 0
        self._idle_since_s: float | None = None
        self._idle_s = 0.0

    def start(self, workload: Workload = UNKNOWN_WORKLOAD) -> None:  # noqa: ARG002 - there is nothing to choose
        """Begin a new life. `poll` returns an EngineReady once `start_s` has passed."""
        self.close()
        self._wake()
        self._started_at_s = self._clock.now()

    def submit(self, requests: Sequence[Request]) -> None:
        """Give requests to the engine; rejections come with the next `poll`. Raises EngineDied if it is not running."""
        if self._step_engine is None:
            raise EngineDied("the engine is not running")
        if self._step_engine.num_unfinished() == 0:
            self._wake()
        for request in requests:
            try:
                rejection = self._step_engine.add(EngineRequest.of(request, self._priority))
            except ImageFault as error:
                rejection = reject_image(request, error)
            if rejection is not None:
                self._events.append(rejection)
        if self._idle_since_s is not None and self._step_engine.num_unfinished() > 0:
            self._idle_s += self._clock.now() - self._idle_since_s
            self._idle_since_s = None

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        """Step the engine until something finishes or `timeout_s` seconds of its clock have passed; a step may overrun.

        Raises EngineDied when the engine raises, and EngineError when it was never started.
        """
        if self._started_at_s is None:
            raise EngineError("the engine was not started")
        events = self._poll(self._started_at_s, timeout_s)
        if self._ringer is not None and self._has_more():
            self._ringer.ring()
        return events

    def abort(self, document_hashes: Sequence[bytes]) -> None:
        """Drop requests that are in flight; `poll` returns what was dropped. Raises EngineDied if it is not running."""
        if self._step_engine is None:
            raise EngineDied("the engine is not running")
        if document_hashes:
            self._tell_stats(self._step_engine)
        self._events.append(Aborted(self._step_engine.abort(document_hashes)))
        self._note_rest(self._step_engine)
        self._tell_stats(self._step_engine)
        if self._ringer is not None:
            self._ringer.ring()

    def now(self) -> float:
        """Seconds on the step engine's clock. Among other engines, one that is idle is where they are."""
        now_s = self._clock.now()
        return now_s if self._ringer is None or self._has_more() else max(now_s, self._ringer.now())

    def close(self) -> None:
        """Forget the engine and everything in it."""
        self._step_engine = None
        self._started_at_s = None
        self._events = []
        self._stats_at_s = 0.0
        self._num_steps_told = 0
        self._idle_since_s = None
        self._idle_s = 0.0

    def _poll(self, started_at_s: float, timeout_s: float) -> list[EngineEvent]:
        if self._step_engine is None:
            return self._wait_for_start(started_at_s + self._start_s, timeout_s)
        if self._step_engine.num_unfinished() == 0:
            self._tell_idle_stats(self._step_engine)
        if not self._events:
            self._work(self._step_engine, self._clock.now() + timeout_s)
        events, self._events = self._events, []
        return events

    def _has_more(self) -> bool:
        """Whether another poll would give something, or move on."""
        if self._step_engine is None:
            return self._started_at_s is not None
        if self._step_engine.num_unfinished() > 0 or self._events:
            return True
        return self._step_engine.num_steps() != self._num_steps_told

    def _wake(self) -> None:
        """Something to do, now: among other engines, this one is where they are."""
        if self._ringer is not None:
            self._clock.advance_to(self._ringer.now())
            self._ringer.ring()

    def _wait_for_start(self, ready_at_s: float, timeout_s: float) -> list[EngineEvent]:
        self._clock.sleep(max(0.0, min(timeout_s, ready_at_s - self._clock.now())))
        if self._clock.now() < ready_at_s:
            return []
        self._step_engine = self._create_step_engine()
        self._stats_at_s = self._idle_since_s = self._clock.now()
        return [replace(self._step_engine.ready(), start_s=self._start_s)]

    def _work(self, step_engine: StepEngine, until_s: float) -> None:
        if step_engine.num_unfinished() == 0:
            self._clock.idle(max(0.0, until_s - self._clock.now()))
            return
        while not self._events and step_engine.num_unfinished() > 0:
            self._events.extend(self._step(step_engine))
            now_s = self._clock.now()
            # At rest: the run may end with these outcomes, and its counts are to be complete.
            if step_engine.num_unfinished() == 0 or now_s - self._stats_at_s >= _STATS_EVERY_S:
                self._tell_stats(step_engine)
            if now_s >= until_s:
                return

    def _step(self, step_engine: StepEngine) -> Sequence[EngineEvent]:
        try:
            outcomes = step_engine.step()
        except RuntimeError as error:
            self.close()
            raise EngineDied(f"the engine raised {type(error).__name__}") from error
        self._note_rest(step_engine)
        return outcomes

    def _note_rest(self, step_engine: StepEngine) -> None:
        if self._idle_since_s is None and step_engine.num_unfinished() == 0:
            self._idle_since_s = self._clock.now()

    def _tell_idle_stats(self, step_engine: StepEngine) -> None:
        """The last reading before a pause, so that the counters of a short run are complete."""
        if step_engine.num_steps() != self._num_steps_told:
            self._tell_stats(step_engine)

    def _tell_stats(self, step_engine: StepEngine) -> None:
        stats = replace(step_engine.stats(), idle_s=self._idle_s)
        self._events.append(stats)
        self._stats_at_s = self._clock.now()
        self._num_steps_told = stats.num_steps
