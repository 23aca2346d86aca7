"""The comparison of a simulated engine with the one that it was fitted to."""

from typing import Any

import pytest
from benchmarks.simulation import MAX_CONTEXT_TOKENS, compare, draw_load

from tests.engine_support import simulated_spec


def test_an_engine_that_is_what_the_model_says_is_met_exactly() -> None:
    spec = simulated_spec(
        max_concurrency=8,
        max_context_tokens=MAX_CONTEXT_TOKENS,
        clock="virtual",
        output_tokens=MAX_CONTEXT_TOKENS,
        max_num_batched_tokens=512,
        seconds_per_prompt_token=0.002,
        seconds_per_output_token=0.03,
        seconds_per_sequence=0.004,
        seconds_per_context_token=0.00002,
    )
    loads = [draw_load(number, 30, number) for number in (1, 4, 8)]
    found: Any = compare(spec, loads, [draw_load(9, 40, 6)])
    assert found["calibration"]["mean_error"] < 1e-6
    assert found["arguments"]["seconds_per_output_token"] == pytest.approx(0.03)
    assert found["arguments"]["prompt_tokens_factor"] == 1.0
    (load,) = found["loads"]
    assert load["num_in_flight"] == 6
    for name in ("seconds", "output_tokens_per_s", "first_token_p95", "total_p95"):
        assert load[name]["real"] > 0
        assert abs(load[name]["error"]) < 0.02, "but for the tokens of a step, which are not in the readings"


def test_a_load_is_the_same_every_time_and_its_documents_differ() -> None:
    load = draw_load(1, 50, 4)
    assert load == draw_load(1, 50, 4) != draw_load(2, 50, 4)
    assert len({request.document_hash for request in load.requests}) == 50
    assert min(request.num_chars for request in load.requests) < 500 < max(one.num_chars for one in load.requests)
