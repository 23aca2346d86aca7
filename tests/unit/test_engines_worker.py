import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from bulkinfer.engines import worker as worker_module
from bulkinfer.engines.base import EngineRequest, Prepared
from bulkinfer.engines.clock import VirtualClock
from bulkinfer.engines.frames import Abort, Close, Events, Submit, decode_child_frame
from bulkinfer.engines.simulated import SimulatedEngine
from bulkinfer.engines.worker import _Worker
from bulkinfer.framing import read_frame
from bulkinfer.records import Aborted, Completion, EngineEvent, EngineStats, Message, Rejection
from tests.engine_support import simulated_spec, wait_until

HELD = "held"
LIMIT_S = 20


class GatedEngine(SimulatedEngine):
    """Renders what says HELD only once `gate` is open, and remembers what was admitted."""

    def __init__(
        self,
        *,
        max_concurrency: int = 4,
        max_tokens: int = 8,
        seconds_per_output_token: float = 0,
        has_priorities: bool = False,
    ) -> None:
        spec = simulated_spec(
            max_concurrency=max_concurrency,
            max_tokens=max_tokens,
            seconds_per_output_token=seconds_per_output_token,
        )
        self.has_priorities = has_priorities
        super().__init__(replace(spec, has_priorities=has_priorities), VirtualClock())
        self.gate = threading.Event()
        self.step_gate = threading.Event()
        self.step_gate.set()
        self.admitted: list[bytes] = []
        self.num_begun = self.peak_unfinished = 0

    def prepare(self, request: EngineRequest) -> Prepared | Rejection:
        self.num_begun += 1
        if request.messages[0].content == HELD:
            assert self.gate.wait(LIMIT_S)
        return super().prepare(request)

    def step(self) -> list[Completion | Rejection]:
        assert self.step_gate.wait(LIMIT_S)
        return super().step()

    def admit(self, prepared: Prepared) -> Rejection | None:
        self.admitted.append(prepared.document_hash)
        rejection = super().admit(prepared)
        self.peak_unfinished = max(self.peak_unfinished, self.num_unfinished())
        return rejection


class Parent:
    """The other side of a worker's socket."""

    def __init__(self, worker: _Worker, connection: socket.socket) -> None:
        self.worker = worker
        connection.settimeout(LIMIT_S)
        self._connection = connection
        self._stream = connection.makefile("rb")

    def say(self, *frames: Submit | Abort | Close) -> None:
        for frame in frames:
            self.worker._inbox.put(self.worker._begin_rendering(frame))

    def hear(self) -> tuple[EngineEvent, ...]:
        body = read_frame(self._stream)
        assert body is not None
        frame = decode_child_frame(body)
        assert isinstance(frame, Events)
        return frame.events

    def hear_outcomes(self, count: int) -> list[Completion | Rejection]:
        outcomes: list[Completion | Rejection] = []
        while len(outcomes) < count:
            outcomes += [event for event in self.hear() if isinstance(event, Completion | Rejection)]
        return outcomes

    def hear_stats(self) -> EngineStats:
        while True:
            for event in self.hear():
                if isinstance(event, EngineStats):
                    return event

    def is_silent_for(self, seconds: float) -> bool:
        self._connection.settimeout(seconds)
        try:
            self.hear()
        except TimeoutError:
            return True
        return False


@contextmanager
def serving(engine: GatedEngine) -> Iterator[Parent]:
    """A worker that serves this engine in a thread."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = _Worker(theirs)
        worker._engine = engine
        worker._is_by_priority = engine.has_priorities
        thread = threading.Thread(target=worker._serve, args=(engine,))
        thread.start()
        parent = Parent(worker, ours)
        try:
            yield parent
        finally:
            engine.gate.set()
            parent.say(Close())
            thread.join(LIMIT_S)
            worker._renderer.shutdown()
        assert not thread.is_alive()


def request(number: int, content: str = "text") -> EngineRequest:
    return EngineRequest(bytes([number]) * 16, (Message("user", content),))


class HandClock:
    """The worker's clock, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(worker_module, "time", self)

    def monotonic(self) -> float:
        return self.now_s


def hashes(*numbers: int) -> list[bytes]:
    return [bytes([number]) * 16 for number in numbers]


def test_requests_enter_the_engine_in_the_order_in_which_they_came() -> None:
    engine = GatedEngine()
    with serving(engine) as parent:
        parent.say(Submit((request(3, HELD), request(1))), Submit((request(2),)), Submit((request(9), request(4))))
        engine.gate.set()
        parent.hear_outcomes(5)
    assert engine.admitted == hashes(3, 1, 2, 9, 4)


def test_requests_are_rendered_during_a_step_and_steps_go_on_meanwhile() -> None:
    engine = GatedEngine()
    engine.step_gate.clear()
    with serving(engine) as parent:
        parent.say(Submit((request(1),)))
        wait_until(lambda: len(engine.admitted) == 1, LIMIT_S)
        parent.say(Submit((request(2, HELD), request(3))))
        wait_until(lambda: engine.num_begun == 2, LIMIT_S)  # the step is still under way
        engine.step_gate.set()
        (outcome,) = parent.hear_outcomes(1)  # the renderer is held
        assert outcome.document_hash == bytes([1]) * 16
        assert engine.admitted == hashes(1)


