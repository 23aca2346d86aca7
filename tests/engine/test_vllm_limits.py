"""The limits of a job hold inside the real engine."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bulkinfer.engines.child import ChildEngine
from bulkinfer.errors import EngineDied
from bulkinfer.records import Completion, EngineEvent, EngineStats
from tests.engine_support import make_request, poll_until_error, start_and_wait, vllm_spec, wait_until

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def engine() -> Iterator[ChildEngine]:
    """3 slots, and priorities count."""
    spec = replace(vllm_spec(max_concurrency=3, max_context_tokens=256, max_tokens=64), has_priorities=True)
    engine = ChildEngine(spec, start_timeout_s=90, silence_timeout_s=60)
    start_and_wait(engine)
    yield engine
    engine.close()


def test_never_more_sequences_run_than_max_concurrency(engine: ChildEngine) -> None:
    engine.submit([make_request(f"Count from {number} to one thousand.") for number in range(18)])
    readings: list[EngineStats] = []
    completions: list[Completion] = []

    def is_done() -> bool:
        events = engine.poll(0.5)
        readings.extend(event for event in events if isinstance(event, EngineStats))
        completions.extend(event for event in events if isinstance(event, Completion))
        return len(completions) == 18

    wait_until(is_done, 60)
    assert max(reading.num_active for reading in readings) == 3
    assert max(reading.num_waiting for reading in readings) > 0
    assert max(reading.kv_cache_usage for reading in readings) > 0
    # Those that had to wait for a slot say so.
    assert max(completion.queue_s for completion in completions) > 0.5


def test_an_urgent_request_overtakes_those_that_wait(engine: ChildEngine) -> None:
    later = [replace(make_request(f"Count from {number} to one thousand."), priority=10) for number in range(100, 112)]
    urgent = replace(make_request("Name a colour."), sampling={"max_tokens": 4})
    finished: list[bytes] = []

    def read() -> list[EngineEvent]:
        events = engine.poll(30)
        finished.extend(event.document_hash for event in events if isinstance(event, Completion))
        return events

    engine.submit(later)
    wait_until(lambda: any(isinstance(event, EngineStats) and event.num_waiting > 0 for event in read()), 60)
    num_before = len(finished)
    engine.submit([urgent])
    while len(finished) < 13:
        assert read(), "nothing within 30 s"
    # The three that ran may have ended before it, and none of those that waited, but what took their slots with it.
    assert finished.index(urgent.document_hash) <= num_before + 3
    assert finished.index(urgent.document_hash) < 9


def test_a_killed_vllm_is_reported(engine: ChildEngine) -> None:
    assert engine.pid is not None
    engine.submit([make_request("Count to one thousand.")])
    os.kill(engine.pid, signal.SIGKILL)
    error = poll_until_error(engine, 10)
    assert isinstance(error, EngineDied)
    assert str(error).startswith("the engine ended: killed by SIGKILL")
