"""Which parts of JSON Schema are held while an answer is written: those that llguidance implements.

It is vLLM's backend with the most of them, and refuses the others where xgrammar leaves some out without a word. What
is not held is refused here, so that no answer is made in vain; what is a slip of the pen (`requried`), too.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from bulkinfer.constraints.fault import Fault, Path
from bulkinfer.constraints.pattern import find_pattern_fault
from bulkinfer.constraints.pointers import Part, Schema, resolve
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


def find_keyword_fault(schema: Schema) -> Fault | None:
    """The first part of a valid schema that the engine could not hold, or None."""
    for path, part in iter_schemas(schema):
        for key, value in part.items():
            fault = _find_fault(path, key, value)
            if fault is not None:
                return fault
    return None


def iter_schemas(schema: Schema) -> Iterator[tuple[Path, Part]]:
    """A valid schema and all schemas in it, each once, with its path; then what else in it references name."""
    seen = set[int]()
    for path, root in iter_roots(schema):
        yield from _iter_tree(path, root, seen)


def iter_roots(schema: Schema) -> Iterator[tuple[Path, Part]]:
    """The schema, and what references name that is none of the schemas in it: they may lead anywhere."""
    stack: list[tuple[Path, JsonValue]] = [((), schema)]
    seen = set[int]()
    while stack:
        path, root = stack.pop()
        if not isinstance(root, Mapping) or id(root) in seen:
            continue
        yield path, root
        parts = [part for _, part in _iter_tree(path, root, seen)]
        stack += [resolve(schema, str(part["$ref"])) for part in parts if "$ref" in part]


def _iter_tree(path: Path, root: Part, seen: set[int]) -> Iterator[tuple[Path, Part]]:
    """`seen`: by identity, what is left out; it grows."""
    stack: list[tuple[Path, JsonValue]] = [(path, root)]
    while stack:
        at, part = stack.pop()
        if not isinstance(part, Mapping) or id(part) in seen:
            continue
        seen.add(id(part))
        yield at, part
        stack += reversed([((*at, *below), child) for below, child in iter_inner(part)])


def iter_inner(part: Part) -> Iterator[tuple[Path, JsonValue]]:
    """Schemas right in this one."""
    for key, value in part.items():
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
