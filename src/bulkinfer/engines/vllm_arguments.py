"""`engine.vllm` of the job file, and the memory that vLLM gets. Knows vLLM's names, but does not import it."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.simulated_arguments import suggest_name
from bulkinfer.errors import JobError
from bulkinfer.records import JsonValue

MIB = 1 << 20
MIN_KV_CACHE_BYTES = 256 * MIB
_UNKNOWN_KV_CACHE_BYTES = 1024 * MIB

_OWNED = {
    "model": "model.path",
    "revision": "model.revision",
    "trust_remote_code": "model.trust_remote_code",
    "max_model_len": "limits.max_context_tokens",
    "max_num_seqs": "limits.max_concurrency",
    "data_parallel_size": "engine.replicas",
    "enable_lora": "model.adapters",
}
_FIXED = frozenset({"disable_log_stats"})
RAW_LOGPROBS = "raw_logprobs"
FORM_ARGUMENT = "structured_outputs_config"
CHOSEN_FORM: tuple[dict[str, JsonValue], str] = (
    {"backend": "guidance", "disable_any_whitespace": True},
    "task: this backend holds all of a schema that a job may have, and no white space between its parts",
)
"""For JSON and patterns, and why: vLLM's default leaves some parts of a schema out without a word."""


def check_vllm_arguments(arguments: Mapping[str, JsonValue], known: Collection[str]) -> None:
    """Refuse arguments that vLLM does not know, or that another key of the job file owns. Raises JobError."""
    for name in arguments:
        if name in _OWNED:
            raise JobError(
                f"engine.vllm.{name}: this is set by {_OWNED[name]}; remove it here and set that", f"engine.vllm.{name}"
            )
        if name in _FIXED:
            raise JobError(f"engine.vllm.{name}: this cannot be changed; remove it", f"engine.vllm.{name}")
        if name not in known:
            raise JobError(
                f"engine.vllm.{name}: this vLLM has no such engine argument{suggest_name(name, known)}",
                f"engine.vllm.{name}",
            )


def check_sampling(sampling: Mapping[str, JsonValue], known: Collection[str]) -> None:
    """Refuse sampling parameters that vLLM does not know. Raises JobError."""
    for name in sampling:
        if name not in known:
            raise JobError(
                f"sampling.{name}: this vLLM has no such sampling parameter{suggest_name(name, known)}",
                f"sampling.{name}",
            )


def complete_arguments(values: Mapping[str, Any], form_config: Callable[..., Any]) -> dict[str, Any]:
    """With vLLM's own object where a mapping stands for one: not all its versions make it themselves."""
    form = values.get(FORM_ARGUMENT)
    return {**values, FORM_ARGUMENT: form_config(**form)} if isinstance(form, Mapping) else dict(values)


def check_logprobs_mode(model_config: Any) -> None:  # noqa: ANN401 - vLLM's object
    """Refuse a mode in which numbers are not logarithms of the model's own probabilities. Raises JobError."""
    mode = str(getattr(model_config, "logprobs_mode", RAW_LOGPROBS))
    if mode != RAW_LOGPROBS:
        raise JobError(
            f"engine.vllm.logprobs_mode: expected {RAW_LOGPROBS}, for task.kind classify, found {mode!r}",
            "engine.vllm.logprobs_mode",
        )


def decide_kv_cache_bytes(spec: EngineSpec, bytes_per_token: int | None, block_size: int, free_bytes: int) -> int:
    """The KV cache for a CPU: all sequences at their longest, but at most half of what is free, and at least 256 MiB.

    It must be given: vLLM's own default there is more memory than most machines have free. `bytes_per_token` None (a
    model of an unknown shape) counts as 1 GiB in all.
    """
    needed = _UNKNOWN_KV_CACHE_BYTES
    assert spec.max_concurrency is not None
    assert spec.max_context_tokens is not None
    if bytes_per_token is not None:
        blocks_per_sequence = -(-spec.max_context_tokens // block_size)
        # One more block: vLLM keeps one for itself.
        needed = (spec.max_concurrency * blocks_per_sequence + 1) * block_size * bytes_per_token
    return max(MIN_KV_CACHE_BYTES, min(needed, free_bytes // 2))
