"""The limits of a job hold inside the real engine."""

import os
import signal
from collections.abc import Iterator

import pytest

from bulkinfer.engines.child import ChildEngine
from bulkinfer.errors import EngineDied
from bulkinfer.records import Completion, EngineStats
from tests.engine_support import make_request, poll_until_error, start_and_wait, vllm_spec, wait_until

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def engine() -> Iterator[ChildEngine]:
    """3 slots."""
    spec = vllm_spec(max_concurrency=3, max_context_tokens=256, max_tokens=64)
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


def test_a_killed_vllm_is_reported(engine: ChildEngine) -> None:
    assert engine.pid is not None
    engine.submit([make_request("Count to one thousand.")])
    os.kill(engine.pid, signal.SIGKILL)
    error = poll_until_error(engine, 10)
    assert isinstance(error, EngineDied)
    assert str(error).startswith("the engine ended: killed by SIGKILL")
