"""Any answer of bulkinfer as JSON: what orjson refuses is replaced, and nothing in it can drive a terminal."""

import re
from collections.abc import Mapping

import orjson

_TERMINAL_CONTROLS = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What JSON may hold as it is, and a terminal may obey: delete, C1 controls, changes of direction, line ends."""


def to_json(value: object) -> str:
    """In one line; what could drive a terminal is escaped, which is the same JSON."""
    try:
        text = _dump(value)
    except orjson.JSONEncodeError:
        text = _dump(_replace_unencodable(value))
    return _TERMINAL_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _dump(value: object) -> str:
    """JSON in one line; what is no JSON value is its text."""
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _replace_unencodable(value: object) -> object:
    """A value with what orjson refuses in it replaced: integers beyond 64 bits, names that are not UTF-8."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case int() if value.bit_length() > 63:
            return orjson.Fragment(str(value))
        case Mapping():
            return {_replace_unencodable(str(key)): _replace_unencodable(part) for key, part in value.items()}
        case list() | tuple():
            return [_replace_unencodable(part) for part in value]
    return value
