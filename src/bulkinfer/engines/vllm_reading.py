"""What vLLM's objects say, in our words: times, faults, and how much text its tokens can hold. Does not import vLLM."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from bulkinfer.engines.answers import Answer, TokenLogprob, join_answers
from bulkinfer.engines.base import EngineRequest, EngineSpec, describe_limit
from bulkinfer.engines.reasoning import Reasoning
from bulkinfer.engines.scoring import round_all
from bulkinfer.engines.tuning import ModelFacts, Settings
from bulkinfer.engines.tuning_pooling import PoolingFacts
from bulkinfer.engines.white_space import is_spinning
from bulkinfer.records import Completion, EngineReady, FailureCode, FinishReason, JsonValue, Message, Rejection

# How many times smaller a tokenizer's normalizer can make a text, in bytes. Others can make it as small as they like.
_MAX_SHRINKAGE = {"NoneType": 1, "Prepend": 1, "NFC": 4, "NFKC": 4}
LOOK_FOR_SPINNING_EVERY = 8
"""Steps: a look at all answers costs more than a step is worth."""
_EXPERT_NAMES = ("num_local_experts", "num_experts", "n_routed_experts")


# Any: vLLM's and the tokenizers' objects, whose types differ between their versions.
def find_max_prompt_bytes(tokenizer: Any, max_context_tokens: int) -> int | None:  # noqa: ANN401
    """The most bytes that this many tokens can stand for; None where no such bound holds."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    shrinkage = None if backend is None else _MAX_SHRINKAGE.get(type(backend.normalizer).__name__)
    if shrinkage is None:
        return None
    longest = max(len(token.encode(errors="replace")) for token in tokenizer.get_vocab())
    return longest * max_context_tokens * shrinkage


class GpuMemory:
    """Memory in use on an engine's GPUs, from the driver.

    Not from torch: vLLM may have its own process for the model, and asking torch here would take memory of the GPU.
    """

    def __init__(self, nvml: Any, platform: Any, num_gpus: int) -> None:  # noqa: ANN401
        self._nvml = nvml
        self._gpus: list[Any] = []
        # There may be no driver's library, or a part of a GPU, that has no number.
        with suppress(nvml.NVMLError, ValueError, LookupError):
            if num_gpus > 0:
                nvml.nvmlInit()
            for number in range(num_gpus):
                physical = platform.device_id_to_physical_device_id(number)
                self._gpus.append(nvml.nvmlDeviceGetHandleByIndex(physical))

    def read_bytes(self) -> int:
        """Of all of them together, whoever uses it; 0 where there is none, or the driver does not say."""
        num_bytes = 0
        for gpu in self._gpus:
            with suppress(self._nvml.NVMLError):
                num_bytes += int(self._nvml.nvmlDeviceGetMemoryInfo(gpu).used)
        return num_bytes


def reject_by_size(spec: EngineSpec, request: EngineRequest, max_bytes: int | None) -> Rejection | None:
    """Refuse a prompt that cannot fit, whatever its tokens: tokenizing 20 MB would stall the sequences that run."""
    if max_bytes is None or sum(len(message.content) for message in request.messages) * 4 <= max_bytes:
        return None
    # Chat templates may trim a message.
    num_bytes = sum(len(message.content.strip().encode(errors="replace")) for message in request.messages)
    if num_bytes <= max_bytes:
        return None
    text = f"prompt of {num_bytes} bytes exceeds {describe_limit(spec)}"
    return Rejection(request.document_hash, FailureCode.PROMPT_TOO_LONG, f"{text}, whatever its tokens are")


def read_outcome(
    output: Any,  # noqa: ANN401
    since_added_s: float,
    reasoning: Reasoning | None = None,
) -> Completion | Rejection:
    """What became of one request, from vLLM's RequestOutput."""
    document_hash = bytes.fromhex(output.request_id)
    num_prompt_tokens = len(output.prompt_token_ids)
    for answer in output.outputs:
        if answer.finish_reason in {None, FinishReason.ERROR, FinishReason.ABORT}:
            message = f"vLLM ended the request with finish reason {answer.finish_reason}"
            return Rejection(document_hash, FailureCode.ENGINE_ERROR, message, num_prompt_tokens)
    queue_s, first_token_s, total_s = read_durations(output.metrics, since_added_s)
    answers = [_read_answer(answer) for answer in output.outputs]
    if reasoning is not None:
        answers = [reasoning.split(answer) for answer in answers]
    joined = join_answers(answers)
    return Completion(
        document_hash=document_hash,
        text=joined.text,
        finish_reason=joined.finish_reason,
        prompt_tokens=num_prompt_tokens,
        cached_tokens=output.num_cached_tokens or 0,
        output_tokens=joined.output_tokens,
        queue_s=queue_s,
        first_token_s=first_token_s,
        total_s=total_s,
        details=joined.details,
        fault=joined.fault,
    )


