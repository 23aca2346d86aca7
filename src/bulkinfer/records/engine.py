"""An engine: what it is started for, how it stands, what it says."""

from collections.abc import Mapping
from dataclasses import dataclass

from bulkinfer.records.documents import JsonValue
from bulkinfer.records.requests import Aborted, Completion, Rejection


@dataclass(frozen=True, slots=True)
class Workload:
    """What is known of the work when an engine is started; nothing, by default. Engines choose settings by it."""

    num_documents: int | None = None
    """Documents still to do in the whole input, estimated from the share of it that has been read."""
    mean_chars: float = 0.0
    """Of the rendered prompts found so far; likewise the next three."""
    p95_bytes: int = 0
    """In UTF-8: it tells the tokens of scripts with several bytes a character better than characters do."""
    max_chars: int = 0
    is_read_to_end: bool = False
    """Whether these are all prompts that there will be."""
    tokens_per_s: float | None = None
    """Prompt and output tokens per second of the last long run of this model on this machine, of all its engines."""
    longest_bytes: tuple[int, ...] = ()
    """Bytes of the longest prompts, the longest first: all, or NUM_LONGEST of them."""


NUM_LONGEST = 256
"""Prompts whose lengths a `Workload` tells one by one: they run first, and together."""
UNKNOWN_WORKLOAD = Workload()


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The model is loaded. `settings` are the engine's own words for what was chosen.

    What was chosen and not given by the job has a line in `settings["reasons"]`, by name.
    """

    start_s: float
    num_kv_cache_tokens: int
    settings: Mapping[str, JsonValue]
    max_concurrency: int | None = None
    """Sequences that the engine runs at once; None: as many as the job says."""
    vector_size: int | None = None
    """Numbers in each vector; None where it makes none."""
    max_context_tokens: int | None = None
    """Of prompt and answer together; None where the engine does not tell."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A reading of the engine, sent about twice a second while it works. Counters count from the engine's start."""

    num_active: int
    """Sequences that the scheduler is running."""
    num_waiting: int
    """Requests inside the engine that wait for a free slot."""
    kv_cache_usage: float
    """Share of the KV cache blocks in use, 0 to 1."""
    num_preemptions: int
    num_steps: int
    num_output_tokens: int
    memory_bytes: int
    """Peak resident memory of the engine's process and its children, now."""
    num_prompt_tokens: int = 0
    """Of the prompts whose first token is out; those from the prefix cache count too."""
    num_full_steps: int = 0
    """Steps with as many sequences as there are slots, or with requests that had to wait."""
    num_fed_steps: int = 0
    """Steps up to the last full one or to the last request that came; in the tail after them no step can be full."""
    idle_s: float = 0.0
    """How long the engine had nothing to run before it got more: nothing had come, or it was not rendered yet."""
    num_aborted: int = 0
    """Requests that were dropped because somebody asked for it."""
    num_kv_blocks: int = 0
    """Blocks of the KV cache that requests can have; 0: the engine does not tell."""
    num_free_kv_blocks: int = 0
    """Those of them that no request has, now. What is only kept for the prefix cache is free."""
    peak_active: int = 0
    """The most sequences in any step since the reading before this one; likewise the next."""
    peak_kv_cache_usage: float = 0.0
    gpu_memory_bytes: int = 0
    """In use on the GPUs that the engine has, now; 0 without one."""
    busy_s: float = 0.0
    """How long its steps took. With the next two, and `num_output_tokens`, what a step costs can be fitted."""
    num_computed_prompt_tokens: int = 0
    """Prompt tokens that did not come from the prefix cache; a sequence that was put back counts again."""
    num_context_tokens: int = 0
    """Tokens in the KV cache that sequences looked back at, summed over the steps; 0: not told."""


EngineEvent = EngineReady | EngineStats | Completion | Rejection | Aborted
