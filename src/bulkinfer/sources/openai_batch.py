"""Requests of an OpenAI batch file as documents: {custom_id, method, url, body}, one a line.

A request becomes the fields that the job reads (`messages`, `prompt` or `input`, and the sampling parameters by vLLM's
names). What a request asks for and would not get makes its row unreadable, naming the parameter: it is never left out.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from bulkinfer.constraints import write_json
from bulkinfer.fingerprint import write_canonical
from bulkinfer.records import Document, JsonValue, OpenAiFile, Origin, SourceFile, UnreadableRow
from bulkinfer.sources.base import name_origin
from bulkinfer.sources.custom_ids import CustomIds
from bulkinfer.sources.jsonl import JsonlSource

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
ENDPOINTS = (CHAT, COMPLETIONS, EMBEDDINGS)
_TEXT_FIELDS = {CHAT: "messages", COMPLETIONS: "prompt", EMBEDDINGS: "input"}
_SAME = frozenset(
    {
        "temperature", "top_p", "n", "stop", "seed", "presence_penalty", "frequency_penalty",
        "top_k", "min_p", "repetition_penalty", "logit_bias", "response_format",
    }
)  # fmt: skip
"""Parameters that documents may have by the same names; three are vLLM's own."""
_OF_THE_JOB = ("logit_bias", "response_format", "n", "logprobs")
"""Those that not every job takes from its documents, and that ask for another answer than it gives."""
_ABOUT = frozenset({"model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
"""What changes no answer."""
_MEANINGLESS: Mapping[str, tuple[JsonValue, ...]] = {
    "stream": (False,),
    "stream_options": (),
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),  # means nothing without tools
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "encoding_format": ("float", "base64"),
}
"""Parameters that may be there with these values, which ask for nothing."""
_FIELDS = {
    CHAT: _SAME | {"messages", "max_tokens", "logprobs"},
    COMPLETIONS: _SAME | {"prompt", "max_tokens", "logprobs"},
    EMBEDDINGS: frozenset({"input"}),
}


_MODEL_NAME = re.compile(r"[\w.:/@-]{1,100}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Fault:
    """What is wrong with a request."""

    key: str
    """Of the line; of its body with `body.` before it."""
    said: str


class OpenAiSource:
    """A batch file for one endpoint. Rows are numbered by line; each is named by its `custom_id`."""

    def __init__(self, file: SourceFile, fields: frozenset[str] | None) -> None:
        assert file.format.openai is not None
        self._file = file
        self._about: OpenAiFile = file.format.openai
        self._fields = fields
        self._lines = JsonlSource(file, None, None)

    def iter_rows(self, wanted: Iterator[int] | None = None) -> Iterator[Document | UnreadableRow]:
        """Yield one row for each request, or for the wanted ones. Raises InputError; see `Source`.

        All lines are read: a later one may have the name of an earlier one.
        """
        names = CustomIds.of(self._file)
        names.begin()
        target = None if wanted is None else next(wanted, None)
        for line in self._lines.iter_rows():
            row = self._read(line, names)
            number = row.origin.row
            while wanted is not None and target is not None and target < number:
                target = next(wanted, None)
            if wanted is not None and target is None:
                return
            if wanted is None or target == number:
                yield row
        names.end()

    def bytes_read(self) -> int:
        """See `Source`."""
        return self._lines.bytes_read()

    def read_field_names(self) -> frozenset[str]:
        """Those that requests for the endpoint may have; see `Source`."""
        return _FIELDS[self._about.url] | {"custom_id"}

    def _read(self, line: Document | UnreadableRow, names: CustomIds) -> Document | UnreadableRow:
        if isinstance(line, UnreadableRow):
            return line
        found = self._parse(line.fields, line.origin.row, names)
        custom_id = line.fields.get("custom_id")
        origin = name_origin(self._file.name, line.origin.row, custom_id if isinstance(custom_id, str) else None)
        if isinstance(found, _Fault):
            return _unreadable(line, origin, found)
        if (refused := self._find_refused(found)) is not None:
            return _unreadable(line, origin, _Fault(f"body.{refused}", "this job does not take it from requests"))
        needed = found if self._fields is None else {name: found[name] for name in self._fields if name in found}
        return replace(line, origin=origin, fields=needed)

    def _find_refused(self, found: Mapping[str, JsonValue]) -> str | None:
        """What the job's own task, or `sampling.columns`, leaves no room for."""
        if self._fields is None or _TEXT_FIELDS[self._about.url] not in self._fields:
            return None
        asked = (name for name in _OF_THE_JOB if name in found and name not in self._fields)
        return next((name for name in asked if (name, found[name]) != ("n", 1)), None)

    def _parse(self, request: Mapping[str, JsonValue], number: int, names: CustomIds) -> dict[str, JsonValue] | _Fault:
        """The fields of a request, or what is wrong with it."""
        custom_id = request.get("custom_id")
        if not isinstance(custom_id, str) or not custom_id:
            return _Fault("custom_id", "expected text that is not empty")
        if (other := names.find_other(custom_id, number)) is not None:
            return _Fault("custom_id", f"the same as in {other}")
        if (fault := self._find_wrong_head(request)) is not None:
            return fault
        body = request.get("body")
        if not isinstance(body, Mapping):
            return _Fault("body", "expected an object")
        fields = self._parse_body(body)
        return fields if isinstance(fields, _Fault) else {"custom_id": custom_id, **fields}

    def _find_wrong_head(self, request: Mapping[str, JsonValue]) -> _Fault | None:
        unknown = sorted(request.keys() - {"custom_id", "method", "url", "body"})
        if unknown:
            return _Fault(_shorten(unknown[0]), "no such key; a request has custom_id, method, url and body")
        if request.get("method", "POST") != "POST":
            return _Fault("method", "expected POST")
        url = request.get("url")
        if url == self._about.url:
            return None
        if url in ENDPOINTS:
            advice = f"give it a job of its own, with input.openai_url: {url}"
            return _Fault("url", f"{url} is another endpoint than the job's, {self._about.url}; {advice}")
        return _Fault("url", f"expected {self._about.url}")

    def _parse_body(self, body: Mapping[str, JsonValue]) -> dict[str, JsonValue] | _Fault:
        model = body.get("model")
        if model not in self._about.models:
            is_name = isinstance(model, str) and _MODEL_NAME.fullmatch(model)
            found = f", found {model}; input.openai_model may name it" if is_name else ""
            return _Fault("body.model", f"expected the job's model ({', '.join(self._about.models)}){found}")
        allowed = _FIELDS[self._about.url]
        fields: dict[str, JsonValue] = {}
        for name, value in body.items():
            if value is None or name in _ABOUT or value in _MEANINGLESS.get(name, ()):
                continue
            if name in allowed and name not in {"logprobs", "max_tokens"}:
                fields[name] = value
            elif name not in _READ_APART or not allowed & _READ_APART[name]:
                return _Fault(f"body.{_shorten(name)}", f"not supported for {self._about.url}")
        if isinstance(form := fields.get("response_format"), Mapping):
            fields["response_format"] = write_json(form)  # as text: the order of a schema's keys counts
        for read in (_read_messages, _read_text, _read_max_tokens, _read_logprobs):
            if (fault := read(body, self._about.url, fields)) is not None:
                return fault
        return fields


_READ_APART: Mapping[str, frozenset[str]] = {
    "max_tokens": frozenset({"max_tokens"}),
    "max_completion_tokens": frozenset({"max_tokens"}),
    "logprobs": frozenset({"logprobs"}),
    "top_logprobs": frozenset({"logprobs"}),
}
"""Parameters that need a look at others, with the field that they become."""


def _read_messages(_body: Mapping[str, JsonValue], url: str, fields: dict[str, JsonValue]) -> None:
    """`developer` is OpenAI's newer name of `system`. All else stays as it is: documents are known by it."""
    messages = fields.get("messages")
    if url == CHAT and isinstance(messages, list):
        fields["messages"] = [_name_system(one) if isinstance(one, Mapping) else one for one in messages]


def _name_system(message: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    return {**message, "role": "system"} if message.get("role") == "developer" else message


def _read_text(_body: Mapping[str, JsonValue], url: str, fields: dict[str, JsonValue]) -> _Fault | None:
    name = _TEXT_FIELDS[url]
    if name not in fields:
        return _Fault(f"body.{name}", "is missing")
    text = fields[name]
    if url != CHAT and isinstance(text, list) and len(text) == 1:
        text = fields[name] = text[0]
    if url != CHAT and not isinstance(text, str):
        return _Fault(f"body.{name}", "expected one text; give each text a request of its own")
    return None


def _read_max_tokens(body: Mapping[str, JsonValue], _url: str, fields: dict[str, JsonValue]) -> _Fault | None:
    given = [body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    if len(given) == 2 and given[0] != given[1]:
        return _Fault("body.max_completion_tokens", "another number than max_tokens")
    if given:
        fields["max_tokens"] = given[0]
    return None


def _read_logprobs(body: Mapping[str, JsonValue], url: str, fields: dict[str, JsonValue]) -> _Fault | None:
    logprobs, top = body.get("logprobs"), body.get("top_logprobs")
    if url == COMPLETIONS:
        if top is not None:
            return _Fault("body.top_logprobs", "not supported for /v1/completions")
        if logprobs is not None:
            fields["logprobs"] = logprobs
    elif logprobs is True:
        fields["logprobs"] = 0 if top is None else top
    elif logprobs is not None and logprobs is not False:
        return _Fault("body.logprobs", "expected true or false")
    elif top:
        return _Fault("body.top_logprobs", "needs logprobs: true")
    return None


def _shorten(name: str) -> str:
    return name if len(name) <= 40 and name.isprintable() else "a key"


def _unreadable(line: Document, origin: Origin, fault: _Fault) -> UnreadableRow:
    digest = hashlib.sha256(b"openai\0" + write_canonical(line.fields)).digest()[:16]
    reason = f"{origin.source}, line {origin.row}: {fault.key}: {fault.said}"
    return UnreadableRow(origin, digest, reason, fault.key.removeprefix("body."))