def _read_answer(answer: Any) -> Answer:  # noqa: ANN401
    logprobs = getattr(answer, "logprobs", None)
    return Answer(
        text=answer.text,
        finish_reason=answer.finish_reason,
        output_tokens=len(answer.token_ids),
        logprobs=None if logprobs is None else list(map(_read_logprob, answer.token_ids, logprobs)),
    )


def _read_logprob(token_id: int, by_token: Any) -> TokenLogprob:  # noqa: ANN401
    """Of one place: vLLM gives the token that was drawn and the likeliest ones, in one mapping."""
    drawn = by_token[token_id]
    others = sorted((one for other, one in by_token.items() if other != token_id), key=lambda one: -one.logprob)
    alternatives = [(one.decoded_token or "", one.logprob) for one in others]
    return TokenLogprob(drawn.decoded_token or "", drawn.logprob, alternatives)


def end_spinning(
    engine: Any,  # noqa: ANN401
    added_at_s: dict[str, float],
    held: set[str] | None,
) -> list[Completion | Rejection]:
    """End requests whose answers go on with nothing but white space; they leave `added_at_s`.

    `held`: those that are held to a form of their own, of which what is not in `added_at_s` leaves; None: all are.
    """
    if held is not None:
        held.intersection_update(added_at_s)  # `&=` with the keys of a mapping would make another set
    watched = added_at_s if held is None else held
    now_s = time.monotonic()
    states = getattr(engine.output_processor, "request_states", {}).values()
    # By request: one for several answers has as many states, and with one of them it is a failure.
    spinning = {
        state.external_req_id: state
        for state in states
        if is_spinning(getattr(state.detokenizer, "output_text", "")) and state.external_req_id in watched
    }
    ended = [_read_spinning(state, now_s - added_at_s.pop(request_id)) for request_id, state in spinning.items()]
    engine.abort_request(list(spinning))
    return list(ended)


def _read_spinning(state: Any, since_added_s: float) -> Completion:  # noqa: ANN401
    """The answer of such a request, as far as it came."""
    queue_s, first_token_s, total_s = read_durations(state.stats, since_added_s)
    return Completion(
        document_hash=bytes.fromhex(state.external_req_id),
        text=state.detokenizer.output_text,
        finish_reason=FinishReason.WHITE_SPACE,
        prompt_tokens=state.prompt_len,
        cached_tokens=state.num_cached_tokens or 0,
        output_tokens=len(state.detokenizer.output_token_ids),
        queue_s=queue_s,
        first_token_s=first_token_s,
        total_s=total_s,
    )


def read_durations(metrics: Any, since_added_s: float) -> tuple[float, float, float]:  # noqa: ANN401
    """Seconds from being queued to being scheduled, to the first and to the last token."""
    if metrics is None or not metrics.queued_ts or not metrics.scheduled_ts:
        return 0.0, since_added_s, since_added_s
    # vLLM's time stamps are of another clock than ours: only their differences mean something.
    return (
        metrics.scheduled_ts - metrics.queued_ts,
        metrics.first_token_ts - metrics.queued_ts,
        metrics.last_token_ts - metrics.queued_ts,
    )


def read_model_facts(config: Any, model: str, revision: str | None = None) -> ModelFacts:  # noqa: ANN401
    """What vLLM's model configuration says; what a model of an unusual shape does not say stays None."""
    text = config.hf_text_config
    folder = Path(model) if Path(model).is_dir() else find_cached_folder(model, revision)
    weight_bytes = 0 if folder is None else _read_weight_bytes(folder)
    if getattr(text, "kv_lora_rank", None) is not None:
        # Its cache holds something smaller than keys and values (multi-head latent attention).
        return ModelFacts(config.max_model_len, weight_bytes=weight_bytes)
    try:
        num_layers = int(text.num_hidden_layers)
        num_kv_heads, head_size = config.get_total_num_kv_heads(), config.get_head_size()
        kv_bytes_per_token = int(2 * num_layers * num_kv_heads * head_size * config.dtype.itemsize)
    except AttributeError:
        return ModelFacts(config.max_model_len, weight_bytes=weight_bytes)
    num_parameters = None
    try:
        hidden, (inner, inner_used) = int(text.hidden_size), _read_inner_sizes(text)
        attention = hidden * head_size * (2 * int(text.num_attention_heads) + 2 * num_kv_heads)
        beside = num_layers * attention + hidden * int(text.vocab_size)
        num_parameters = beside + num_layers * 3 * hidden * inner_used
        weight_bytes = weight_bytes or (beside + num_layers * 3 * hidden * inner) * config.dtype.itemsize
    except AttributeError:
        pass
    return ModelFacts(config.max_model_len, kv_bytes_per_token, num_layers, num_parameters, weight_bytes)


