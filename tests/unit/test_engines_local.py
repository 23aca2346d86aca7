"""The engine that runs in the caller's thread, on a virtual clock."""

from dataclasses import replace

import pytest

from bulkinfer.engines import create_engine
from bulkinfer.engines.base import EngineRequest
from bulkinfer.engines.clock import VirtualClock
from bulkinfer.engines.local import LocalEngine
from bulkinfer.engines.simulated import SimulatedEngine
from bulkinfer.errors import EngineDied, EngineError
from bulkinfer.records import Completion, EngineEvent, EngineReady, EngineStats, JsonValue, Rejection
from tests.engine_support import FREE, make_request, select_outcomes, simulated_spec, start_and_wait


class BrokenEngine(SimulatedEngine):
    """Raises in its first step."""

    error: Exception = RuntimeError("secret text of a document")

    def step(self) -> list[Completion | Rejection]:
        raise self.error


def create_virtual(**arguments: JsonValue) -> LocalEngine:
    engine = create_engine(replace(simulated_spec(), arguments=FREE | {"clock": "virtual"} | arguments))
    assert isinstance(engine, LocalEngine)
    return engine


def test_a_start_takes_its_time_on_the_engines_clock() -> None:
    engine = create_virtual(engine_start_s=3)
    engine.start()
    assert engine.poll(2.0) == []
    (ready,) = engine.poll(2.0)
    assert isinstance(ready, EngineReady)
    assert ready.start_s == 3.0
    assert engine.now() == 3.0


def test_poll_returns_as_soon_as_something_finishes() -> None:
    engine = create_virtual(seconds_per_output_token=0.01, output_tokens=7)
    start_and_wait(engine)
    engine.submit([make_request("a")])
    assert len(select_outcomes(engine.poll(100.0))) == 1
    assert engine.now() == pytest.approx(0.07)


def test_poll_returns_when_its_time_is_up() -> None:
    engine = create_virtual(seconds_per_output_token=0.05, output_tokens=8)
    start_and_wait(engine)
    engine.submit([make_request("a")])
    assert select_outcomes(engine.poll(0.1)) == []
    assert engine.now() == pytest.approx(0.1)


def test_an_idle_poll_leaves_a_virtual_clock_alone() -> None:
    engine = create_virtual()
    start_and_wait(engine)
    assert engine.poll(5.0) == []
    assert engine.now() == 0.0


def test_readings_come_twice_a_second_and_once_more_at_rest() -> None:
    engine = create_virtual(seconds_per_output_token=0.5, output_tokens=8)
    start_and_wait(engine)
    engine.submit([make_request("a")])
    readings = [event for _ in range(20) for event in engine.poll(0.5) if isinstance(event, EngineStats)]
    assert [reading.num_output_tokens for reading in readings] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [reading.num_active for reading in readings] == [1, 1, 1, 1, 1, 1, 1, 0]


@pytest.mark.parametrize("kind", ["die", "hang", "raise"])
def test_a_scripted_end_is_a_death_and_a_new_start_works(kind: str) -> None:
    engine = create_virtual(faults=[{"match": "BAD", "kind": kind, "times": 1}])
    start_and_wait(engine)
    engine.submit([make_request("a", "BAD")])
    with pytest.raises(EngineDied):
        engine.poll(1.0)
    with pytest.raises(EngineDied):
        engine.submit([make_request("b")])
    start_and_wait(engine)
    engine.submit([make_request("a", "BAD")])
    assert isinstance(select_outcomes(engine.poll(1.0))[0], Completion)


def create_broken(error: Exception) -> LocalEngine:
    clock = VirtualClock()
    engine = LocalEngine(lambda: BrokenEngine(simulated_spec(), clock), clock=clock)
    start_and_wait(engine)
    engine.submit([make_request("a")])
    return engine


def test_the_message_of_a_death_does_not_quote_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = create_broken(BrokenEngine.error)
    with pytest.raises(EngineDied) as caught:
        engine.poll(1.0)
    assert str(caught.value) == "the engine raised RuntimeError"


def test_a_bug_is_not_taken_for_a_death(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokenEngine, "error", KeyError("bug"))
    engine = create_broken(KeyError("bug"))
    with pytest.raises(KeyError):
        engine.poll(1.0)


def test_an_engine_that_was_not_started_says_so() -> None:
    engine = create_virtual()
    with pytest.raises(EngineError, match="not started"):
        engine.poll(0.0)
    with pytest.raises(EngineDied):
        engine.submit([])
    with pytest.raises(EngineDied):
        engine.abort([b"unknown"])
    engine.close()


def test_a_request_reaches_the_step_engine_as_it_was_given() -> None:
    seen: list[EngineRequest] = []

    class Listening(SimulatedEngine):
        def add(self, request: EngineRequest) -> Rejection | None:
            seen.append(request)
            return super().add(request)

    clock = VirtualClock()
    engine = LocalEngine(lambda: Listening(simulated_spec(), clock), clock=clock, priority=10)
    start_and_wait(engine)
    request = replace(make_request("a", "content"), sampling={"max_tokens": 3}, priority=-2)
    engine.submit([request])
    assert seen == [EngineRequest(request.document_hash, request.messages, sampling={"max_tokens": 3}, priority=8)]


def test_the_time_without_work_before_more_comes_is_idle_time() -> None:
    clock = VirtualClock()
    engine = LocalEngine(lambda: SimulatedEngine(simulated_spec(), clock), clock=clock)
    start_and_wait(engine)
    events: list[EngineEvent] = []
    for idle_s in (2.0, 3.0):
        clock.sleep(idle_s)
        engine.submit([make_request(str(idle_s))])
        events += engine.poll(1.0)
    clock.sleep(4.0)  # nothing came after it: the end is not idle time
    events += engine.poll(0.0)
    assert len(select_outcomes(events)) == 2
    assert [event.idle_s for event in events if isinstance(event, EngineStats)][-1] == 5.0


def test_what_is_refused_or_dropped_is_no_work() -> None:
    clock = VirtualClock()
    engine = LocalEngine(lambda: SimulatedEngine(simulated_spec(seconds_per_output_token=1), clock), clock=clock)
    start_and_wait(engine)
    clock.sleep(2.0)
    engine.submit([make_request("too long", "word " * 3000)])
    clock.sleep(3.0)
    dropped = make_request("dropped")
    engine.submit([dropped])
    engine.abort([dropped.document_hash])
    clock.sleep(4.0)
    engine.submit([make_request("a")])
    events = [event for _ in range(20) for event in engine.poll(1.0)]
    assert len(select_outcomes(events)) == 2
    assert [event.idle_s for event in events if isinstance(event, EngineStats)][-1] == 9.0
