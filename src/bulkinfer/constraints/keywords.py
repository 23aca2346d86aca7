"""Which parts of JSON Schema are held while an answer is written: those that llguidance implements.

It is vLLM's backend with the most of them, and refuses the others where xgrammar leaves some out without a word. What
is not held is refused here, so that no answer is made in vain; what is a slip of the pen (`requried`), too.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from bulkinfer.constraints.fault import Fault, Path
from bulkinfer.constraints.pattern import find_pattern_fault
from bulkinfer.records import JsonValue

FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"})
_SCHEMA_IN = frozenset({"additionalProperties", "items"})
_SCHEMAS_IN_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMAS_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_HELD = frozenset(
    {
        "$ref",
        "const",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "pattern",
        "required",
        "type",
    }
    | _SCHEMA_IN
    | _SCHEMAS_IN_LIST
    | _SCHEMAS_BY_NAME
)
_SAY_NOTHING = frozenset(
    {"$comment", "$id", "$schema", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly"}
)
"""Allowed: they do not restrict an answer."""
_NOT_HELD = frozenset(
    {
        "$anchor",
        "$dynamicAnchor",
        "$dynamicRef",
        "$recursiveAnchor",
        "$recursiveRef",
        "$vocabulary",
        "additionalItems",
        "contains",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "maxContains",
        "minContains",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
    }
)
"""JSON Schema has them, the engine's backend does not."""

Schema = Mapping[str, JsonValue] | bool


def find_keyword_fault(schema: Schema) -> Fault | None:
    """The first part of a valid schema that the engine could not hold, or None."""
    for path, part in iter_schemas(schema):
        for key, value in part.items():
            fault = _find_fault(path, key, value)
            if fault is not None:
                return fault
    return None


def iter_schemas(schema: Schema, path: Path = ()) -> Iterator[tuple[Path, Mapping[str, JsonValue]]]:
    """A valid schema and all schemas in it, each with its path; references are not followed."""
    stack: list[tuple[Path, JsonValue]] = [(path, schema)]
    while stack:
        at, part = stack.pop()
        if not isinstance(part, Mapping):
            continue
        yield at, part
        inner = [((*at, *below), child) for below, child in _iter_inner(part)]
        stack += reversed(inner)


def _iter_inner(schema: Mapping[str, JsonValue]) -> Iterator[tuple[Path, JsonValue]]:
    for key, value in schema.items():
        if key in _SCHEMA_IN:
            yield (key,), value
        elif key in _SCHEMAS_IN_LIST and isinstance(value, list):
            yield from (((key, number), child) for number, child in enumerate(value))
        elif key in _SCHEMAS_BY_NAME and isinstance(value, Mapping):
            yield from (((key, name), child) for name, child in value.items())


def _find_fault(path: Path, key: str, value: JsonValue) -> Fault | None:
    at = (*path, key)
    if key in _HELD or key in _SAY_NOTHING or key.startswith("x-"):
        return _find_fault_of_value(at, key, value)
    if key in _NOT_HELD:
        return Fault(at, f"a schema without {key}", "the engine cannot decode by it; leave it out")
    near = get_close_matches(key, sorted(_HELD | _SAY_NOTHING), n=1)
    return Fault(at, "a key of JSON Schema", f"did you mean {near[0]}?" if near else "one of your own begins with x-")


def _find_fault_of_value(at: Path, key: str, value: JsonValue) -> Fault | None:
    match key, value:
        case "items", list():
            return Fault(at, "a schema", "a list of schemas, one for each place, is written prefixItems")
        case "format", str() if value not in FORMATS:
            return Fault(at, f"a format that the engine can hold: {', '.join(sorted(FORMATS))}")
        case "pattern", str():
            return _place(find_pattern_fault(value), at)
        case "patternProperties", Mapping():
            faults = (_place(find_pattern_fault(name), (*at, name)) for name in value)
            return next(filter(None, faults), None)
    return None


def _place(fault: Fault | None, at: Path) -> Fault | None:
    return None if fault is None else Fault((*at, *fault.path), fault.expected, fault.advice)