def read_pooling_facts(config: Any) -> PoolingFacts:  # noqa: ANN401
    """What vLLM's configuration of a pooling model says of how it computes prompts."""
    return PoolingFacts(
        keeps_cache=config.attn_type != "encoder_only",
        computes_parts=bool(config.is_chunked_prefill_supported),
        is_half=str(config.dtype) == "torch.float16",
    )


def _read_inner_sizes(text: Any) -> tuple[int, int]:  # noqa: ANN401
    """Width of a layer's inner part: in all its experts, and in those that one token passes through."""
    numbers = (getattr(text, name, None) for name in _EXPERT_NAMES)
    num_experts = next((number for number in numbers if isinstance(number, int) and number > 1), None)
    if num_experts is None:
        return int(text.intermediate_size), int(text.intermediate_size)
    inner = int(getattr(text, "moe_intermediate_size", None) or text.intermediate_size)
    num_shared = int(getattr(text, "n_shared_experts", None) or 0)
    return (num_experts + num_shared) * inner, (int(text.num_experts_per_tok) + num_shared) * inner


def find_cached_folder(model: str, revision: str | None) -> Path | None:
    """Where the files of a hub id lie on this machine; None if they do not. Asks nobody."""
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - a second; vLLM has loaded it by then
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415

    with suppress(HFValidationError):
        found = try_to_load_from_cache(model, "config.json", revision=revision)
        if isinstance(found, str):
            return Path(found).parent
    return None


def _read_weight_bytes(folder: Path) -> int:
    """Of a model folder; 0 without any. Some folders hold the weights in two formats or twice: one is loaded."""
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        with suppress(OSError, ValueError, TypeError, KeyError):
            return int(orjson.loads((folder / index).read_bytes())["metadata"]["total_size"])
    own = [path for path in folder.glob("*.safetensors") if not path.name.startswith("consolidated")]
    sizes = [
        sum(path.stat().st_size for path in paths if path.is_file())
        for paths in (own, folder.glob("*.safetensors"), folder.glob("*.bin"))
    ]
    return next(filter(None, sizes), 0)


def describe_engine_ready(
    config: Any,  # noqa: ANN401
    chosen: Settings,
    version: str,
    device: str,
    scorer: Any,  # noqa: ANN401
) -> EngineReady:
    """The settings that vLLM ended up with, by its own names, from its configuration."""
    cache = config.cache_config
    settings: dict[str, JsonValue] = {name: chosen.values.get(name) for name in chosen.reasons}
    settings |= chosen.environment
    settings |= {
        "kind": "vllm",
        "vllm_version": version,
        "device": device,
        "dtype": str(config.model_config.dtype),
        "max_model_len": config.model_config.max_model_len,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "block_size": cache.block_size,
        "kv_cache_memory_bytes": cache.kv_cache_memory_bytes,
        "enable_prefix_caching": bool(cache.enable_prefix_caching),
        "enforce_eager": bool(config.model_config.enforce_eager),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "reasons": chosen.reasons,
    }
    if scorer is not None and scorer.prior is not None:
        settings["label_prior"] = round_all(scorer.prior)
    num_tokens = (cache.num_gpu_blocks or 0) * cache.block_size
    max_tokens = config.model_config.max_model_len
    return EngineReady(0.0, num_tokens, settings, config.scheduler_config.max_num_seqs, max_context_tokens=max_tokens)


def write_message(message: Message) -> dict[str, Any]:
    """A message as vLLM's renderer takes it: its images before its text."""
    if not message.images:
        return {"role": message.role, "content": message.content}
    images = [{"type": "image_url", "image_url": {"url": url}} for url in message.images]
    return {"role": message.role, "content": [*images, {"type": "text", "text": message.content}]}
