"""What an engine gets where the job gives nothing: tables of machines, models, workloads and jobs."""

from dataclasses import replace
from typing import Any

import pytest

from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.tuning import Machine, ModelFacts, Settings, check_room, decide_settings, expect_work_s
from bulkinfer.errors import JobError
from bulkinfer.records import UNKNOWN_WORKLOAD, JsonValue, Workload
from tests.engine_support import vllm_spec

GIB = 1 << 30
MIB = 1 << 20
KNOWN = ("performance_mode", "max_model_len", "max_num_seqs", "enforce_eager", "block_size")
CPU = Machine(is_cpu=True, num_threads=2, num_cores=2, free_memory_bytes=20 * GIB, has_compiler=True, flops_per_s=5e11)
GPU = Machine(is_cpu=False, num_threads=16, num_cores=16, free_memory_bytes=128 * GIB)
SMALL = ModelFacts(8192, kv_bytes_per_token=23_040, num_layers=30, num_parameters=135_000_000, weight_bytes=270_000_000)
LONG = ModelFacts(131_072, kv_bytes_per_token=131_072, num_layers=32, num_parameters=8 * 10**9, weight_bytes=16 * GIB)
UNKNOWN = ModelFacts(4096)
SHORT_WORK = Workload(200, 240, 300, 400, is_read_to_end=True)
LONG_WORK = Workload(1_000_000, 240, 300, 4_000)


def auto_spec(max_tokens: int = 32, seed: int | None = None, **arguments: JsonValue) -> EngineSpec:
    """A job that leaves all to the engine but for `arguments`."""
    spec = replace(vllm_spec(max_tokens=max_tokens), max_concurrency=None, max_context_tokens=None, arguments=arguments)
    return spec if seed is None else replace(spec, sampling={**spec.sampling, "seed": seed})


def decide(
    spec: EngineSpec, workload: Workload = SHORT_WORK, machine: Machine = CPU, model: ModelFacts = SMALL
) -> Settings:
    """`decide_settings` for a vLLM that has all arguments."""
    return decide_settings(spec, workload, machine, model, KNOWN)


def number(settings: Settings, name: str) -> int:
    """A setting that is a number."""
    value = settings.values[name]
    assert isinstance(value, int)
    return value


def test_a_few_short_documents_on_a_cpu() -> None:
    found = decide(auto_spec())
    assert found.values == {
        "block_size": 32,
        "max_model_len": 8192,
        "max_num_seqs": 256,
        # 200 documents of 164 tokens are 6 blocks each, one as long as the context is 256, and one is vLLM's own.
        "kv_cache_memory_bytes": (200 * 6 + 256 + 1) * 32 * 23_040,
        "max_num_batched_tokens": 4096,
        "enforce_eager": True,
    }
    assert found.environment == {"threads": 2}
    assert set(found.reasons) == {"threads", *found.values}
    assert all(found.reasons.values())


@pytest.mark.parametrize(
    "given",
    [
        {"block_size": 128},
        {"kv_cache_memory_bytes": 300 * MIB},
        {"max_num_batched_tokens": 2048},
        {"enforce_eager": False},
        {"enable_chunked_prefill": True},
        {"block_size": 16, "enforce_eager": False, "max_num_batched_tokens": 512},
    ],
)
@pytest.mark.parametrize("seed", [None, 1])
def test_a_value_that_the_job_gives_is_kept_and_needs_no_reason(given: dict[str, Any], seed: int | None) -> None:
    found = decide(auto_spec(seed=seed, **given))
    assert {name: found.values[name] for name in given} == given
    assert not set(given) & set(found.reasons)


def test_threads_that_the_environment_gives_are_told_apart() -> None:
    assert decide(auto_spec()).reasons["threads"].startswith("one for each physical core")
    assert "OMP_NUM_THREADS" in decide(auto_spec(), machine=replace(CPU, num_threads=1)).reasons["threads"]


