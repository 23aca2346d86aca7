"""What vLLM's objects say, in our words: times, faults, and how much text its tokens can hold. Does not import vLLM."""

from pathlib import Path
from typing import Any

from bulkinfer.engines.tuning import ModelFacts

# How many times smaller a tokenizer's normalizer can make a text, in bytes. Others can make it as small as they like.
_MAX_SHRINKAGE = {"NoneType": 1, "Prepend": 1, "NFC": 4, "NFKC": 4}


# Any: vLLM's and the tokenizers' objects, whose types differ between their versions.
def find_max_prompt_bytes(tokenizer: Any, max_context_tokens: int) -> int | None:  # noqa: ANN401
    """The most bytes that this many tokens can stand for; None where no such bound holds."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    shrinkage = None if backend is None else _MAX_SHRINKAGE.get(type(backend.normalizer).__name__)
    if shrinkage is None:
        return None
    longest = max(len(token.encode(errors="replace")) for token in tokenizer.get_vocab())
    return longest * max_context_tokens * shrinkage


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


def describe_fault(error: Exception) -> str:
    """Without the text of the error: it may quote the prompt."""
    parameter = getattr(error, "parameter", None)
    about = f" about its parameter {parameter}" if isinstance(parameter, str) else ""
    return f"vLLM refused the request: {type(error).__name__}{about}"


def read_model_facts(config: Any, model: str) -> ModelFacts:  # noqa: ANN401
    """What vLLM's model configuration says; what a model of an unusual shape does not say stays None."""
    text = config.hf_text_config
    try:
        num_layers = int(text.num_hidden_layers)
        num_kv_heads, head_size = config.get_total_num_kv_heads(), config.get_head_size()
        kv_bytes_per_token = int(2 * num_layers * num_kv_heads * head_size * config.dtype.itemsize)
    except AttributeError:
        return ModelFacts(config.max_model_len, weight_bytes=_read_weight_bytes(model))
    try:
        hidden, inner = int(text.hidden_size), int(text.intermediate_size)
        attention = hidden * head_size * (2 * int(text.num_attention_heads) + 2 * num_kv_heads)
        num_parameters = num_layers * (attention + 3 * hidden * inner) + hidden * int(text.vocab_size)
    except AttributeError:
        num_parameters = None
    weight_bytes = _read_weight_bytes(model) or (num_parameters or 0) * config.dtype.itemsize
    return ModelFacts(config.max_model_len, kv_bytes_per_token, num_layers, num_parameters, weight_bytes)


def _read_weight_bytes(model: str) -> int:
    """Of a model folder; 0 for a hub id. Some folders hold the weights in two formats: one is loaded."""
    sizes = [
        sum(path.stat().st_size for path in Path(model).glob(pattern) if path.is_file())
        for pattern in ("*.safetensors", "*.bin")
    ]
    return sizes[0] or sizes[1]
