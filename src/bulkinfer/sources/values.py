"""Arrow types -> JSON values: which columns must be converted, and how.

Text is ISO 8601 for dates and times, plain digits for decimals. Instants are written in UTC, whatever zone the column
names: the same instant is the same text on every machine, with or without a time zone database.
"""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyarrow import lib

from bulkinfer.records import JsonValue, write_data_url

Convert = Callable[[Any], JsonValue]  # Any: whatever pyarrow makes of a value

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICKS_PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class UnsupportedTypeError(ValueError):
    """An Arrow type that has no JSON value."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How the values of one Arrow type become JSON values."""

    storage: pa.DataType
    """The Arrow type to cast to first, chosen so that nothing is lost."""
    convert: Convert | None = None
    """What to do to each Python value that is not null; None where it is a JSON value already. Raises
    UnicodeDecodeError for bytes that are not UTF-8 and OverflowError for a day outside the years 1 to 9999."""


def plan_reading(arrow_type: pa.DataType, *, is_careful: bool = False) -> Reading:
    """Decide how to read a type. Raises UnsupportedTypeError.

    A careful reading takes text as bytes first, so that one value that is not UTF-8 does not spoil the others; it is
    slower.
    """
    types = pa.types
    if types.is_dictionary(arrow_type) or types.is_run_end_encoded(arrow_type):
        return plan_reading(arrow_type.value_type, is_careful=is_careful)
    if isinstance(arrow_type, pa.BaseExtensionType):
        if arrow_type.extension_name == "arrow.uuid":
            return Reading(arrow_type.storage_type, _format_uuid)
        return plan_reading(arrow_type.storage_type, is_careful=is_careful)
    if is_careful and (
        types.is_string(arrow_type) or types.is_large_string(arrow_type) or types.is_string_view(arrow_type)
    ):
        return Reading(pa.large_binary(), bytes.decode)
    if types.is_nested(arrow_type):
        return _plan_nested(arrow_type, is_careful=is_careful)
    return _plan_time(arrow_type) if types.is_temporal(arrow_type) else _plan_scalar(arrow_type)


def _plan_scalar(arrow_type: pa.DataType) -> Reading:
    match arrow_type.id:
        case lib.Type_FLOAT | lib.Type_HALF_FLOAT:
            return Reading(pa.float32(), partial(_shorten_float, "f" if arrow_type.bit_width == 32 else "e"))
        case lib.Type_DOUBLE:
            return Reading(arrow_type, _drop_non_finite)
        case lib.Type_BINARY | lib.Type_LARGE_BINARY | lib.Type_BINARY_VIEW | lib.Type_FIXED_SIZE_BINARY:
            return Reading(arrow_type, _read_bytes)
    if pa.types.is_decimal(arrow_type):
        return Reading(arrow_type, _format_decimal)
    return Reading(arrow_type)


def _plan_time(arrow_type: pa.DataType) -> Reading:
    match arrow_type.id:
        case lib.Type_DATE32:
            return Reading(pa.int32(), _format_date)
        case lib.Type_DATE64:
            return Reading(pa.int64(), _format_date_of_ms)
        case lib.Type_TIMESTAMP:
            zone = "" if arrow_type.tz is None else "+00:00"
            return Reading(pa.int64(), partial(_format_timestamp, _TICKS_PER_S[arrow_type.unit], zone))
        case lib.Type_TIME32 | lib.Type_TIME64:
            storage = pa.int32() if arrow_type.bit_width == 32 else pa.int64()
            return Reading(storage, partial(_format_time, _TICKS_PER_S[arrow_type.unit]))
        case lib.Type_DURATION:
            return Reading(pa.int64(), partial(_count_seconds, _TICKS_PER_S[arrow_type.unit]))
    raise UnsupportedTypeError(str(arrow_type))


def _plan_nested(arrow_type: pa.DataType, *, is_careful: bool) -> Reading:
    match arrow_type.id:
        case lib.Type_STRUCT:
            return _plan_struct(arrow_type, is_careful=is_careful)
        case lib.Type_MAP:
            key = plan_reading(arrow_type.key_type, is_careful=is_careful)
            item = plan_reading(arrow_type.item_type, is_careful=is_careful)
            return Reading(pa.map_(key.storage, item.storage), partial(_convert_map, key.convert, item.convert))
        case lib.Type_LIST | lib.Type_LARGE_LIST | lib.Type_FIXED_SIZE_LIST:
            element = plan_reading(arrow_type.value_type, is_careful=is_careful)
            return Reading(_list_of(arrow_type, element.storage), partial(_convert_list, element.convert))
    raise UnsupportedTypeError(str(arrow_type))