def test_the_folder_for_compiled_code_is_told_when_code_is_compiled() -> None:
    machine = replace(CPU, compile_cache="/caches/a")
    assert decide(auto_spec(), LONG_WORK, machine).environment["compile_cache"] == "/caches/a"
    assert "compile_cache" not in decide(auto_spec(), SHORT_WORK, machine).reasons
    assert "this CPU" in decide(auto_spec(), LONG_WORK, machine).reasons["compile_cache"]
    theirs = decide(auto_spec(), LONG_WORK, replace(machine, is_own_cache=False))
    assert theirs.reasons["compile_cache"] == "as VLLM_CACHE_ROOT says"


def test_engines_that_share_the_work_have_less_of_it_each() -> None:
    alone, shared = (expect_work_s(LONG_WORK, 32, replace(CPU, num_replicas=num), SMALL) for num in (1, 4))
    assert alone is not None
    assert shared == pytest.approx(alone / 4)
    # The speed of an earlier run is that of all its engines.
    earlier = replace(LONG_WORK, tokens_per_s=100)
    assert expect_work_s(earlier, 32, replace(CPU, num_replicas=4), SMALL) == expect_work_s(earlier, 32, CPU, SMALL)


@pytest.mark.parametrize(
    ("work_s", "is_eager_cold", "is_eager_warm"), [(800, False, False), (700, True, False), (160, True, True)]
)
def test_code_of_an_earlier_run_makes_compiling_pay_sooner(
    work_s: float, is_eager_cold: bool, is_eager_warm: bool
) -> None:
    """46 s cold pay above 767 s of work; the 10 s that are assumed for a warm start above 167 s."""
    workload = Workload(1_000, 240, 300, 400, tokens_per_s=1_000 * 76 / work_s)
    warm = replace(CPU, has_compiled_code=True)
    found = [decide(auto_spec(), workload, machine) for machine in (CPU, warm)]
    assert [settings.values["enforce_eager"] for settings in found] == [is_eager_cold, is_eager_warm]
    assert "as is assumed" in found[1].reasons["enforce_eager"]
    assert "as is assumed" not in found[0].reasons["enforce_eager"]


def test_limits_that_the_job_gives_are_kept() -> None:
    found = decide(replace(auto_spec(), max_concurrency=7, max_context_tokens=512))
    assert (found.values["max_num_seqs"], found.values["max_model_len"]) == (7, 512)
    assert not {"max_num_seqs", "max_model_len"} & set(found.reasons)


def test_a_compilation_of_the_jobs_own_is_not_switched_off() -> None:
    assert "enforce_eager" not in decide(auto_spec(compilation_config={"mode": 3})).values


def test_the_kv_cache_of_a_job_without_a_known_workload_holds_all_sequences_at_their_longest() -> None:
    found = decide(replace(auto_spec(), max_concurrency=40, max_context_tokens=1024), UNKNOWN_WORKLOAD)
    assert found.values["kv_cache_memory_bytes"] == (40 * 32 + 1) * 32 * 23_040


def test_a_low_estimate_of_documents_makes_the_kv_cache_no_smaller() -> None:
    few = replace(SHORT_WORK, num_documents=3)
    assert decide(auto_spec(), few).values["kv_cache_memory_bytes"] == 256 * MIB
    estimated = decide(auto_spec(), replace(few, is_read_to_end=False))
    assert estimated.values["kv_cache_memory_bytes"] == (256 * 6 + 256 + 1) * 32 * 23_040


def test_the_kv_cache_holds_the_longest_documents_which_run_first_and_together() -> None:
    """Ten of 6,000 bytes are 2,064 tokens, or 65 blocks; the others of 300 bytes 164 tokens, or 6 blocks."""
    longest = (6_000,) * 10 + (300,) * 190
    found = decide(auto_spec(), replace(SHORT_WORK, longest_bytes=longest))
    assert number(found, "kv_cache_memory_bytes") == (10 * 65 + 190 * 6 + 256 + 1) * 32 * 23_040
    assert f"{10 * 2_064 + 190 * 164:,} tokens" in found.reasons["kv_cache_memory_bytes"]


