"""What vLLM tells of its steps, and what its scheduler and its KV cache say of themselves. Does not import vLLM."""

from dataclasses import dataclass
from typing import Any

from bulkinfer.records import EngineStats


@dataclass(frozen=True, slots=True)
class LiveCounts:
    """Of vLLM's scheduler and of its KV cache's blocks, now."""

    num_active: int
    num_waiting: int
    num_kv_blocks: int
    num_free_kv_blocks: int

    @property
    def kv_cache_usage(self) -> float:
        """Share of the blocks in use."""
        return 1 - self.num_free_kv_blocks / self.num_kv_blocks if self.num_kv_blocks else 0.0


class StepCounts:
    """Keeps what vLLM tells after each step, and what went in and out."""

    def __init__(self) -> None:
        self.num_active = 0
        self.num_waiting = 0
        self.kv_cache_usage = 0.0
        self.num_preemptions = 0
        self.num_steps = 0
        self.num_output_tokens = 0
        self.num_prompt_tokens = 0
        self.num_full_steps = 0
        self.num_fed_steps = 0
        self.num_aborted = 0
        self.busy_s = 0.0
        self.num_computed_prompt_tokens = 0
        self.num_context_tokens = 0
        self.waits_s: dict[str, float] | None = None
        """By request that has finished: seconds until it was first run. None: nobody asks, and none are kept."""
        self._peak_active = 0
        self._peak_kv_cache_usage = 0.0

    # Any: vLLM's objects, whose types differ between its versions.
    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:  # noqa: ANN401
        """Take the numbers of one step; either argument may be None."""
        self.num_steps += 1
        if scheduler_stats is not None:
            self.num_active = scheduler_stats.num_running_reqs
            self.num_waiting = scheduler_stats.num_waiting_reqs
            self.kv_cache_usage = scheduler_stats.kv_cache_usage
            self._peak_kv_cache_usage = max(self._peak_kv_cache_usage, self.kv_cache_usage)
        if iteration_stats is not None:
            self.num_preemptions += iteration_stats.num_preempted_reqs
            self.num_output_tokens += iteration_stats.num_generation_tokens
            self.num_prompt_tokens += iteration_stats.num_prompt_tokens
            self.num_computed_prompt_tokens += _count_computed(iteration_stats)
            if self.waits_s is not None:
                self.waits_s |= _read_waits(iteration_stats)

    def log_engine_initialized(self) -> None:
        """Nothing to say."""

    def note_step(
        self,
        num_steps_before: int,
        num_finished: int,
        *,
        took_s: float,
        num_context_tokens: int,
        has_all_slots_wanted: bool,
    ) -> None:
        """One step of the engine is over. What vLLM tells after it lacks the sequences that finished in it."""
        self.busy_s += took_s
        self.num_context_tokens += num_context_tokens
        self._peak_active = max(self._peak_active, self.num_active + num_finished)
        if has_all_slots_wanted or self.num_waiting > 0:
            self.num_full_steps += self.num_steps - num_steps_before
            self.num_fed_steps = self.num_steps

    def read(self, live: LiveCounts | None, *, is_idle: bool) -> EngineStats:
        """A reading, with the peaks since the last one. `live` None: vLLM's scheduler runs in another process, which
        says nothing while it is idle."""
        told_usage, told_active, told_waiting = self.kv_cache_usage, self.num_active, self.num_waiting
        if is_idle:
            told_usage, told_active, told_waiting = 0.0, 0, 0
        usage = told_usage if live is None else live.kv_cache_usage
        num_active = told_active if live is None else live.num_active
        peak_active, self._peak_active = max(self._peak_active, num_active), num_active
        peak_usage, self._peak_kv_cache_usage = max(self._peak_kv_cache_usage, usage), usage
        return EngineStats(
            num_active=num_active,
            num_waiting=told_waiting if live is None else live.num_waiting,
            kv_cache_usage=usage,
            num_preemptions=self.num_preemptions,
            num_steps=self.num_steps,
            num_output_tokens=self.num_output_tokens,
            memory_bytes=0,
            num_prompt_tokens=self.num_prompt_tokens,
            num_full_steps=self.num_full_steps,
            num_fed_steps=self.num_fed_steps,
            num_aborted=self.num_aborted,
            num_kv_blocks=0 if live is None else live.num_kv_blocks,
            num_free_kv_blocks=0 if live is None else live.num_free_kv_blocks,
            peak_active=peak_active,
            peak_kv_cache_usage=peak_usage,
            busy_s=self.busy_s,
            num_computed_prompt_tokens=self.num_computed_prompt_tokens,
            num_context_tokens=self.num_context_tokens,
        )


def count_context_tokens(engine: Any) -> int:  # noqa: ANN401
    """Tokens in the KV cache of the sequences that an `LLMEngine` runs; 0 where its scheduler runs in a process of its
    own. A prefix that they share counts for each: each looks back at it."""
    core = getattr(engine.engine_core, "engine_core", None)
    return 0 if core is None else sum(request.num_computed_tokens for request in core.scheduler.running)


def _count_computed(iteration_stats: Any) -> int:  # noqa: ANN401
    """Older versions do not tell them from those of the prefix cache."""
    prompts = getattr(iteration_stats, "prompt_token_stats", None)
    return int(iteration_stats.num_prompt_tokens if prompts is None else prompts.computed)


def _read_waits(iteration_stats: Any) -> dict[str, float]:  # noqa: ANN401
    """Older versions do not tell which request it was."""
    finished = iteration_stats.finished_requests
    return {one.request_id: one.queued_time for one in finished if getattr(one, "request_id", None) is not None}


def read_live_counts(engine: Any) -> LiveCounts | None:  # noqa: ANN401
    """Ask the scheduler of an `LLMEngine`; None where it runs in a process of its own."""
    core = getattr(engine.engine_core, "engine_core", None)
    if core is None:
        return None
    num_active, num_waiting = core.scheduler.get_request_counts()
    pool = core.scheduler.kv_cache_manager.block_pool
    # One block is vLLM's own: it stands for none.
    return LiveCounts(num_active, num_waiting, pool.num_gpu_blocks - 1, pool.get_num_free_blocks())