def _plan_struct(arrow_type: pa.DataType, *, is_careful: bool) -> Reading:
    fields = [arrow_type.field(index) for index in range(arrow_type.num_fields)]
    if len({field.name for field in fields}) < len(fields):
        raise UnsupportedTypeError("a struct with two fields of one name")
    readings = [plan_reading(field.type, is_careful=is_careful) for field in fields]
    storage = pa.struct([field.with_type(reading.storage) for field, reading in zip(fields, readings, strict=True)])
    converts = {field.name: reading.convert for field, reading in zip(fields, readings, strict=True)}
    return Reading(storage, partial(_convert_struct, converts))


def _list_of(arrow_type: pa.DataType, element: pa.DataType) -> pa.DataType:
    field = arrow_type.value_field.with_type(element)
    match arrow_type.id:
        case lib.Type_LARGE_LIST:
            return pa.large_list(field)
        case lib.Type_FIXED_SIZE_LIST:
            return pa.list_(field, arrow_type.list_size)
        case _:
            return pa.list_(field)


def convert_all(convert: Convert | None, values: Sequence[Any]) -> Sequence[JsonValue]:
    """Apply one conversion to a list of values; null stays null. Raises as the conversion does."""
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _convert_list(convert: Convert | None, values: Sequence[Any]) -> JsonValue:
    return convert_all(convert, values)


def _convert_struct(converts: Mapping[str, Convert | None], value: Mapping[str, Any]) -> JsonValue:
    return {name: convert_all(convert, [value[name]])[0] for name, convert in converts.items()}


def _convert_map(key: Convert | None, item: Convert | None, pairs: Sequence[tuple[Any, Any]]) -> JsonValue:
    """An object where the keys are text, else a list of pairs."""
    keys = convert_all(key, [pair[0] for pair in pairs])
    items = convert_all(item, [pair[1] for pair in pairs])
    if all(isinstance(name, str) for name in keys):
        return {str(name): value for name, value in zip(keys, items, strict=True)}
    return [[name, value] for name, value in zip(keys, items, strict=True)]


def _read_bytes(value: bytes) -> str:
    """Text; an image as a `data:` URL, which is what prompts take."""
    return write_data_url(value) or value.decode()


def _drop_non_finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _shorten_float(code: str, value: float) -> float | None:
    """The number that a float of less than 64 bits was written as: 4.99, not 4.989999771118164."""
    if not math.isfinite(value):
        return None
    packed = struct.pack(code, value)
    shortened = (float(f"{value:.{digits}g}") for digits in range(3, 9))
    return next((number for number in shortened if _is_packed_as(code, number, packed)), value)


def _is_packed_as(code: str, number: float, packed: bytes) -> bool:
    try:
        return struct.pack(code, number) == packed
    except OverflowError:  # rounding up the largest floats leaves their range
        return False


def _format_uuid(value: bytes) -> str:
    return str(UUID(bytes=value))


def _format_decimal(value: Decimal) -> str:
    return format(value, "f")


def _format_date(days: int) -> str:
    return (_EPOCH + timedelta(days=days)).date().isoformat()


def _format_date_of_ms(milliseconds: int) -> str:
    return _format_date(milliseconds // 86_400_000)


def _format_timestamp(ticks_per_s: int, zone: str, ticks: int) -> str:
    seconds, rest = divmod(ticks, ticks_per_s)
    moment = (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None)
    return moment.isoformat() + _format_fraction(ticks_per_s, rest) + zone


def _format_time(ticks_per_s: int, ticks: int) -> str:
    seconds, rest = divmod(ticks, ticks_per_s)
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}" + _format_fraction(ticks_per_s, rest)


def _format_fraction(ticks_per_s: int, ticks: int) -> str:
    """As datetime.isoformat does, with nine digits where it takes them: equal times are equal text in every unit."""
    nanoseconds = ticks * (10**9 // ticks_per_s)
    if nanoseconds == 0:
        return ""
    return f".{nanoseconds // 1000:06d}" if nanoseconds % 1000 == 0 else f".{nanoseconds:09d}"


def _count_seconds(ticks_per_s: int, ticks: int) -> int | float:
    return ticks // ticks_per_s if ticks % ticks_per_s == 0 else ticks / ticks_per_s
