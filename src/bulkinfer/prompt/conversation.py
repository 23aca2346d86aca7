"""A conversation that a document brings as it stands: `prompt.messages`."""

from collections.abc import Mapping, Sequence

import orjson

from bulkinfer.prompt.part import DocumentFault
from bulkinfer.records import FailureCode, JsonValue, Message

_ROLES = ("system", "user", "assistant")
_LIST = "a list of messages, each with role and content"


def read_conversation(name: str, fields: Mapping[str, JsonValue]) -> tuple[Message, ...] | DocumentFault:
    """The messages of the field `name`, at least one. A list may come as JSON text, as in a CSV file."""
    value = fields.get(name)
    if value is None:
        message = f"prompt.messages: the field {name} is absent or null; mend the document"
        return DocumentFault(FailureCode.MISSING_FIELD, message)
    messages: list[Message] = []
    for place, entry in enumerate(_as_list(value), start=1):
        read = _read_message(entry, place)
        if isinstance(read, str):
            return _refuse(name, read)
        messages.append(read)
    if not messages:
        return _refuse(name, _LIST)
    if messages[-1].role != "user":
        return _refuse(name, f"the last message to be the user's, and not the {messages[-1].role}'s")
    if not messages[-1].content.strip():
        return DocumentFault(FailureCode.EMPTY_PROMPT, f"prompt.messages: the field {name} ends with an empty message")
    return tuple(messages)


def _as_list(value: JsonValue) -> Sequence[JsonValue]:
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return ()
    return value if isinstance(value, list | tuple) else ()


def _read_message(entry: JsonValue, place: int) -> Message | str:
    """The message, or what was expected instead."""
    where = f"message {place}"
    if not isinstance(entry, Mapping):
        return f"{where} to be a mapping of role and content"
    # A table has all keys in all rows: those that are null say nothing.
    if any(value is not None for key, value in entry.items() if key not in {"role", "content"}):
        return f"{where} to have role and content alone"
    role, content = entry.get("role"), _read_content(entry.get("content"))
    if role not in _ROLES:
        return f"the role of {where} to be one of {', '.join(_ROLES)}"
    if role == "system" and place > 1:
        return f"{where} not to be a system message: it comes first, once"
    if content is None or not _is_utf8(content):
        return f"the content of {where} to be text"
    return Message(str(role), content)


def _is_utf8(text: str) -> bool:
    """Not so with half a character, which can neither be sent to the engine nor be tokenised."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_content(content: JsonValue) -> str | None:
    """A text, or a list of parts that are texts, as OpenAI's files have them; None for anything else."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple) or not content:
        return None
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        if not isinstance(text, str):
            return None
        texts.append(text)
    return "\n".join(texts)


def _refuse(name: str, expected: str) -> DocumentFault:
    return DocumentFault(FailureCode.INVALID_FIELD, f"prompt.messages: the field {name}: expected {expected}")