def test_the_kv_cache_holds_the_parts_of_documents_that_are_split() -> None:
    """Each of 8 has 21,000 bytes; 992 tokens are free for a prompt, so that 8 parts fill the context of 32 blocks."""
    spec = replace(auto_spec(), max_context_tokens=1024)
    workload = replace(SHORT_WORK, num_documents=8, longest_bytes=(21_000,) * 8)
    whole, split = decide(spec, workload), decide(replace(spec, overlong="split"), workload)
    assert number(split, "kv_cache_memory_bytes") == (64 * 32 + 32 + 1) * 32 * 23_040
    assert number(whole, "kv_cache_memory_bytes") < number(split, "kv_cache_memory_bytes")


def test_more_sequences_than_lengths_are_known_are_as_long_as_the_shortest_of_these() -> None:
    workload = replace(LONG_WORK, longest_bytes=(3_000,) * 256)
    found = decide(replace(auto_spec(), max_concurrency=300), workload)
    # 3,000 bytes are 1,064 tokens, or 34 blocks.
    assert number(found, "kv_cache_memory_bytes") == (300 * 34 + 256 + 1) * 32 * 23_040


def test_documents_that_are_not_found_yet_are_as_long_as_most() -> None:
    workload = replace(SHORT_WORK, is_read_to_end=False, longest_bytes=(3_000,) * 5)
    assert number(decide(auto_spec(), workload), "kv_cache_memory_bytes") == (5 * 34 + 251 * 6 + 257) * 32 * 23_040


def test_the_longest_documents_get_no_more_than_half_of_what_is_free() -> None:
    workload = replace(LONG_WORK, longest_bytes=(24_000,) * 256)
    found = decide(auto_spec(), workload, replace(CPU, free_memory_bytes=4 * GIB))
    assert number(found, "kv_cache_memory_bytes") == (4 * GIB - SMALL.weight_bytes) // 2


