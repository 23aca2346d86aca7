"""The engine's process: `python -m bulkinfer.engines.worker FD PARENT_PID NICE [CORE ...]`. `child` is its other side.

It loads a `StepEngine` and runs it for the parent behind socket FD. It owns nothing else, and never outlives its
parent.
"""

import faulthandler
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from bisect import insort
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from bulkinfer.bugs import told_without_text
from bulkinfer.engines.base import Prepared, StepEngine
from bulkinfer.engines.frames import (
    Abort,
    ChildFailure,
    ChildFrame,
    Close,
    Events,
    ParentFrame,
    Start,
    Submit,
    decode_parent_frame,
    encode_child_frame,
)
from bulkinfer.engines.loading import create_step_engine, describe_ready
from bulkinfer.engines.own_process import (
    end_group,
    end_with_parent,
    has_child_processes,
    lower_priority,
    read_memory_bytes,
)
from bulkinfer.engines.rendering import Renderer
from bulkinfer.errors import JobError
from bulkinfer.framing import read_frame, send_frame
from bulkinfer.records import Aborted, Completion, EngineEvent, EngineStats, Rejection

_NUM_AHEAD = 64  # requests that the engine has beyond its slots, so that one that gets free is filled at once
_NUM_TO_BEGIN_WITH = 64
_STATS_EVERY_S = 0.5
_SETTLE_S = 0.05  # idle this long: the last reading is final
_HEARTBEAT_EVERY_S = 2.0
_NAP_S = 0.001
_MAX_MESSAGE_CHARS = 1000


def main(arguments: list[str]) -> NoReturn:
    """Serve the parent until it says so, is gone, or the engine fails. Exit code 0, or 3 if the engine failed."""
    descriptor, parent_pid, nice, *cores = (int(argument) for argument in arguments)
    end_with_parent(parent_pid)
    # Before there is a second thread: each has a choice of its own.
    if cores:
        os.sched_setaffinity(0, cores)
    if nice:
        lower_priority(nice)
    # The parent decides what Ctrl-C means, and a service manager's SIGTERM to all: the engine is needed for the drain.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not has_child_processes():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - positional only
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries print
    with told_without_text():
        exit_code = _Worker(socket.socket(fileno=descriptor)).run()
    sys.stderr.flush()
    os._exit(exit_code)  # what libraries do at exit takes seconds and saves nothing


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A request that has come, and what becomes of it in the renderer's thread."""

    document_hash: bytes
    priority: int
    """0 where priorities do not count."""
    came_at_s: float
    rendering: Future[Prepared | Rejection]


@dataclass(frozen=True, slots=True)
class _Arrived:
    """Requests have come, in this order."""

    arrivals: tuple[_Arrival, ...]


@dataclass(frozen=True, slots=True)
class _Rendered:
    """One more request is rendered: wakes an engine that has nothing else to do."""


_Frame = Start | Abort | Close | _Arrived | _Rendered
_RENDERED = _Rendered()


