"""Bounds in a JSON Schema that no value can fulfil together: told before a model is loaded, wherever they stand."""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from bulkinfer.constraints.fault import Fault, Path
from bulkinfer.constraints.keywords import iter_schemas
from bulkinfer.constraints.pointers import Schema
from bulkinfer.records import JsonValue

_SIZES = (("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties"))


def find_bounds_fault(schema: Schema) -> Fault | None:
    """The first of them in a valid schema, or None."""
    for path, part in iter_schemas(schema):
        fault = _find_sizes_fault(path, part) or _find_range_fault(path, part) or _find_places_fault(path, part)
        if fault is not None:
            return fault
    return None


def _find_sizes_fault(path: Path, part: Mapping[str, JsonValue]) -> Fault | None:
    for least_key, most_key in _SIZES:
        least, most = _number(part, least_key), _number(part, most_key)
        if least is not None and most is not None and least > most:
            return Fault((*path, most_key), f"at least {least_key}")
    return None


def _find_range_fault(path: Path, part: Mapping[str, JsonValue]) -> Fault | None:
    """Numbers: both ends, which of them are left out, and the steps between."""
    least_key, least, is_least_out = _find_end(part, "minimum", "exclusiveMinimum", max)
    most_key, most, is_most_out = _find_end(part, "maximum", "exclusiveMaximum", min)
    if least is None or most is None:
        return None
    is_open = is_least_out or is_most_out
    if least > most or (least == most and is_open):
        return Fault((*path, most_key), f"{'more than' if is_open else 'at least'} {least_key}")
    step = _number(part, "multipleOf") or (Fraction(1) if part.get("type") == "integer" else None)
    if step is None:
        return None
    first = math.floor(least / step) + 1 if is_least_out else math.ceil(least / step)
    if first * step > most or (first * step == most and is_most_out):
        what = "multiple of multipleOf" if "multipleOf" in part else "whole number"
        return Fault((*path, most_key), f"a {what} between {least_key} and this")
    return None


def _find_places_fault(path: Path, part: Mapping[str, JsonValue]) -> Fault | None:
    """More entries or keys than there is room for."""
    least_items = _number(part, "minItems")
    match part:
        case {"items": False, **rest} if least_items is not None:
            places = rest.get("prefixItems")
            num_places = len(places) if isinstance(places, list) else 0
            if least_items > num_places:
                return Fault((*path, "minItems"), f"at most {num_places}, as items: false allows no others")
    required, most_keys = part.get("required", ()), _number(part, "maxProperties")
    if isinstance(required, list) and most_keys is not None and len(required) > most_keys:
        return Fault((*path, "maxProperties"), f"at least {len(required)}, as so many keys are required")
    return None


def _find_end(
    part: Mapping[str, JsonValue], key: str, exclusive_key: str, narrower: Callable[[Fraction, Fraction], Fraction]
) -> tuple[str, Fraction | None, bool]:
    """The narrower of two bounds of one side: its key, itself, and whether it is left out."""
    own, exclusive = _number(part, key), _number(part, exclusive_key)
    if exclusive is not None and (own is None or narrower(own, exclusive) == exclusive):
        return exclusive_key, exclusive, True
    return key, own, False


def _number(part: Mapping[str, JsonValue], key: str) -> Fraction | None:
    value = part.get(key)
    match value:
        case bool():
            return None
        case int():
            return Fraction(value)
        case float() if math.isfinite(value):
            return Fraction(repr(value))  # as it is written: 0.1 is a tenth
    return None
