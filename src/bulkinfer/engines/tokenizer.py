"""A model's tokenizer and chat template without the model. The only importer of transformers.

Renders and tokenizes as vLLM's renderer does: the chat template with a generation prompt, and no special tokens but
those that it writes; a text without a chat template with those that the tokenizer adds.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from transformers import AutoTokenizer
from transformers.utils import logging

from bulkinfer.bugs import attempt
from bulkinfer.engines.base import EngineSpec
from bulkinfer.records import Message

_MAX_EXPANSION = {"NoneType": 1, "Prepend": 1, "NFC": 3}
"""How many times longer a tokenizer's normalizer can make a text, in bytes. Of others nothing is known."""
_SPARE_TOKENS = 8
_SAMPLES = ((Message("user", ""),), (Message("system", ""), Message("user", "")))
_REFUSALS = (jinja2.TemplateError, ValueError, TypeError, KeyError)


class TokenizerMissing(Exception):
    """There is no tokenizer that could count, and why."""


class HubTokenizer:
    """A `TokenCounter` over the tokenizer of a model folder or a hub id."""

    name = "tokenizer"
    note = ""
    is_exact = True
    reads_apart = False

    def __init__(self, spec: EngineSpec) -> None:
        """Load the tokenizer from a folder, or of a hub id what was downloaded before. Raises TokenizerMissing."""
        self._chat_template = spec.chat_template
        self._is_plain = spec.is_plain
        self._tokenizer = _load(spec)
        if not (self._is_plain or any(self._render(messages) for messages in _SAMPLES)):
            raise TokenizerMissing(f"{spec.model} has no chat template that takes a user message")

    def count(self, prompts: Sequence[Sequence[Message]]) -> list[int | None]:
        """Tokens of each prompt; None for one that the chat template refuses."""
        return [None if ids is None else len(ids) for ids in self.tokenize(prompts)]

    def tokenize(self, prompts: Sequence[Sequence[Message]]) -> list[list[int] | None]:
        """The token ids of each prompt, as the engine gives them to the model."""
        texts = [self._render(messages) for messages in prompts]
        known = [text for text in texts if text is not None]
        if not known:
            return [None] * len(texts)
        # A chat template writes its special tokens itself.
        found = iter(self._tokenizer(known, add_special_tokens=self._is_plain)["input_ids"])
        return [None if text is None else next(found) for text in texts]

    def find_safe_bytes(self, num_tokens: int) -> int | None:
        """A token is a byte or more, in vocabularies of bytes and in those of characters; see `TokenCounter`."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        expansion = None if backend is None else _MAX_EXPANSION.get(type(backend.normalizer).__name__)
        if expansion is None:
            return None
        around = max(len(text.encode()) for messages in _SAMPLES if (text := self._render(messages)) is not None)
        return max(0, (num_tokens - _SPARE_TOKENS) // expansion - around)

    def _render(self, messages: Sequence[Message]) -> str | None:
        if self._is_plain:
            return messages[-1].content
        conversation = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text: str = self._tokenizer.apply_chat_template(
                conversation, chat_template=self._chat_template, add_generation_prompt=True, tokenize=False
            )
        except _REFUSALS:
            return None
        return text


class TextTokenizer:
    """A `TokenCounter` over the same tokenizer for texts that are embedded or scored: there is no chat template.

    `is_joined`: the two texts of a pair are one prompt, as cross-encoders read them; otherwise each is its own.
    """

    name = "tokenizer"
    note = ""
    is_exact = True

    def __init__(self, spec: EngineSpec, *, is_joined: bool) -> None:
        """Load the tokenizer as `HubTokenizer` does. Raises TokenizerMissing."""
        self._is_joined = is_joined
        self.reads_apart = not is_joined
        self._tokenizer = _load(spec)

    def count(self, prompts: Sequence[Sequence[Message]]) -> list[int | None]:
        """Tokens of each prompt, those included that the tokenizer puts around a text."""
        if self._is_joined and prompts and len(prompts[0]) == 2:
            pairs = [message.content for query, document in prompts for message in (query, document)]
            found = self._tokenizer(pairs[::2], text_pair=pairs[1::2])["input_ids"]
            return [len(ids) for ids in found]
        texts = [message.content for messages in prompts for message in messages]
        lengths = iter([len(ids) for ids in self._tokenizer(texts)["input_ids"]] if texts else [])
        return [sum(next(lengths) for _ in messages) for messages in prompts]

    def find_safe_bytes(self, num_tokens: int) -> int | None:
        """See `TokenCounter`."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        expansion = None if backend is None else _MAX_EXPANSION.get(type(backend.normalizer).__name__)
        return None if expansion is None else max(0, (num_tokens - _SPARE_TOKENS) // expansion)


def _load(spec: EngineSpec) -> Any:  # noqa: ANN401 - the library is untyped here
    logging.set_verbosity_error()
    source = str(spec.arguments.get("tokenizer") or spec.model)
    found = attempt(
        lambda: AutoTokenizer.from_pretrained(
            source,
            revision=spec.revision,
            trust_remote_code=spec.trust_remote_code,
            local_files_only=True,  # the hub is asked for a minute where there is no network; a run does that
        )
    )
    if isinstance(found, Exception):  # the library raises whatever its parts do; without it a plan still helps
        advice = "" if Path(source).is_absolute() else "; the first run downloads it"
        raise TokenizerMissing(f"no tokenizer of {source} is on this machine ({type(found).__name__}){advice}")
    return found
