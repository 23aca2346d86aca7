"""What is counted of vLLM's steps, and read from its scheduler."""

from types import SimpleNamespace

from bulkinfer.engines.vllm_counts import LiveCounts, StepCounts, count_context_tokens, read_live_counts


def record(counts: StepCounts, *, running: int, waiting: int = 0, usage: float = 0.0, finished: int = 0) -> None:
    before = counts.num_steps
    scheduler = SimpleNamespace(num_running_reqs=running, num_waiting_reqs=waiting, kv_cache_usage=usage)
    prompts = SimpleNamespace(computed=1)
    iteration = SimpleNamespace(
        num_preempted_reqs=1, num_generation_tokens=2, num_prompt_tokens=3, prompt_token_stats=prompts
    )
    counts.record(scheduler, iteration)
    counts.note_step(before, finished, took_s=0.25, num_context_tokens=10, has_all_slots_wanted=False)


def test_sequences_that_finish_in_a_step_were_in_it() -> None:
    counts = StepCounts()
    record(counts, running=2, usage=0.5)
    record(counts, running=0, finished=3)
    stats = counts.read(None, is_idle=True)
    assert (stats.num_active, stats.peak_active, stats.peak_kv_cache_usage) == (0, 3, 0.5)
    assert (stats.num_steps, stats.num_preemptions, stats.num_output_tokens, stats.num_prompt_tokens) == (2, 2, 4, 6)
    assert (stats.busy_s, stats.num_computed_prompt_tokens, stats.num_context_tokens) == (0.5, 2, 20)
    again = counts.read(None, is_idle=True)
    assert (again.peak_active, again.peak_kv_cache_usage) == (0, 0.0)


def test_steps_with_requests_that_wait_are_full() -> None:
    counts = StepCounts()
    record(counts, running=2, waiting=1)
    record(counts, running=2)
    stats = counts.read(None, is_idle=False)
    assert (stats.num_full_steps, stats.num_fed_steps, stats.num_active, stats.num_waiting) == (1, 1, 2, 0)


def test_what_the_scheduler_says_now_goes_before_what_it_said_after_the_last_step() -> None:
    counts = StepCounts()
    record(counts, running=4, waiting=5, usage=1.0)
    stats = counts.read(LiveCounts(1, 0, num_kv_blocks=100, num_free_kv_blocks=75), is_idle=False)
    assert (stats.num_active, stats.num_waiting, stats.kv_cache_usage) == (1, 0, 0.25)
    assert (stats.num_kv_blocks, stats.num_free_kv_blocks) == (100, 75)


def test_vllms_own_block_is_not_counted_and_another_process_tells_nothing() -> None:
    pool = SimpleNamespace(num_gpu_blocks=101, get_num_free_blocks=lambda: 90)
    running = [SimpleNamespace(num_computed_tokens=number) for number in (7, 8)]
    scheduler = SimpleNamespace(
        get_request_counts=lambda: (2, 3), kv_cache_manager=SimpleNamespace(block_pool=pool), running=running
    )
    core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=scheduler))
    assert read_live_counts(SimpleNamespace(engine_core=core)) == LiveCounts(2, 3, 100, 90)
    assert count_context_tokens(SimpleNamespace(engine_core=core)) == 15
    elsewhere = SimpleNamespace(engine_core=SimpleNamespace())
    assert (read_live_counts(elsewhere), count_context_tokens(elsewhere)) == (None, 0)
    assert LiveCounts(0, 0, 0, 0).kv_cache_usage == 0.0, "a model without a cache"
