"""JSON Schema: whether it is one that answers can be made to fit, and whether an answer does. The only importer of
jsonschema.

It was chosen because it knows all drafts, tells the path of what is wrong, and comes with vLLM anyway. Import this
module where a job has a schema: that takes a tenth of a second.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

from jsonschema.exceptions import best_match
from jsonschema.validators import Draft202012Validator, validator_for

from bulkinfer.constraints.bounds import find_bounds_fault
from bulkinfer.constraints.fault import Fault
from bulkinfer.constraints.keywords import Schema, find_keyword_fault
from bulkinfer.constraints.references import find_reference_fault
from bulkinfer.records import JsonValue

_DRAFTS = ("2020-12", "2019-09", "draft-07", "draft-06")
_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
MAX_PATH_CHARS = 200
"""Of the place that a failure names."""


def find_schema_fault(schema: Schema) -> Fault | None:
    """Why answers cannot be made to fit this schema, or None."""
    if isinstance(schema, bool):
        return Fault((), "a mapping that is a JSON Schema")
    dialect = schema.get("$schema")
    if dialect is not None and not (isinstance(dialect, str) and any(draft in dialect for draft in _DRAFTS)):
        return Fault(("$schema",), f"a draft of JSON Schema that is known here: {', '.join(_DRAFTS)}")
    return (
        _find_invalid(schema) or find_keyword_fault(schema) or find_bounds_fault(schema) or find_reference_fault(schema)
    )


class SchemaChecker:
    """Tells whether values fit a schema without fault. Compiled at first use; one thread may use it."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def find_fault(self, value: JsonValue) -> str | None:
        """Where a value does not fit the schema, and which of its rules it breaks; never what stands there."""
        try:
            fault = next(self._validator.iter_errors(value), None)
        except RecursionError:
            return "too many levels"
        if fault is None:
            return None
        return f"{_name_place(fault)} breaks the rule {fault.validator}{_name_missing(fault)}"

    @cached_property
    def _validator(self) -> Any:  # noqa: ANN401 - the library is untyped here
        found: Any = validator_for(self._schema, default=Draft202012Validator)
        return found(self._schema, format_checker=found.FORMAT_CHECKER)


def _find_invalid(schema: Schema) -> Fault | None:
    """What of the schema the schema of schemas forbids."""
    dialect: Any = validator_for(schema, default=Draft202012Validator)
    try:
        fault = best_match(dialect(dialect.META_SCHEMA).iter_errors(schema))
    except RecursionError:
        return Fault((), "a JSON Schema with fewer levels")
    if fault is None:
        return None
    path = tuple(fault.absolute_path)
    if path[-1:] == ("type",):
        return Fault(path, f"one of {', '.join(_TYPES)}, or a list of them")
    return Fault(path, f"what JSON Schema allows here ({_describe_rule(fault.validator, fault.validator_value)})")


def _describe_rule(rule: object, value: object) -> str:
    match rule, value:
        case "type", str():
            return f"type {value}"
        case "type", list():
            return f"type {' or '.join(map(str, value))}"
        case "enum", list():
            return f"one of {', '.join(map(str, value))}"
        case _, int() | float():
            return f"{rule} {value}"
    return str(rule)


def _name_place(fault: Any) -> str:  # noqa: ANN401 - the library is untyped here
    """The path within the value, as in JavaScript. Keys that the schema does not name may be text of the answer."""
    known = set(_iter_names(fault))
    parts = [
        f"[{part}]" if isinstance(part, int) else f".{part}" if part in known else ".<key>"
        for part in fault.absolute_path
    ]
    return f"${''.join(parts)}"[:MAX_PATH_CHARS]


def _name_missing(fault: Any) -> str:  # noqa: ANN401
    """Which key is missing: the schema's word, not the answer's."""
    if fault.validator != "required":
        return ""
    return f": {next(name for name in fault.validator_value if name not in fault.instance)}"


def _iter_names(fault: Any) -> Iterator[str]:  # noqa: ANN401
    """Names on the way to the rule that is broken: those of the schema's own properties."""
    path = list(fault.absolute_schema_path)
    yield from (str(name) for before, name in pairwise(path) if before == "properties")
