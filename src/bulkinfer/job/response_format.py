"""The form that a document itself asks its answer to have: `response_format`, as OpenAI's API has it.

A mapping, or the same as JSON text: {type: text}, {type: json_object}, or {type: json_schema, json_schema: {schema:
...}}. What is asked for is held while the answer is written, and checked afterwards, whatever `strict` says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from bulkinfer.constraints import Fault, write_json
from bulkinfer.records import JsonValue

Form = dict[str, JsonValue]
"""By vLLM's name of the kind of form: `json`, with a schema."""

_ANY_OBJECT: Form = {"json": {"type": "object"}}
_TYPES = "{type: text}, {type: json_object} or {type: json_schema, json_schema: {name, schema}}"
_MAX_KNOWN = 256
_MAX_KNOWN_CHARS = 100_000
_MAX_PATH_CHARS = 200


@dataclass(frozen=True, slots=True)
class FormFault:
    """Why a document's wish cannot be fulfilled."""

    expected: str
    """Where, below the field, and what was expected there."""


@dataclass(frozen=True, slots=True)
class FormReader:
    """Reads the field of each document; a schema that many have is checked once. Several threads may read."""

    _known: dict[str, Form | FormFault | None] = field(default_factory=dict)

    def read(self, value: JsonValue) -> Form | FormFault | None:
        """The form; None for text without one."""
        text = value if isinstance(value, str) else write_json(value)
        known = self._known.get(text, self)  # itself: not known; another thread may forget all at any moment
        if not isinstance(known, FormReader):
            return known
        found = _read(value)
        if len(text) <= _MAX_KNOWN_CHARS:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[text] = found
        return found


def _read(value: JsonValue) -> Form | FormFault | None:
    asked: Any = value
    if isinstance(value, str):
        try:
            asked = orjson.loads(value)
        except orjson.JSONDecodeError:
            return FormFault("a mapping, or one as JSON text")
    match asked:
        case {"type": "text", **rest} if not rest:
            return None
        case {"type": "json_object", **rest} if not rest:
            return _ANY_OBJECT
        case {"type": "json_schema", "json_schema": {"schema": Mapping() as schema, **about}, **rest}:
            unknown = bool(rest) or bool(about.keys() - {"name", "description", "strict"})
            return FormFault(_TYPES) if unknown else _check(dict(schema))
    return FormFault(_TYPES)


def _check(schema: dict[str, JsonValue]) -> Form | FormFault:
    from bulkinfer.constraints.json_schema import find_schema_fault  # noqa: PLC0415 - only such documents need it

    fault = find_schema_fault(schema)
    return {"json": schema} if fault is None else FormFault(f"{fault.expected} at {_name_place(fault)}")


def _name_place(fault: Fault) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault.path)
    return f"json_schema.schema{''.join(parts)}"[:_MAX_PATH_CHARS]
