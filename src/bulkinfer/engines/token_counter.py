"""How many tokens a prompt has, without an engine: the port, and the ways that need no tokenizer.

choose_counter  ->  TokenCounter  ->  tokenizer.HubTokenizer | SimulatedCounter | CharacterCounter
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.model_files import find_folder, is_cross_encoder
from bulkinfer.engines.simulated import estimate_prompt_tokens
from bulkinfer.engines.simulated_arguments import parse_simulated_arguments
from bulkinfer.records import Message

_SIMULATED_CHARS_PER_TOKEN = 4
_SIMULATED_TOKENS_OF_TWO_MESSAGES = 10
"""What both messages cost besides their characters, rounding included."""
_CHARS_PER_TOKEN = 4
"""Of English in most vocabularies; other languages have fewer."""


class TokenCounter(Protocol):
    """Counts the tokens of prompts, chat template included."""

    name: str
    """What counts: a word for `plan --json`."""
    note: str
    """What a reader of the counts must know; empty when they are the engine's own."""
    is_exact: bool
    """Whether the engine would count the same."""
    reads_apart: bool
    """Whether the model reads each message by itself: then each has to fit by itself."""

    def count(self, prompts: Sequence[Sequence[Message]]) -> list[int | None]:
        """Tokens of each prompt; None for one that the chat template refuses."""

    def find_safe_bytes(self, num_tokens: int) -> int | None:
        """So many bytes of text in its messages a prompt may have, and never has more than `num_tokens` tokens.

        None where nothing of the kind can be said.
        """


class SimulatedCounter:
    """Counts as the simulated engine does; `factor` is its prompt_tokens_factor, `is_plain` says: no chat template."""

    name = "simulated"
    note = ""
    is_exact = True
    reads_apart = False

    def __init__(self, factor: float = 1.0, *, is_plain: bool = False) -> None:
        self._factor = factor
        self._is_plain = is_plain

    def count(self, prompts: Sequence[Sequence[Message]]) -> list[int | None]:
        """The simulated engine's own estimate."""
        return [estimate_prompt_tokens(messages, self._factor, is_plain=self._is_plain) for messages in prompts]

    def find_safe_bytes(self, num_tokens: int) -> int | None:
        """See `TokenCounter`; a byte is never more than a character."""
        num_estimated = math.floor(num_tokens / self._factor)
        return max(0, (num_estimated - _SIMULATED_TOKENS_OF_TWO_MESSAGES) * _SIMULATED_CHARS_PER_TOKEN)


class CharacterCounter:
    """Guesses from characters, where no tokenizer is to be had."""

    name = "characters"
    is_exact = False
    reads_apart = False

    def __init__(self, reason: str) -> None:
        """`reason` is why there is no tokenizer."""
        self.note = f"{reason}; tokens are guessed, at {_CHARS_PER_TOKEN} characters each"

    def count(self, prompts: Sequence[Sequence[Message]]) -> list[int | None]:
        """A token for each begun 4 characters, and 4 for each message."""
        return [sum(4 + -(-len(message.content) // _CHARS_PER_TOKEN) for message in messages) for messages in prompts]

    def find_safe_bytes(self, num_tokens: int) -> int | None:  # noqa: ARG002 - the port's name
        """Nothing is safe about a guess."""
        return None


def choose_counter(spec: EngineSpec) -> TokenCounter:
    """What counts as this engine would, or comes nearest. Importing and loading a tokenizer takes some seconds."""
    if spec.kind == "simulated":
        factor = parse_simulated_arguments(spec.arguments).prompt_tokens_factor
        return SimulatedCounter(factor, is_plain=spec.is_plain)
    try:
        # Here, and not above: it takes seconds, and is not there without an engine.
        from bulkinfer.engines.tokenizer import HubTokenizer, TextTokenizer, TokenizerMissing  # noqa: PLC0415
    except ImportError:
        return CharacterCounter("the package transformers is not installed")
    try:
        if spec.is_pooling:
            folder = find_folder(spec)
            return TextTokenizer(spec, is_joined=folder is not None and is_cross_encoder(folder))
        return HubTokenizer(spec)
    except TokenizerMissing as error:
        return CharacterCounter(str(error))


def count_tokens(
    counter: TokenCounter, prompts: Sequence[Sequence[Message]]
) -> list[tuple[int, int] | tuple[None, None]]:
    """Of each prompt its tokens, and those of the longest text that has to fit into the context by itself; None where
    the chat template refuses it."""
    if not counter.reads_apart:
        return [(None, None) if count is None else (count, count) for count in counter.count(prompts)]
    counts = iter(counter.count([(message,) for messages in prompts for message in messages]))
    parts = [[next(counts) or 0 for _ in messages] for messages in prompts]
    return [(sum(part), max(part, default=0)) for part in parts]


def find_config(spec: EngineSpec) -> Path | None:
    """The config.json of a model folder, or of a hub id where it was downloaded before. Asks no network."""
    folder = find_folder(spec)
    return None if folder is None else folder / "config.json"