def test_an_engine_with_nothing_to_run_waits_until_all_that_came_is_rendered() -> None:
    engine = GatedEngine()
    with serving(engine) as parent:
        parent.say(Submit((request(1), request(2, HELD))))
        wait_until(lambda: engine.num_begun == 2, LIMIT_S)
        assert engine.admitted == []
        engine.gate.set()
        parent.hear_outcomes(2)
        assert engine.stats().num_steps == 3  # 2 and 3 output tokens, side by side


def test_a_request_that_is_dropped_before_it_is_rendered_never_enters_and_may_come_again() -> None:
    engine = GatedEngine()
    with serving(engine) as parent:
        parent.say(Submit((request(1, HELD), request(2), request(3))))
        wait_until(lambda: engine.num_begun == 1, LIMIT_S)
        parent.say(Abort(tuple(hashes(1, 2))), Submit((request(2),)))
        engine.gate.set()
        outcomes = parent.hear_outcomes(2)
    assert sorted(outcome.document_hash for outcome in outcomes) == hashes(2, 3)
    assert engine.admitted == hashes(3, 2)


def test_the_most_urgent_request_is_rendered_and_admitted_before_those_that_wait() -> None:
    engine = GatedEngine(has_priorities=True)
    with serving(engine) as parent:
        parent.say(Submit((request(1, HELD), request(2), request(3))))
        wait_until(lambda: engine.num_begun == 1, LIMIT_S)
        parent.say(Submit((replace(request(4), priority=1), replace(request(5), priority=-1))))
        engine.gate.set()
        parent.hear_outcomes(5)
    assert engine.admitted[:1] in ([bytes([5]) * 16], [bytes([1]) * 16])
    assert [one for one in engine.admitted if one != bytes([5]) * 16] == hashes(1, 2, 3, 4)
    assert engine.admitted.index(bytes([5]) * 16) < 2


def test_where_priorities_do_not_count_the_first_comes_first() -> None:
    engine = GatedEngine()
    with serving(engine) as parent:
        parent.say(Submit((request(1), replace(request(2), priority=-1), replace(request(3), priority=-2))))
        parent.hear_outcomes(3)
    assert engine.admitted == hashes(1, 2, 3)


def test_what_is_dropped_is_named_wherever_it_was_with_a_reading_from_after_it() -> None:
    engine = GatedEngine(max_concurrency=1, seconds_per_output_token=1)
    engine.step_gate.clear()
    with serving(engine) as parent:
        parent.say(Submit((request(1),)))
        wait_until(lambda: len(engine.admitted) == 1, LIMIT_S)
        parent.say(Submit((request(2, HELD), request(3))))
        parent.say(Abort(tuple(hashes(1, 3, 9))))
        engine.step_gate.set()
        events: list[EngineEvent] = []
        while not any(isinstance(event, Aborted) for event in events):
            events += parent.hear()
        at = next(index for index, event in enumerate(events) if isinstance(event, Aborted))
        finished = [event.document_hash for event in events if isinstance(event, Completion)]
        aborted, reading = events[at : at + 2]
        assert isinstance(aborted, Aborted)
        assert isinstance(reading, EngineStats)
        assert sorted((*aborted.document_hashes, *finished)) == hashes(1, 3)
        assert (reading.num_active, reading.num_aborted) == (0, len(aborted.document_hashes))
        assert reading.num_free_kv_blocks == reading.num_kv_blocks > 0
        assert reading.num_waiting == 1


def test_the_time_that_a_request_waited_to_be_rendered_counts() -> None:
    engine = GatedEngine()
    with serving(engine) as parent:
        began_s = time.monotonic()
        parent.say(Submit((request(1, HELD),)))
        came_s = time.monotonic()
        wait_until(lambda: time.monotonic() > came_s + 0.05, LIMIT_S)
        engine.gate.set()
        (outcome,) = parent.hear_outcomes(1)
        most_s = time.monotonic() - began_s
    assert isinstance(outcome, Completion)
    assert 0.05 <= outcome.queue_s == outcome.first_token_s == outcome.total_s <= most_s


def test_an_engine_whose_renderer_hangs_gives_no_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_SETTLE_S", 0.005)
    monkeypatch.setattr(worker_module, "_HEARTBEAT_EVERY_S", 0.01)
    engine = GatedEngine()
    with serving(engine) as parent:
        assert not parent.is_silent_for(LIMIT_S)  # at rest it does
        parent.say(Submit((request(1, HELD),)))
        wait_until(lambda: len(parent.worker._pending) == 1, LIMIT_S)
        while not parent.is_silent_for(0.3):  # what was under way
            pass