class _Worker:
    """The loop between the socket and the engine.

    Three threads: one reads the socket, one renders what came, in its order, and this one steps the engine.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._inbox: queue.SimpleQueue[_Frame] = queue.SimpleQueue()
        self._renderer = Renderer()
        self._is_by_priority = False
        self._pending: list[_Arrival] = []
        """Requests that wait here, the most urgent first; among equals, the first that came."""
        self._engine: StepEngine | None = None
        self._waited_s: dict[bytes, float] = {}
        """How long requests that are in the engine now had waited here: to the parent it is all one engine."""
        self._num_aborted_here = 0
        """Requests that were dropped before the engine had them."""
        self._num_slots: int | None = None
        self._is_ready = False
        self._is_closing = False
        self._stats_at_s = 0.0
        self._num_steps_told = 0
        self._num_counts = self._num_counts_told = 0
        self._memory_bytes = 0
        self._idle_since_s: float | None = None
        self._idle_s = 0.0
        self._step_began_s: float | None = None

    def run(self) -> int:
        """Read, load, serve. Returns the exit code."""
        threading.Thread(target=self._read, name="reader", daemon=True).start()
        start = self._inbox.get()
        assert isinstance(start, Start)
        step_timeout_s = start.spec.step_timeout_s
        self._is_by_priority = start.spec.is_by_priority
        threading.Thread(target=self._watch_steps, args=(step_timeout_s,), name="watch", daemon=True).start()
        try:
            engine = self._engine = create_step_engine(start, self.note_count)
            self._tell([describe_ready(engine, start.spec)])
            self._is_ready = True
            self._note_rest(engine)
            self._serve(engine)
        except JobError as error:
            self._send(ChildFailure(is_job_error=True, message=str(error)))
            return 3
        except Exception as error:  # noqa: BLE001 - whatever vLLM raises is this engine's death; the parent judges it
            self._send(ChildFailure(is_job_error=False, message=self._describe(error)))
            return 3
        return 0

    def note_count(self) -> None:
        """The renderer's thread, which cuts a prompt, has counted the tokens of one more piece."""
        self._num_counts += 1

    def _read(self) -> None:
        """Take frames off the socket at once, so that the parent never waits for a step to end."""
        try:
            stream = self._connection.makefile("rb")
            while (body := read_frame(stream)) is not None:
                self._inbox.put(self._begin_rendering(decode_parent_frame(body)))
        finally:  # the parent is gone, or cannot be understood
            end_group()

    def _begin_rendering(self, frame: ParentFrame) -> _Frame:
        if not isinstance(frame, Submit):
            return frame
        assert self._engine is not None  # the parent submits once it was told that the engine is ready
        now_s = time.monotonic()
        arrivals = []
        for request in frame.requests:
            priority = request.priority if self._is_by_priority else 0
            rendering = self._renderer.submit(self._engine.prepare, request, priority)
            arrivals.append(_Arrival(request.document_hash, priority, now_s, rendering))
        for arrival in arrivals:
            arrival.rendering.add_done_callback(lambda _: self._inbox.put(_RENDERED))
        return _Arrived(tuple(arrivals))

    def _watch_steps(self, limit_s: float) -> None:
        """End this process when one step takes too long; the log then holds where every thread was.

        A step that also keeps Python's other threads from running ends by the parent's limit on silence.
        """
        while True:
            time.sleep(min(1.0, limit_s / 4))
            began_s = self._step_began_s
            if began_s is not None and time.monotonic() - began_s > limit_s:
                faulthandler.dump_traceback(sys.stderr)
                try:
                    self._send(
                        ChildFailure(is_job_error=False, message=f"one engine step took more than {limit_s:g} s")
                    )
                finally:
                    end_group()

    def _serve(self, engine: StepEngine) -> None:
        self._num_slots = engine.ready().max_concurrency
        while not self._is_closing:
            self._receive(engine)
            events: list[EngineEvent] = list(self._add(engine))
            if engine.num_unfinished() > 0:
                events += self._step(engine)
            self._tell(events)

    def _receive(self, engine: StepEngine) -> None:
        """Take what has arrived; with nothing to do, wait for something, with a sign of life now and then.

        While requests are being rendered, only if one is cut and that goes on: an engine whose renderer hangs falls
        silent.
        """
        self._accept_all(engine)
        wait_s = _SETTLE_S
        while self._has_to_wait(engine):
            try:
                self._accept(engine, self._inbox.get(timeout=wait_s))
            except queue.Empty:
                is_due = wait_s > _SETTLE_S or engine.num_steps() != self._num_steps_told
                if is_due and (not self._pending or self._num_counts != self._num_counts_told):
                    self._num_counts_told = self._num_counts
                    self._tell([self._read_stats(engine)])
                wait_s = _HEARTBEAT_EVERY_S
        self._accept_all(engine)

    def _has_to_wait(self, engine: StepEngine) -> bool:
        """Whether nothing runs, and what would run next has not come or is not rendered.

        All of it, up to what fills a step with prompts: one with a few sequences takes nearly as long as one with many.
        """
        if self._is_closing or engine.num_unfinished() > 0:
            return False
        next_ones = self._pending[:_NUM_TO_BEGIN_WITH]
        return not next_ones or not all(arrival.rendering.done() for arrival in next_ones)

    def _accept_all(self, engine: StepEngine) -> None:
        while not self._inbox.empty():
            self._accept(engine, self._inbox.get())

    def _accept(self, engine: StepEngine, frame: _Frame) -> None:
        match frame:
            case _Arrived(arrivals):
                for arrival in arrivals:
                    insort(self._pending, arrival, key=lambda one: one.priority)
            case _Rendered():
                pass
            case Abort(document_hashes):
                self._abort(engine, document_hashes)
            case Close():
                self._is_closing = True
            case Start():
                raise AssertionError("a second start")

    def _abort(self, engine: StepEngine, document_hashes: Sequence[bytes]) -> None:
        """Drop what waits here and what the engine has, and say which, between readings from before and after it.

        Nothing to drop: one reading is asked for.
        """
        events: list[EngineEvent] = [self._read_stats(engine)] if document_hashes else []
        wanted = set(document_hashes)
        dropped = [arrival for arrival in self._pending if arrival.document_hash in wanted]
        for arrival in dropped:
            arrival.rendering.cancel()
        self._pending = [arrival for arrival in self._pending if arrival.document_hash not in wanted]
        self._num_aborted_here += len(dropped)
        aborted = engine.abort(document_hashes)
        for document_hash in aborted:
            del self._waited_s[document_hash]
        self._note_rest(engine)
        waited = tuple(arrival.document_hash for arrival in dropped)
        self._tell([*events, Aborted((*waited, *aborted)), self._read_stats(engine)])

    def _add(self, engine: StepEngine) -> list[Rejection]:
        """Give the engine what is rendered, up to the first that is not: the order is the parent's.

        No more than its slots take and a few to follow: the sequences that run stand still meanwhile.
        """
        rejections = []
        num_wanted = len(self._pending)
        if self._num_slots is not None:
            num_wanted = self._num_slots + _NUM_AHEAD - engine.num_unfinished()
        while num_wanted > 0 and self._pending and self._pending[0].rendering.done():
            arrival = self._pending.pop(0)
            waited_s = time.monotonic() - arrival.came_at_s
            prepared = arrival.rendering.result()
            rejection = prepared if isinstance(prepared, Rejection) else engine.admit(prepared)
            if rejection is None:
                self._waited_s[arrival.document_hash] = waited_s
                self._note_work()
                num_wanted -= 1
            else:
                rejections.append(rejection)
        return rejections

    def _step(self, engine: StepEngine) -> list[EngineEvent]:
        """One step, and a reading if it is time for one.

        A step that does nothing gives no sign of life, so that an engine that spins for ever falls silent.
        """
        num_steps = engine.num_steps()
        self._step_began_s = time.monotonic()
        outcomes = engine.step()
        self._step_began_s = None
        is_at_rest = engine.num_unfinished() == 0 and not self._pending
        self._note_rest(engine)
        events: list[EngineEvent] = [self._count_wait(outcome) for outcome in outcomes]
        if not events and engine.num_steps() == num_steps:
            time.sleep(_NAP_S)
        elif is_at_rest or time.monotonic() - self._stats_at_s >= _STATS_EVERY_S:
            # At rest: the parent may end the run with these outcomes, and its counts are to be complete.
            events.append(self._read_stats(engine))
        return events

    def _note_rest(self, engine: StepEngine) -> None:
        if self._idle_since_s is None and engine.num_unfinished() == 0:
            self._idle_since_s = time.monotonic()

    def _note_work(self) -> None:
        if self._idle_since_s is not None:
            self._idle_s += time.monotonic() - self._idle_since_s
            self._idle_since_s = None

    def _count_wait(self, outcome: Completion | Rejection) -> Completion | Rejection:
        waited_s = self._waited_s.pop(outcome.document_hash)
        if isinstance(outcome, Rejection):
            return outcome
        return replace(
            outcome,
            queue_s=outcome.queue_s + waited_s,
            first_token_s=outcome.first_token_s + waited_s,
            total_s=outcome.total_s + waited_s,
        )

    def _read_stats(self, engine: StepEngine) -> EngineStats:
        stats = engine.stats()
        self._stats_at_s = time.monotonic()
        self._num_steps_told = stats.num_steps
        self._memory_bytes = max(self._memory_bytes, read_memory_bytes())
        return replace(
            stats,
            memory_bytes=self._memory_bytes,
            idle_s=self._idle_s,
            num_waiting=stats.num_waiting + len(self._pending),
            gpu_memory_bytes=engine.gpu_memory_bytes(),
            num_aborted=stats.num_aborted + self._num_aborted_here,
        )

    def _tell(self, events: list[EngineEvent]) -> None:
        if events:
            self._send(Events(tuple(events)))

    def _send(self, frame: ChildFrame) -> None:
        send_frame(self._connection, encode_child_frame(frame))

    def _describe(self, error: Exception) -> str:
        """What the engine raised, and where. Its text only before any request came: later it may quote one."""
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        where = ", ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)
        text = "" if self._is_ready else f": {error}"
        said = f"{type(error).__name__} at {where}{text}"[:_MAX_MESSAGE_CHARS]
        sys.stderr.write(f"{said}\n")
        return said


if __name__ == "__main__":
    main(sys.argv[1:])
