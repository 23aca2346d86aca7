"""Arrow columns -> JSON values or texts, whatever their types: for formats that know fewer types than Arrow.

Unlike a source, which must tell what it cannot read, it makes the best of each value: bytes that are no text become
base64, a text that is not UTF-8 loses those bytes, and what has no JSON value becomes null.
"""

import base64
from collections.abc import Sequence

import orjson
import pyarrow as pa

from bulkinfer.records import JsonValue
from bulkinfer.sources.values import Reading, UnsupportedTypeError, convert_all, plan_reading


def has_json_values(arrow_type: pa.DataType) -> bool:
    """Whether values of the type can be written as JSON."""
    try:
        for is_careful in (False, True):
            pa.nulls(0, arrow_type).cast(plan_reading(arrow_type, is_careful=is_careful).storage)
    except (UnsupportedTypeError, pa.ArrowException):
        return False
    return True


def to_json_values(array: pa.Array) -> Sequence[JsonValue]:
    """The JSON value of each; as sources read them, where they can."""
    try:
        return _convert(array, plan_reading(array.type))
    except (UnicodeDecodeError, OverflowError):
        reading = plan_reading(array.type, is_careful=True)
        is_binary = pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)
        return [_convert_one(value, reading, is_binary=is_binary) for value in _cast(array, reading).to_pylist()]


def to_texts(array: pa.Array) -> pa.Array:
    """The same as one column of texts: a text as it stands, anything else as JSON writes it."""
    if pa.types.is_string(array.type):
        return array
    return pa.array([write_text(value) for value in to_json_values(array)], pa.string())


def write_text(value: JsonValue) -> str | None:
    """A JSON value as one text."""
    return value if value is None or isinstance(value, str) else write_json(value).decode()


def write_json(value: JsonValue) -> bytes:
    """JSON in one line, with integers of any length."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return orjson.dumps(_replace(value))


def _replace(value: JsonValue) -> object:
    """What orjson refuses, replaced: integers beyond 64 bits, half characters."""
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case int() if value.bit_length() > 63:
            return orjson.Fragment(str(value))
        case dict():
            return {str(_replace(key)): _replace(part) for key, part in value.items()}
        case list() | tuple():
            return [_replace(part) for part in value]
    return value


def _convert(array: pa.Array, reading: Reading) -> Sequence[JsonValue]:
    return convert_all(reading.convert, _cast(array, reading).to_pylist())


def _cast(array: pa.Array, reading: Reading) -> pa.Array:
    return array if array.type == reading.storage else array.cast(reading.storage)


def _convert_one(value: object, reading: Reading, *, is_binary: bool) -> JsonValue:
    try:
        return convert_all(reading.convert, [value])[0]
    except UnicodeDecodeError:
        if not isinstance(value, bytes):
            return None
        return base64.b64encode(value).decode() if is_binary else value.decode(errors="replace")
    except OverflowError:
        return None