def test_an_engine_that_cuts_a_prompt_gives_signs_of_life_as_long_as_that_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_module, "_SETTLE_S", 0.005)
    monkeypatch.setattr(worker_module, "_HEARTBEAT_EVERY_S", 0.01)
    engine = GatedEngine()
    with serving(engine) as parent:
        parent.say(Submit((request(1, HELD),)))
        wait_until(lambda: len(parent.worker._pending) == 1, LIMIT_S)
        for _ in range(100):  # far more than were under way
            parent.worker.note_count()
            assert parent.hear()
        while not parent.is_silent_for(0.3):
            pass


def test_what_the_renderer_raises_ends_the_engine() -> None:
    class Broken(GatedEngine):
        def prepare(self, request: EngineRequest) -> Prepared | Rejection:
            raise RuntimeError

    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = _Worker(theirs)
        worker._engine = engine = Broken()
        worker._inbox.put(worker._begin_rendering(Submit((request(1),))))
        with pytest.raises(RuntimeError):
            worker._serve(engine)
        worker._renderer.shutdown()


def test_the_time_without_work_before_more_comes_is_idle_time() -> None:
    engine = GatedEngine()
    with serving(engine) as parent:
        parent.say(Submit((request(1),)))
        parent.hear_outcomes(1)
        finished_s = time.monotonic()
        assert parent.hear_stats().idle_s == 0.0
        wait_until(lambda: time.monotonic() > finished_s + 0.05, LIMIT_S)
        parent.say(Submit((request(2),)))
        most_s = time.monotonic() - finished_s + LIMIT_S
        parent.hear_outcomes(1)
        assert 0.05 <= parent.hear_stats().idle_s < most_s


def test_idle_time_lasts_until_a_request_enters_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendering counts as well, and what is refused is no work."""
    clock = HandClock(monkeypatch)
    engine = GatedEngine(seconds_per_output_token=1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = _Worker(theirs)
        worker._engine = engine
        worker._note_rest(engine)

        def come(at_s: float, rendered_at_s: float, *requests: EngineRequest) -> None:
            clock.now_s = at_s
            worker._accept(engine, worker._begin_rendering(Submit(requests)))
            worker._add(engine)
            engine.gate.set()
            for arrival in worker._pending:
                arrival.rendering.result(LIMIT_S)
            clock.now_s = rendered_at_s
            worker._add(engine)

        come(103, 110, request(1, HELD))
        assert worker._idle_s == 10
        while engine.num_unfinished() > 0:
            clock.now_s += 1
            worker._step(engine)
        rested_at_s = clock.now_s
        come(125, 130, request(2, "word " * 3000))
        assert (engine.num_unfinished(), worker._idle_s) == (0, 10)
        come(140, 141, request(3))
        busy_s = 10 + 141 - rested_at_s
        assert worker._idle_s == busy_s
        come(142, 143, request(4))
        worker._step(engine)
        assert worker._idle_s == busy_s
        clock.now_s = 150
        worker._accept(engine, Abort(tuple(hashes(3, 4))))
        come(156, 157, request(5))
        assert worker._idle_s == busy_s + 7
        worker._renderer.shutdown()


def test_all_slots_are_filled_however_short_the_answers_are() -> None:
    engine = GatedEngine(max_concurrency=150, max_tokens=2, seconds_per_output_token=1)
    engine.step_gate.clear()
    with serving(engine) as parent:
        parent.say(Submit(tuple(request(number) for number in range(256))))
        wait_until(lambda: len(engine.admitted) > 0, LIMIT_S)  # the first step is under way
        wait_until(lambda: all(one.rendering.done() for one in parent.worker._pending), LIMIT_S)
        engine.step_gate.set()
        parent.hear_outcomes(256)
        assert engine.stats().num_full_steps > 0


def test_the_engine_gets_no_more_than_its_slots_take_and_a_few_to_follow() -> None:
    engine = GatedEngine(max_concurrency=4, seconds_per_output_token=1)
    engine.step_gate.clear()
    with serving(engine) as parent:
        parent.say(Submit((request(255, HELD), *(request(number) for number in range(200)))))
        engine.gate.set()
        wait_until(lambda: len(engine.admitted) > 0, LIMIT_S)
        engine.step_gate.set()
        parent.hear_outcomes(1)
        wait_until(lambda: engine.num_begun == 201, LIMIT_S)
        parent.hear_outcomes(200)  # all: a worker whose parent does not read cannot go on
        assert engine.peak_unfinished == 4 + 64


def test_a_request_that_is_dropped_while_it_runs_is_forgotten_and_may_come_again() -> None:
    engine = GatedEngine(max_concurrency=1, seconds_per_output_token=1)
    engine.step_gate.clear()
    with serving(engine) as parent:
        parent.say(Submit((request(1), request(2), request(3))))  # one runs, two wait inside
        wait_until(lambda: len(engine.admitted) == 3, LIMIT_S)
        parent.say(Abort(tuple(hashes(1, 2, 9))), Submit((request(2), request(4))))
        engine.step_gate.set()
        outcomes = parent.hear_outcomes(3)
        assert [outcome.document_hash for outcome in outcomes] == hashes(3, 2, 4)
        assert engine.admitted == hashes(1, 2, 3, 2, 4)
        assert parent.worker._waited_s == {}
        assert parent.hear_stats().num_active == 0
