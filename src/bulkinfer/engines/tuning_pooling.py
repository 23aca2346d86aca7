"""Which settings a pooling engine gets where the job gives none, and why: one that embeds or scores. Pure, as `tuning`.

docs/embeddings.md has the measurements behind the numbers here.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.reserve import Reserve
from bulkinfer.engines.tuning import MAX_NUM_SEQS, Machine, ModelFacts, Settings, decide_settings, note_threads
from bulkinfer.engines.vllm_arguments import MIB
from bulkinfer.errors import JobError
from bulkinfer.records import Workload

MAX_STEP_TOKENS = 4096
"""Of a step on a CPU, where the longest prompt is shorter."""


@dataclass(frozen=True, slots=True)
class PoolingFacts:
    """How a pooling model computes prompts."""

    keeps_cache: bool
    """It reads from left to right, and has a KV cache as models that write have; others read both ways without."""
    computes_parts: bool
    """A long prompt may be computed in several steps."""
    is_half: bool = False
    """vLLM would compute in float16, as it does by itself with pooling models whose weights have 32 bits."""


def decide_pooling_settings(
    spec: EngineSpec,
    workload: Workload,
    machine: Machine,
    model: ModelFacts,
    known: Collection[str],
    pooling: PoolingFacts,
) -> Settings:
    """All that is to be set, as `decide_settings`. Raises JobError for a context that the model cannot take."""
    most = model.max_context_tokens
    if spec.max_context_tokens is not None and spec.max_context_tokens > most:
        raise JobError(
            f"limits.max_context_tokens: expected at most {most:,}, which is what the model can take, found "
            f"{spec.max_context_tokens:,}; lower it, or leave it out",
            "limits.max_context_tokens",
        )
    if pooling.keeps_cache:
        settings = _decide_with_cache(spec, workload, machine, model, known, pooling)
    else:
        settings = _decide_without_cache(spec, machine, model, known)
    if machine.is_cpu and pooling.is_half:
        reason = "a CPU takes four times as long in float16, vLLM's own choice; bfloat16 is faster, and less exact"
        settings.choose("dtype", "float32", reason)
    settings.choose("runner", "pooling", f"task.kind {spec.task}")
    return settings


def _decide_with_cache(
    spec: EngineSpec,
    workload: Workload,
    machine: Machine,
    model: ModelFacts,
    known: Collection[str],
    pooling: PoolingFacts,
) -> Settings:
    """As for a model that writes answers of no tokens; prompts whole where they must be."""
    if pooling.computes_parts:
        return decide_settings(spec, workload, machine, model, known)
    whole = replace(spec, arguments={"enable_chunked_prefill": False, **spec.arguments})
    settings = decide_settings(whole, workload, machine, model, known)
    if "enable_chunked_prefill" not in spec.arguments:
        settings.reasons["enable_chunked_prefill"] = "this model computes a prompt whole"
    return settings


def _decide_without_cache(spec: EngineSpec, machine: Machine, model: ModelFacts, known: Collection[str]) -> Settings:
    settings = Settings(dict(spec.arguments))
    context = model.max_context_tokens if spec.max_context_tokens is None else spec.max_context_tokens
    if spec.max_context_tokens is None:
        settings.choose("max_model_len", context, "what the model can take")
    else:
        settings.values["max_model_len"] = context
    if not machine.is_cpu:
        if spec.max_concurrency is not None:
            settings.values["max_num_seqs"] = Reserve(spec.reserve).max_sequences(spec.max_concurrency)
        if "performance_mode" in known:
            reason = "a queue wants documents per hour: twice vLLM's own sequences and tokens for this card"
            settings.choose("performance_mode", "throughput", reason)
        return settings
    note_threads(settings, machine)
    num_seqs = Reserve(spec.reserve).max_sequences(spec.max_concurrency or MAX_NUM_SEQS)
    if spec.max_concurrency is not None:
        settings.values["max_num_seqs"] = num_seqs
    else:
        settings.choose("max_num_seqs", num_seqs, "a step is full of tokens before it has so many prompts")
    step = max(MAX_STEP_TOKENS, context)
    settings.choose(
        "max_num_batched_tokens", max(step, num_seqs), "the longest prompt must fit into one step: it is computed whole"
    )
    settings.choose("kv_cache_memory_bytes", MIB, "nothing: this model keeps no KV cache")
    settings.choose("enforce_eager", value=True, reason="what compiling would save here was not measured")
    return settings