@pytest.mark.parametrize("free_bytes", [600 * MIB, GIB, 4 * GIB, 64 * GIB])
@pytest.mark.parametrize("workload", [SHORT_WORK, LONG_WORK, UNKNOWN_WORKLOAD, Workload(5, 9e4, 100_000, 500_000)])
@pytest.mark.parametrize("model", [SMALL, replace(LONG, weight_bytes=0)])
def test_the_kv_cache_is_within_half_of_what_is_free_and_holds_one_document_at_its_longest(
    free_bytes: int, workload: Workload, model: ModelFacts
) -> None:
    found = decide(auto_spec(), workload, replace(CPU, free_memory_bytes=free_bytes), model)
    num_bytes = number(found, "kv_cache_memory_bytes")
    assert num_bytes <= max(256 * MIB, (free_bytes - model.weight_bytes) // 2)
    assert model.kv_bytes_per_token is not None
    num_blocks = num_bytes // (32 * model.kv_bytes_per_token) - 1
    assert num_blocks * 32 >= number(found, "max_model_len")
    room_blocks = max(256 * MIB, (free_bytes - model.weight_bytes) // 2) // (32 * model.kv_bytes_per_token) - 1
    context = number(found, "max_model_len")
    # 300 characters are 100 tokens, 100,000 are 33,334; 32 each for the template and the answer.
    longest = {300: 164, 100_000: min(context, 33_398), 0: context}[workload.p95_bytes]
    assert number(found, "max_num_seqs") == min(256, room_blocks * 32 // longest)


def test_a_tiny_container_gets_fewer_sequences_and_says_why() -> None:
    found = decide(auto_spec(max_tokens=2000), LONG_WORK, replace(CPU, free_memory_bytes=800 * MIB))
    # (800 MiB - 270 MB) / 2 are 386 blocks; 300 characters and an answer of 2,000 tokens are 2,132.
    assert number(found, "max_num_seqs") == 386 * 32 // 2_132
    assert "fit into memory" in found.reasons["max_num_seqs"]
    assert number(found, "max_num_batched_tokens") == 4096


def test_a_long_context_that_does_not_fit_is_cut_to_what_does() -> None:
    machine = replace(CPU, free_memory_bytes=24 * GIB)
    found = decide(auto_spec(), LONG_WORK, machine, LONG)
    # Half of 8 GiB, 4 MiB a block, one block is vLLM's own.
    assert number(found, "max_model_len") == (1024 - 1) * 32
    assert "131,072" in found.reasons["max_model_len"]
    assert number(found, "max_num_seqs") == (1024 - 1) * 32 // 164


@pytest.mark.parametrize("is_read_to_end", [True, False])
def test_a_costly_context_is_cut_to_the_documents_only_when_all_are_known(is_read_to_end: bool) -> None:
    machine = replace(CPU, free_memory_bytes=256 * GIB)
    workload = Workload(100, 240, 300, 1_000, is_read_to_end=is_read_to_end)
    found = decide(auto_spec(), workload, machine, LONG)
    assert number(found, "max_model_len") == (1_000 * 4 + 4096 + 32 if is_read_to_end else 131_072)


def test_every_prompt_that_the_model_could_take_fits_into_the_context() -> None:
    """Four tokens for each character: one for each byte, at most."""
    for max_chars in (1, 1_000, 20_000, 100_000):
        workload = Workload(10, max_chars, max_chars, max_chars, is_read_to_end=True)
        found = decide(auto_spec(), workload, replace(CPU, free_memory_bytes=256 * GIB), LONG)
        assert number(found, "max_model_len") >= min(131_072, 4 * max_chars + 32)


def test_a_seeded_job_computes_prompts_whole() -> None:
    found = decide(auto_spec(seed=3), LONG_WORK)
    assert found.values["enable_chunked_prefill"] is False
    assert number(found, "max_num_batched_tokens") >= number(found, "max_model_len")
    assert "seed" in found.reasons["enable_chunked_prefill"]


def test_rows_that_bring_seeds_want_prompts_whole_too() -> None:
    found = decide(replace(auto_spec(), row_sampling=("seed",)), LONG_WORK)
    assert found.values["enable_chunked_prefill"] is False


@pytest.mark.parametrize("more", [{"row_sampling": ("max_tokens",)}, {"has_images": True}])
def test_a_costly_context_is_not_cut_where_characters_do_not_tell_what_is_needed(more: dict[str, Any]) -> None:
    workload = Workload(100, 240, 300, 1_000, is_read_to_end=True)
    machine = replace(CPU, free_memory_bytes=120 * GIB)
    cut = number(decide(auto_spec(), workload, machine, LONG), "max_model_len")
    assert cut < number(decide(replace(auto_spec(), **more), workload, machine, LONG), "max_model_len") == 131_072


def test_a_job_that_wants_prompts_whole_gets_steps_that_take_the_longest() -> None:
    found = decide(auto_spec(enable_chunked_prefill=False), LONG_WORK)
    assert (number(found, "max_model_len"), number(found, "max_num_batched_tokens")) == (8192, 8192)
    assert "enable_chunked_prefill" in found.reasons["max_num_batched_tokens"]


@pytest.mark.parametrize("model", [SMALL, UNKNOWN])
def test_a_given_step_bounds_the_context_of_prompts_that_are_computed_whole(model: ModelFacts) -> None:
    found = decide(auto_spec(seed=3, max_num_batched_tokens=2048), LONG_WORK, model=model)
    assert number(found, "max_model_len") == 2048
    assert "max_num_batched_tokens" in found.reasons["max_model_len"]


def test_a_given_step_bounds_the_sequences() -> None:
    found = decide(auto_spec(max_num_batched_tokens=100))
    assert number(found, "max_num_seqs") == 100
    assert "max_num_batched_tokens" in found.reasons["max_num_seqs"]


def test_a_seeded_job_cuts_the_context_of_an_unknown_model_to_the_documents() -> None:
    model = replace(UNKNOWN, max_context_tokens=131_072)
    found = decide(auto_spec(seed=3), SHORT_WORK, model=model)
    assert number(found, "max_model_len") == number(found, "max_num_batched_tokens") == 400 * 4 + 4096 + 32
    assert "400 characters" in found.reasons["max_model_len"]


def test_a_model_of_an_unknown_shape_gets_one_gibibyte_and_no_compiling() -> None:
    found = decide(auto_spec(), LONG_WORK, CPU, UNKNOWN)
    assert found.values["kv_cache_memory_bytes"] == GIB
    assert found.values["max_model_len"] == -1  # what one document can have of it
    assert found.values["enforce_eager"] is True


@pytest.mark.parametrize(
    ("workload", "machine", "model", "is_eager", "reason"),
    [
        (LONG_WORK, CPU, SMALL, False, "compiling takes about"),
        (SHORT_WORK, CPU, SMALL, True, "compiling takes about"),
        (LONG_WORK, replace(CPU, has_compiler=False), SMALL, True, "no C++ compiler"),
        (UNKNOWN_WORKLOAD, CPU, SMALL, True, "not known"),
        (LONG_WORK, replace(CPU, flops_per_s=None), SMALL, True, "not known"),
        (LONG_WORK, CPU, replace(SMALL, num_layers=None), True, "not known"),
        # A million documents, so fast that it is not worth it; two thousand, so slow that it is.
        (replace(LONG_WORK, tokens_per_s=1e6), CPU, SMALL, True, "of work"),
        (Workload(2_000, 240, 300, 400, tokens_per_s=20), CPU, SMALL, False, "of work"),
        # Without a known number of parameters an earlier run still tells.
        (replace(LONG_WORK, tokens_per_s=1e3), CPU, replace(SMALL, num_parameters=None), False, "of work"),
    ],
)
def test_code_is_compiled_only_for_long_work(
    workload: Workload, machine: Machine, model: ModelFacts, is_eager: bool, reason: str
) -> None:
    found = decide(auto_spec(), workload, machine, model)
    assert found.values["enforce_eager"] is is_eager
    assert reason in found.reasons["enforce_eager"]


def test_an_earlier_run_outweighs_the_quick_estimate() -> None:
    # 200 documents of 60 prompt tokens, and 16 of the 32 that an answer may have.
    assert expect_work_s(replace(SHORT_WORK, tokens_per_s=100), 32, CPU, SMALL) == pytest.approx(200 * 76 / 100)
    quick = expect_work_s(SHORT_WORK, 32, CPU, SMALL)
    assert quick == pytest.approx(0.25 * 200 * 76 * 2 * 135_000_000 / 5e11)


def test_a_gpu_is_left_to_vllm_but_for_throughput_and_context() -> None:
    found = decide(auto_spec(gpu_memory_utilization=0.8), LONG_WORK, GPU, LONG)
    assert found.values == {
        "gpu_memory_utilization": 0.8,
        "performance_mode": "throughput",
        "max_model_len": -1,
    }
    assert set(found.reasons) == {"performance_mode", "max_model_len"}


def test_a_gpu_with_a_vllm_that_knows_no_performance_mode() -> None:
    assert decide_settings(auto_spec(), LONG_WORK, GPU, LONG, ()).values == {"max_model_len": -1}


def test_limits_of_the_job_hold_on_a_gpu() -> None:
    spec = replace(auto_spec(performance_mode="balanced"), max_concurrency=32, max_context_tokens=1024)
    found = decide(spec, LONG_WORK, GPU, LONG)
    assert found.values == {"performance_mode": "balanced", "max_num_seqs": 32, "max_model_len": 1024}
    assert found.reasons == {}


@pytest.mark.parametrize("machine", [CPU, GPU])
def test_answers_that_fill_the_context_alone_are_an_error_of_the_job(machine: Machine) -> None:
    with pytest.raises(JobError, match=r"sampling.max_tokens: expected less than 8,192, .*found 8,192"):
        decide(auto_spec(max_tokens=8192), LONG_WORK, machine)
    decide(auto_spec(max_tokens=8191), LONG_WORK, machine)


def test_a_context_that_the_job_gives_is_judged_with_the_job() -> None:
    check_room(vllm_spec(max_context_tokens=16, max_tokens=16), 16, "")


def test_more_sequences_than_tokens_of_a_step_widen_the_step() -> None:
    found = decide(replace(auto_spec(), max_concurrency=10_000))
    assert number(found, "max_num_batched_tokens") == 10_000


def test_a_given_kv_cache_bounds_the_context() -> None:
    found = decide(auto_spec(kv_cache_memory_bytes=64 * MIB), LONG_WORK)
    assert number(found, "max_model_len") == (64 * MIB // (32 * 23_040) - 1) * 32


def test_a_setting_that_is_no_number_is_an_error_of_the_job() -> None:
    with pytest.raises(JobError, match=r"engine\.vllm\.block_size: expected a whole number"):
        decide(auto_spec(block_size="many"))


def test_a_reserve_makes_the_engine_that_much_smaller() -> None:
    spec = replace(vllm_spec(max_concurrency=64), reserve=0.25)
    whole, found = decide(replace(spec, reserve=0.0)), decide(spec)
    assert (number(whole, "max_num_seqs"), number(found, "max_num_seqs")) == (64, 48)
    assert found.reasons["max_num_seqs"] == "limits.max_concurrency 64, less limits.reserve 25%"
    assert "max_num_seqs" not in whole.reasons
    auto = replace(auto_spec(), reserve=0.25)
    assert number(decide(auto), "max_num_seqs") == 192
    assert decide(auto).reasons["max_num_seqs"].endswith("less limits.reserve 25%")


def test_a_reserve_leaves_memory_that_would_have_been_taken() -> None:
    machine = replace(CPU, free_memory_bytes=LONG.weight_bytes + 8 * GIB)
    whole, found = (decide(replace(auto_spec(), reserve=reserve), LONG_WORK, machine, LONG) for reserve in (0.0, 0.25))
    assert number(found, "kv_cache_memory_bytes") <= 0.75 * number(whole, "kv_cache_memory_bytes")
    assert number(found, "max_num_seqs") <= 0.75 * number(whole, "max_num_seqs")
    given = decide(replace(auto_spec(kv_cache_memory_bytes=GIB), reserve=0.25))
    assert number(given, "kv_cache_memory_bytes") == 0.75 * GIB
    assert given.reasons["kv_cache_memory_bytes"] == "1,073,741,824, less limits.reserve 25%"


def test_on_a_gpu_a_reserve_is_of_the_card() -> None:
    spec = replace(auto_spec(), reserve=0.25)
    found = decide(spec, machine=GPU)
    assert (found.values["gpu_memory_utilization"], found.values.get("max_num_seqs")) == (0.675, None)
    given = decide(replace(spec, arguments={"gpu_memory_utilization": 0.8}, max_concurrency=8), machine=GPU)
    assert (given.values["gpu_memory_utilization"], given.values["max_num_seqs"]) == (0.6, 6)
    whole = decide(replace(spec, reserve=0.0), machine=GPU)
    assert "gpu_memory_utilization" not in whole.values
    sized = decide(replace(spec, arguments={"kv_cache_memory_bytes": GIB}), machine=GPU)
    assert (sized.values["kv_cache_memory_bytes"], "gpu_memory_utilization" in sized.values) == (0.75 * GIB, False)
