"""JSON text -> value, strictly: no NaN, no key twice, no number beyond a double, no half characters."""

import json
import math
import re
from typing import Any, NoReturn

from bulkinfer.records import JsonValue

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**64 - 1
MAX_INTEGER_DIGITS = 1000
"""More are refused: nobody's database takes them, and reading them takes quadratic time."""


class JsonFault(Exception):
    """The text is not JSON. The message tells where and what, and quotes nothing of it."""


def parse_strict_json(text: str) -> JsonValue:
    """The value of a JSON text. Raises JsonFault."""
    try:
        value: JsonValue = json.loads(
            text,
            object_pairs_hook=_build_object,
            parse_constant=_refuse_constant,
            parse_float=_parse_float,
            parse_int=_parse_int,
        )
    except json.JSONDecodeError as error:
        raise JsonFault(f"not JSON at character {error.pos} of {len(text)}") from None
    except RecursionError:
        raise JsonFault("JSON with too many levels") from None
    if "\\u" in text and _LONE_SURROGATE.search(write_json(value)):
        raise JsonFault("JSON with half a character (a lone surrogate)")
    return value


def find_unwritable(value: object) -> str | None:
    """What has to be there instead of a number or text that cannot be stored or sent as JSON; None for one that can."""
    if isinstance(value, int) and not _MIN_INTEGER <= value <= _MAX_INTEGER:
        return "a number of at most 64 bits"
    if isinstance(value, str) and _LONE_SURROGATE.search(value):
        return "text without half characters (lone surrogates)"
    return None


def write_json(value: JsonValue) -> str:
    """JSON without white space, in its own characters."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) < len(pairs):
        raise JsonFault("JSON with a key that is given twice")
    return built


def _refuse_constant(_: str) -> NoReturn:
    raise JsonFault("JSON with NaN or Infinity, which JSON does not have")


def _parse_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise JsonFault("JSON with a number that is out of range")
    return number


def _parse_int(text: str) -> int:
    if len(text) > MAX_INTEGER_DIGITS:
        raise JsonFault("JSON with a number that is out of range")
    return int(text)
