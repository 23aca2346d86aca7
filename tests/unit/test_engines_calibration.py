"""A cost model fitted to readings finds the costs that made them."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from bulkinfer.engines.base import EngineRequest
from bulkinfer.engines.calibration import MIN_STRETCHES, calibrate
from bulkinfer.engines.clock import VirtualClock
from bulkinfer.engines.simulated import SimulatedEngine
from bulkinfer.engines.simulated_cost import StepCost
from bulkinfer.records import EngineReady, EngineStats, Message
from tests.engine_support import simulated_spec

TRUE = StepCost(0.0004, 0.015, 0.0008, 0.000002)


def read_run(cost: StepCost, num_requests: int = 150, seed: int = 1) -> list[EngineStats]:
    """Readings of a simulated engine with these costs: prompts and answers of all lengths, more and fewer at a time."""
    drawn = random.Random(seed)
    costs = {name: getattr(cost, name) for name in StepCost.__slots__}
    spec = simulated_spec(max_concurrency=16, max_context_tokens=2048, output_tokens=10_000, **costs)
    engine = SimulatedEngine(spec, VirtualClock())
    readings = [engine.stats()]
    for number in range(num_requests):
        message = Message("user", "x" * drawn.randint(40, 4_000))
        document_hash = number.to_bytes(16, "big")
        engine.add(EngineRequest(document_hash, (message,), {"max_tokens": drawn.randint(1, 120)}))
        while drawn.random() < 0.8 and engine.num_unfinished():
            engine.step()
            readings.append(engine.stats())
    return readings


def test_the_costs_that_made_the_readings_are_found() -> None:
    found = calibrate(read_run(TRUE))
    assert found is not None
    for name in StepCost.__slots__:
        assert getattr(found.cost, name) == pytest.approx(getattr(TRUE, name), rel=1e-3)
    assert found.mean_error < 1e-6
    assert abs(found.total_error) < 1e-6
    assert found.computed_share == 1.0
    assert found.num_held_out == found.num_stretches // 4


def disturb(readings: Sequence[EngineStats], share: float) -> list[EngineStats]:
    drawn = random.Random(2)
    busy_s, disturbed = 0.0, [readings[0]]
    for earlier, later in pairwise(readings):
        busy_s += (later.busy_s - earlier.busy_s) * drawn.uniform(1 - share, 1 + share)
        disturbed.append(replace(later, busy_s=busy_s))
    return disturbed


def test_the_error_is_told_by_what_was_not_fitted() -> None:
    found = calibrate(disturb(read_run(TRUE), 0.2))
    assert found is not None
    assert 0.04 < found.mean_error < 0.2
    assert abs(found.total_error) < found.mean_error
    assert found.cost.seconds_per_output_token == pytest.approx(TRUE.seconds_per_output_token, rel=0.25)


def test_no_cost_is_negative() -> None:
    found = calibrate(disturb(read_run(StepCost(0.0, 0.01, 0.0, 0.0)), 0.3))
    assert found is not None
    assert min(getattr(found.cost, name) for name in StepCost.__slots__) >= 0
    assert found.cost.seconds_per_output_token == pytest.approx(0.01, rel=0.2)


def test_too_few_readings_and_readings_that_are_alike_say_nothing() -> None:
    assert calibrate([]) is None
    assert calibrate(read_run(TRUE)[:MIN_STRETCHES]) is None
    reading = read_run(TRUE)[-1]
    still = [replace(reading, num_steps=reading.num_steps + number) for number in range(40)]
    assert calibrate(still) is None, "steps without time"
    alike = [
        replace(
            reading,
            num_steps=number,
            num_output_tokens=2 * number,
            num_prompt_tokens=0,
            num_computed_prompt_tokens=3 * number,
            num_context_tokens=0,
            busy_s=0.5 * number,
        )
        for number in range(40)
    ]
    assert calibrate(alike) is None, "which of three costs it is cannot be told"


def test_a_restart_is_no_stretch() -> None:
    first, second = read_run(TRUE, seed=3), read_run(TRUE, seed=4)
    found = calibrate([*first, *second])
    assert found is not None
    assert found.mean_error < 1e-6


def test_the_arguments_make_an_engine_like_it() -> None:
    found = calibrate([replace(one, num_prompt_tokens=2 * one.num_computed_prompt_tokens) for one in read_run(TRUE)])
    assert found is not None
    ready = EngineReady(1.0, 9_000, {"max_num_batched_tokens": 512})
    arguments = found.to_arguments(ready, prompt_tokens_factor=1.5)
    assert arguments["seconds_per_prompt_token"] == pytest.approx(TRUE.seconds_per_prompt_token / 2)
    assert (arguments["kv_cache_tokens"], arguments["max_num_batched_tokens"]) == (9_000, 512)
    engine = SimulatedEngine(replace(simulated_spec(), arguments=arguments), VirtualClock())
    assert engine.ready().num_kv_cache_tokens == 9_000
    (rejection,) = [engine.add(EngineRequest(bytes(16), (Message("user", "x" * 4_000),)))]
    assert rejection is not None
    assert rejection.prompt_tokens == 1_506  # 1,004 by its characters
