"""What vLLM's objects say, in our words: times, faults, and how much text its tokens can hold. Does not import vLLM."""

from typing import Any

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
