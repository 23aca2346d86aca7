"""What users may write below `engine.simulated`, `engine.vllm` and `sampling`, and what they are told."""

import math
from dataclasses import replace

import pytest

from bulkinfer.engines import create_engine
from bulkinfer.engines.child import ChildEngine
from bulkinfer.engines.clock import VirtualClock
from bulkinfer.engines.local import LocalEngine
from bulkinfer.engines.simulated import SimulatedEngine
from bulkinfer.engines.simulated_arguments import Fault, FaultKind, SimulatedArguments, parse_simulated_arguments
from bulkinfer.engines.simulated_cost import StepCost
from bulkinfer.engines.vllm_arguments import check_sampling, check_vllm_arguments, decide_kv_cache_bytes
from bulkinfer.errors import JobError
from bulkinfer.records import JsonValue
from tests.engine_support import simulated_spec, vllm_spec

MIB = 1024 * 1024


def test_nothing_given_means_the_documented_defaults() -> None:
    found = parse_simulated_arguments({})
    assert found == SimulatedArguments(StepCost(0.0005, 0.002, 0.0, 0.0), 0.0, None, None, False, None, 1.0, (), False)


def test_all_arguments_are_read() -> None:
    found = parse_simulated_arguments(
        {
            "seconds_per_prompt_token": 1,
            "seconds_per_output_token": 0,
            "seconds_per_sequence": 3,
            "seconds_per_context_token": 4,
            "engine_start_s": 2.5,
            "max_num_batched_tokens": 5,
            "kv_cache_tokens": 6,
            "clock": "virtual",
            "output_tokens": 7,
            "prompt_tokens_factor": 8,
            "faults": [{"match": "x", "kind": "die", "times": 2}, {"match": "y", "kind": "empty"}],
        }
    )
    faults = (Fault("x", FaultKind.DIE, 2), Fault("y", FaultKind.EMPTY, None))
    assert found == SimulatedArguments(StepCost(1.0, 0.0, 3.0, 4.0), 2.5, 5, 6, True, 7, 8.0, faults, False)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            {"max_num_batched_tokens": 3},
            "max_num_batched_tokens: expected at least limits.max_concurrency (4), a",
        ),
        ({"kv_cache_tokens": 511}, "kv_cache_tokens: expected at least limits.max_context_tokens (512), without what"),
    ],
)
def test_an_engine_without_room_for_one_token_each_or_one_document_is_refused(
    arguments: dict[str, JsonValue], expected: str
) -> None:
    with pytest.raises(JobError) as error:
        SimulatedEngine(replace(simulated_spec(), arguments=arguments), VirtualClock())
    assert str(error.value).startswith(f"engine.simulated.{expected}")


@pytest.mark.parametrize(
    ("arguments", "path", "told"),
    [
        ({"second_per_prompt_token": 1}, "engine.simulated.second_per_prompt_token", '"seconds_per_prompt_token"'),
        ({"engine_start_s": -1}, "engine.simulated.engine_start_s", "0 or more, found -1"),
        ({"engine_start_s": "1"}, "engine.simulated.engine_start_s", "found '1'"),
        ({"engine_start_s": True}, "engine.simulated.engine_start_s", "found True"),
        ({"prompt_tokens_factor": 0}, "engine.simulated.prompt_tokens_factor", "expected a number from 0.01 to 100"),
        ({"prompt_tokens_factor": True}, "engine.simulated.prompt_tokens_factor", "found True"),
        ({"seconds_per_prompt_token": math.nan}, "engine.simulated.seconds_per_prompt_token", "found nan"),
        ({"clock": "virtuel"}, "engine.simulated.clock", '"virtual"'),
        ({"output_tokens": 0}, "engine.simulated.output_tokens", "found 0"),
        ({"in_child": 1}, "engine.simulated.in_child", "true or false, found 1"),
        ({"faults": {"match": "x"}}, "engine.simulated.faults", "a list"),
        ({"faults": ["x"]}, "engine.simulated.faults[0]", "a mapping"),
        ({"faults": [{"match": "x", "kind": "dye"}]}, "engine.simulated.faults[0].kind", '"die"'),
        ({"faults": [{"match": "x", "kind": "die", "time": 1}]}, "engine.simulated.faults[0].time", '"times"'),
        ({"faults": [{"match": "", "kind": "die"}]}, "engine.simulated.faults[0].match", "not empty"),
        ({"faults": [{"match": "x", "kind": "die", "times": 0}]}, "engine.simulated.faults[0].times", "found 0"),
        ({"in_child": True, "clock": "virtual"}, "engine.simulated.clock", "child process"),
    ],
)
def test_a_wrong_simulated_argument_is_named(arguments: dict[str, JsonValue], path: str, told: str) -> None:
    with pytest.raises(JobError) as caught:
        parse_simulated_arguments(arguments)
    assert str(caught.value).startswith(f"{path}: ")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"max_model_len": 10}, "limits.max_context_tokens"),
        ({"max_num_seqs": 10}, "limits.max_concurrency"),
        ({"model": "x"}, "model.path"),
        ({"disable_log_stats": True}, "cannot be changed"),
        ({"blok_size": 16}, '"block_size"'),
    ],
)
def test_a_wrong_vllm_argument_is_named(arguments: dict[str, JsonValue], told: str) -> None:
    with pytest.raises(JobError, match=f"engine.vllm.{next(iter(arguments))}") as caught:
        check_vllm_arguments(arguments, ["block_size", "max_model_len", "max_num_seqs", "model", "disable_log_stats"])
    assert told in str(caught.value)


def test_known_vllm_arguments_pass() -> None:
    check_vllm_arguments({"block_size": 16}, ["block_size"])


def test_a_wrong_sampling_parameter_is_named() -> None:
    with pytest.raises(JobError, match=r"sampling\.temprature") as caught:
        check_sampling({"temprature": 1}, ["temperature", "n", "max_tokens"])
    assert '"temperature"' in str(caught.value)


@pytest.mark.parametrize(
    ("bytes_per_token", "free_mib", "expected_bytes"),
    [
        (23_040, 20_000, (4 * 16 + 1) * 32 * 23_040),  # 4 sequences of 512 tokens in blocks of 32: below 256 MiB
        (230_400, 20_000, (4 * 16 + 1) * 32 * 230_400),
        (None, 20_000, 1024 * MIB),
        (2_304_000, 2_000, 1_000 * MIB),
        (2_304_000, 100, 256 * MIB),
    ],
)
def test_the_kv_cache_holds_all_sequences_within_half_of_the_free_memory(
    bytes_per_token: int | None, free_mib: int, expected_bytes: int
) -> None:
    spec = vllm_spec(max_concurrency=4, max_context_tokens=512)
    found = decide_kv_cache_bytes(spec, bytes_per_token, block_size=32, free_bytes=free_mib * MIB)
    assert found == max(256 * MIB, expected_bytes)


def test_the_kind_chooses_the_engine() -> None:
    assert isinstance(create_engine(simulated_spec()), LocalEngine)
    assert isinstance(create_engine(simulated_spec(in_child=True)), ChildEngine)
    assert isinstance(create_engine(vllm_spec()), ChildEngine)
