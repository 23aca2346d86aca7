"""Settings of engines that embed or score: a step for the longest prompt, and no more cache than the model keeps."""

from dataclasses import replace

import pytest

from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.tuning import Machine, ModelFacts, Settings
from bulkinfer.engines.tuning_pooling import PoolingFacts, decide_pooling_settings
from bulkinfer.errors import JobError
from bulkinfer.records import UNKNOWN_WORKLOAD

GIB = 1 << 30
CPU = Machine(is_cpu=True, num_threads=2, num_cores=2, free_memory_bytes=8 * GIB, has_compiler=True)
GPU = replace(CPU, is_cpu=False)
SPEC = EngineSpec("vllm", "m", None, {}, None, None, task="embed")
BERT = ModelFacts(512, kv_bytes_per_token=9_216, num_layers=6, weight_bytes=90_000_000)
ENCODER = PoolingFacts(keeps_cache=False, computes_parts=False)
LAST_TOKEN = PoolingFacts(keeps_cache=True, computes_parts=True)
MEAN_OF_DECODER = PoolingFacts(keeps_cache=True, computes_parts=False)
KNOWN = frozenset({"performance_mode"})


def decide(
    spec: EngineSpec = SPEC, machine: Machine = CPU, model: ModelFacts = BERT, pooling: PoolingFacts = ENCODER
) -> Settings:
    return decide_pooling_settings(spec, UNKNOWN_WORKLOAD, machine, model, KNOWN, pooling)


def test_an_encoder_gets_a_step_for_its_longest_prompt_and_no_cache() -> None:
    settings = decide()
    assert settings.values["runner"] == "pooling"
    assert settings.values["max_model_len"] == 512
    assert settings.values["max_num_batched_tokens"] == 4096
    assert settings.values["kv_cache_memory_bytes"] == 1 << 20
    assert settings.environment == {"threads": 2}
    assert set(settings.reasons) == set(settings.values) | {"threads"}
    assert all(settings.reasons.values())


def test_a_cpu_does_not_compute_in_half_precision_unless_the_job_says_so() -> None:
    half = replace(ENCODER, is_half=True)
    assert decide(pooling=half).values["dtype"] == "float32"
    assert "float16" in decide(pooling=half).reasons["dtype"]
    given = decide(replace(SPEC, arguments={"dtype": "float16"}), pooling=half)
    assert (given.values["dtype"], "dtype" in given.reasons) == ("float16", False)
    assert "dtype" not in decide(machine=GPU, pooling=half).values
    assert "dtype" not in decide().values


def test_a_long_context_makes_the_step_longer() -> None:
    assert decide(model=replace(BERT, max_context_tokens=8192)).values["max_num_batched_tokens"] == 8192
    short = replace(SPEC, max_context_tokens=100)
    assert decide(short, model=replace(BERT, max_context_tokens=8192)).values["max_num_batched_tokens"] == 4096


def test_what_the_job_gives_is_taken_and_has_no_reason() -> None:
    spec = replace(
        SPEC, max_concurrency=40, max_context_tokens=64, reserve=0.5, arguments={"max_num_batched_tokens": 512}
    )
    settings = decide(spec)
    assert settings.values["max_num_seqs"] == 20
    assert settings.values["max_model_len"] == 64
    assert settings.values["max_num_batched_tokens"] == 512
    assert {"max_num_seqs", "max_model_len", "max_num_batched_tokens"}.isdisjoint(settings.reasons)


@pytest.mark.parametrize("pooling", [ENCODER, LAST_TOKEN, MEAN_OF_DECODER])
@pytest.mark.parametrize("machine", [CPU, GPU])
def test_a_context_above_the_models_is_refused(pooling: PoolingFacts, machine: Machine) -> None:
    spec = replace(SPEC, max_context_tokens=513)
    with pytest.raises(JobError, match="expected at most 512, which is what the model can take, found 513"):
        decide(spec, machine, pooling=pooling)


def test_a_decoder_keeps_a_cache_as_one_that_writes() -> None:
    settings = decide(pooling=LAST_TOKEN)
    cache = settings.values["kv_cache_memory_bytes"]
    assert isinstance(cache, int)
    assert cache >= 256 << 20
    assert "enable_chunked_prefill" not in settings.values
    assert settings.values["runner"] == "pooling"


def test_a_decoder_whose_tokens_are_averaged_computes_prompts_whole() -> None:
    settings = decide(pooling=MEAN_OF_DECODER, model=replace(BERT, max_context_tokens=8192))
    assert settings.values["enable_chunked_prefill"] is False
    assert settings.reasons["enable_chunked_prefill"] == "this model computes a prompt whole"
    batched, context = settings.values["max_num_batched_tokens"], settings.values["max_model_len"]
    assert isinstance(batched, int)
    assert isinstance(context, int)
    assert batched >= context


def test_on_a_gpu_vllm_decides_but_for_what_it_cannot_know() -> None:
    settings = decide(replace(SPEC, max_concurrency=40), GPU)
    assert settings.values == {
        "max_model_len": 512, "max_num_seqs": 40, "performance_mode": "throughput", "runner": "pooling",
    }  # fmt: skip
