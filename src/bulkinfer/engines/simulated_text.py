"""What the simulated engine answers: words chosen by a hash, which carry no meaning."""

import hashlib
import math
from dataclasses import dataclass, field

from bulkinfer.engines.answers import Answer, Joined, TokenLogprob, join_answers
from bulkinfer.engines.simulated_arguments import FaultKind
from bulkinfer.engines.simulated_schedule import Sequence
from bulkinfer.records import FinishReason

_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z", "br")
_RIMES = ("a", "e", "i", "o", "u", "an", "el", "in", "or", "um", "ando", "ento", "ila", "ora", "uma", "esto")
_WORDS = tuple(onset + rime + " " for onset in _ONSETS for rime in _RIMES)


@dataclass(slots=True)
class Asked:
    """A request in the engine, and what of it is done."""

    num_answers: int
    num_logprobs: int | None
    """None: no log probabilities are wanted."""
    has_reasoning: bool = False
    """The first half of each answer is thought aloud."""
    finished: list[Sequence] = field(default_factory=list)


def vary_hash(document_hash: bytes, answer: int) -> bytes:
    """What the how-manieth answer depends on, from 0; the first on the document's hash itself."""
    return hashlib.sha256(document_hash + bytes([answer])).digest()[:16] if answer else document_hash


def write_answers(asked: Asked) -> Joined:
    """All answers of a request that is done."""
    return join_answers([_write(one, asked) for one in sorted(asked.finished, key=lambda one: one.answer)])


def write_text(document_hash: bytes, num_words: int) -> str:
    """`num_words` words chosen by the hash, one for each output token; the 16 words of a hash come again and again."""
    num_rounds, num_more = divmod(num_words, len(document_hash))
    words = "".join([_WORDS[byte] for byte in document_hash]) if num_rounds else ""
    return (words * num_rounds + "".join([_WORDS[byte] for byte in document_hash[:num_more]])).rstrip()


def _write(sequence: Sequence, asked: Asked) -> Answer:
    seed = vary_hash(sequence.document_hash, sequence.answer)
    if sequence.draft is not None:
        return sequence.draft
    is_empty = sequence.fault is FaultKind.EMPTY
    logprobs = None if asked.num_logprobs is None else _write_logprobs(seed, sequence.output_tokens, asked.num_logprobs)
    text = "" if is_empty else write_text(seed, sequence.output_tokens)
    reasoning, text = _think(text) if asked.has_reasoning else (None, text)
    return Answer(
        text=text,
        finish_reason=FinishReason.LENGTH if sequence.is_cut else FinishReason.STOP,
        output_tokens=sequence.output_tokens,
        logprobs=logprobs,
        reasoning=reasoning,
    )


def _think(text: str) -> tuple[str | None, str]:
    words = text.split(" ")
    return " ".join(words[: len(words) // 2]) or None, " ".join(words[len(words) // 2 :])


def _write_logprobs(seed: bytes, num_words: int, num_alternatives: int) -> list[TokenLogprob]:
    """Each word is the likeliest, with one half; the next words of the list have half of that, and so on.

    As vLLM does, it counts the word itself among the likeliest.
    """
    found = []
    for place in range(num_words):
        byte = seed[place % len(seed)]
        ranks = range(1, num_alternatives)
        alternatives = [(_WORDS[(byte + rank) % len(_WORDS)], (rank + 1) * math.log(0.5)) for rank in ranks]
        found.append(TokenLogprob(_WORDS[byte], math.log(0.5), alternatives))
    return found
