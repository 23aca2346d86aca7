"""JSON Schema: whether it is one that answers can be made to fit, and whether an answer does. The only importer of
jsonschema.

It was chosen because it knows all drafts, tells the path of what is wrong, and comes with vLLM anyway. Import this
module where a job has a schema: that takes a tenth of a second.
"""

import time
from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any

from jsonschema import FormatChecker
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import Draft202012Validator, extend, validator_for

from bulkinfer.constraints.bounds import find_bounds_fault
from bulkinfer.constraints.fault import Fault
from bulkinfer.constraints.formats import CHECKS
from bulkinfer.constraints.keywords import find_keyword_fault, iter_roots
from bulkinfer.constraints.pattern import MATCH_LIMIT_S, Matcher, MatchTooLong
from bulkinfer.constraints.pointers import Schema
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
    for path, root in iter_roots(schema):
        if (fault := _find_invalid(root, validator_for(schema, default=Draft202012Validator))) is not None:
            return Fault((*path, *fault.path), fault.expected, fault.advice)
    return find_keyword_fault(schema) or find_bounds_fault(schema) or find_reference_fault(schema)


class SchemaChecker:
    """Tells whether values fit a schema without fault. Compiled at first use; one thread may use it."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._matchers: dict[str, Matcher] = {}
        self._until_s = 0.0

    def find_fault(self, value: JsonValue) -> str | None:
        """Where a value does not fit the schema, and which of its rules it breaks; never what stands there."""
        self._until_s = time.monotonic() + MATCH_LIMIT_S
        try:
            fault = next(self._validator.iter_errors(value), None)
        except RecursionError:
            return "too many levels"
        except MatchTooLong:
            return "whether it matches a pattern takes too long to tell: simplify them"
        if fault is None:
            return None
        return f"{_name_place(fault)} breaks the rule {fault.validator}{_name_missing(fault)}"

    @cached_property
    def _validator(self) -> Any:  # noqa: ANN401 - the library is untyped here
        found: Any = validator_for(self._schema, default=Draft202012Validator)
        checker = FormatChecker()  # knows all formats that need no other library
        for name, fits in CHECKS.items():
            checker.checks(name)(fits)
        # The library matches with `re`, which cannot be given a limit, and divides in binary: 0.3 / 0.1 is not whole.
        own = {
            "multipleOf": _iter_division_faults,
            "pattern": self._iter_pattern_faults,
            "patternProperties": self._iter_faults_by_pattern,
            "additionalProperties": self._iter_additional_faults,
        }
        return extend(found, own)(self._schema, format_checker=checker)

    # Any: as the library calls the checks of its keywords.
    def _iter_pattern_faults(self, validator: Any, pattern: str, value: Any, _: Any) -> Iterator[ValidationError]:  # noqa: ANN401
        if validator.is_type(value, "string") and not self._is_in(pattern, value):
            yield ValidationError("pattern")

    def _iter_faults_by_pattern(
        self,
        validator: Any,  # noqa: ANN401
        schemas: dict[str, Any],
        value: Any,  # noqa: ANN401
        _: Any,  # noqa: ANN401
    ) -> Iterator[ValidationError]:
        if not validator.is_type(value, "object"):
            return
        for pattern, schema in schemas.items():
            for key, inner in value.items():
                if self._is_in(pattern, key):
                    yield from validator.descend(inner, schema, path=key, schema_path=pattern)

    def _iter_additional_faults(
        self,
        validator: Any,  # noqa: ANN401
        schema: Any,  # noqa: ANN401
        value: Any,  # noqa: ANN401
        around: dict[str, Any],
    ) -> Iterator[ValidationError]:
        if not validator.is_type(value, "object"):
            return
        patterns = around.get("patternProperties", {})
        for key, inner in value.items():
            if key in around.get("properties", {}) or any(self._is_in(pattern, key) for pattern in patterns):
                continue
            if schema is False:
                yield ValidationError("additionalProperties")
            else:
                yield from validator.descend(inner, schema, path=key)

    def _is_in(self, pattern: str, text: str) -> bool:
        matcher = self._matchers.get(pattern)
        if matcher is None:
            matcher = self._matchers[pattern] = Matcher(pattern)
        return matcher.is_in(text, self._until_s)


def _iter_division_faults(validator: Any, step: Any, value: Any, _: Any) -> Iterator[ValidationError]:  # noqa: ANN401
    if validator.is_type(value, "number") and Fraction(repr(value)) % Fraction(repr(step)) != 0:
        yield ValidationError("multipleOf")


def _find_invalid(schema: Schema, dialect: Any) -> Fault | None:  # noqa: ANN401 - the library is untyped here
    """What of the schema the schema of schemas forbids."""
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
