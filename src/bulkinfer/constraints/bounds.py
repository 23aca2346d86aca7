"""Bounds in a JSON Schema that no value can fulfil together: told before a model is loaded, wherever answers
come to them."""

import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction

from bulkinfer.constraints.fault import Fault, Path
from bulkinfer.constraints.keywords import iter_inner
from bulkinfer.constraints.pointers import Part, Schema, resolve
from bulkinfer.records import JsonValue

_SIZES = {
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}
_NUMBERS = frozenset({"number", "integer"})


def find_bounds_fault(schema: Schema) -> Fault | None:
    """The first of them in a valid schema where nothing else may stand instead, or None."""
    return next((fault for fault, is_spared in _iter_faults(schema) if not is_spared), None)


def find_bounds_warning(schema: Schema) -> str | None:
    """The same of a branch or a type that no answer can have, as others may stand instead."""
    fault = next((fault for fault, is_spared in _iter_faults(schema) if is_spared), None)
    if fault is None:
        return None
    return f"{'.'.join(map(str, fault.path))} is not {fault.expected}: no answer will have this branch or type"


def _iter_faults(schema: Schema) -> Iterator[tuple[Fault, bool]]:
    """And whether answers do without the part of it."""
    for path, part, is_spared in _iter_applied(schema):
        for kinds, fault in _iter_own_faults(path, part):
            yield fault, is_spared or bool(_list_kinds(part) - kinds)


def _iter_applied(schema: Schema) -> Iterator[tuple[Path, Part, bool]]:
    """Parts that the top leads to, each once, and whether others may stand instead; those first where none may."""
    needed: list[tuple[Path, JsonValue]] = [((), schema)]
    spared: list[tuple[Path, JsonValue]] = []
    seen = set[int]()
    for stack, is_spared in ((needed, False), (spared, True)):
        while stack:
            path, part = stack.pop()
            if not isinstance(part, Mapping) or id(part) in seen:
                continue
            seen.add(id(part))
            yield path, part, is_spared
            branching = {key for key in ("anyOf", "oneOf") if _has_good_branch(schema, part.get(key))}
            inner = [(below, child) for below, child in iter_inner(part) if below[0] not in ("$defs", "definitions")]
            spared += [((*path, *below), child) for below, child in inner if below[0] in branching]
            found = [((*path, *below), child) for below, child in inner if below[0] not in branching]
            stack.extend(reversed([*found, *([resolve(schema, str(part["$ref"]))] if "$ref" in part else [])]))


def _has_good_branch(schema: Schema, branches: JsonValue) -> bool:
    """One of several whose own bounds go together."""
    return isinstance(branches, list) and len(branches) > 1 and any(_is_good(schema, branch) for branch in branches)


def _is_good(schema: Schema, branch: JsonValue) -> bool:
    if isinstance(branch, Mapping) and "$ref" in branch:
        branch = resolve(schema, str(branch["$ref"]))[1]
    if not isinstance(branch, Mapping):
        return branch is not False
    return all(_list_kinds(branch) - kinds for kinds, _ in _iter_own_faults((), branch))


def _iter_own_faults(path: Path, part: Part) -> Iterator[tuple[frozenset[str], Fault]]:
    """And the types of value that it excludes. What is about types that the part has not says nothing."""
    kinds = _list_kinds(part)
    for kind, (least_key, most_key) in _SIZES.items():
        if (not kinds or kind in kinds) and (fault := _find_size_fault(path, part, least_key, most_key)) is not None:
            yield frozenset({kind}), fault
    if (not kinds or kinds & _NUMBERS) and (fault := _find_range_fault(path, part)) is not None:
        yield _NUMBERS, fault
    if (not kinds or "array" in kinds) and (fault := _find_places_fault(path, part)) is not None:
        yield frozenset({"array"}), fault
    if (not kinds or "object" in kinds) and (fault := _find_keys_fault(path, part)) is not None:
        yield frozenset({"object"}), fault


def _list_kinds(part: Part) -> frozenset[str]:
    """Empty where it has no `type`: bounds alone are meant for a value that has them."""
    kinds = part.get("type", [])
    return frozenset(map(str, kinds)) if isinstance(kinds, list) else frozenset({str(kinds)})


def _find_size_fault(path: Path, part: Part, least_key: str, most_key: str) -> Fault | None:
    least, most = _number(part, least_key), _number(part, most_key)
    is_none_left = least is not None and most is not None and least > most
    return Fault((*path, most_key), f"at least {least_key}") if is_none_left else None


def _find_range_fault(path: Path, part: Part) -> Fault | None:
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


def _find_places_fault(path: Path, part: Part) -> Fault | None:
    """More entries than there is room for."""
    least_items = _number(part, "minItems")
    match part:
        case {"items": False, **rest} if least_items is not None:
            places = rest.get("prefixItems")
            num_places = len(places) if isinstance(places, list) else 0
            if least_items > num_places:
                return Fault((*path, "minItems"), f"at most {num_places}, as items: false allows no others")
    return None


def _find_keys_fault(path: Path, part: Part) -> Fault | None:
    """More keys than there is room for."""
    required, most_keys = part.get("required", ()), _number(part, "maxProperties")
    if isinstance(required, list) and most_keys is not None and len(required) > most_keys:
        return Fault((*path, "maxProperties"), f"at least {len(required)}, as so many keys are required")
    return None


def _find_end(
    part: Part, key: str, exclusive_key: str, narrower: Callable[[Fraction, Fraction], Fraction]
) -> tuple[str, Fraction | None, bool]:
    """The narrower of two bounds of one side: its key, itself, and whether it is left out."""
    own, exclusive = _number(part, key), _number(part, exclusive_key)
    if exclusive is not None and (own is None or narrower(own, exclusive) == exclusive):
        return exclusive_key, exclusive, True
    return key, own, False


def _number(part: Part, key: str) -> Fraction | None:
    value = part.get(key)
    match value:
        case bool():
            return None
        case int():
            return Fraction(value)
        case float() if math.isfinite(value):
            return Fraction(repr(value))  # as it is written: 0.1 is a tenth
    return None
