"""Bounds of a JSON Schema that exclude each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from bulkinfer.constraints import find_schema_warning
from bulkinfer.constraints.bounds import find_bounds_fault
from bulkinfer.constraints.fault import Fault
from bulkinfer.constraints.json_schema import find_schema_fault
from bulkinfer.records import JsonValue


@pytest.mark.parametrize(
    ("part", "key", "expected"),
    [
        ({"type": "integer", "minimum": 5, "maximum": 1}, "maximum", "at least minimum"),
        ({"minimum": 5, "exclusiveMaximum": 5}, "exclusiveMaximum", "more than minimum"),
        ({"exclusiveMinimum": 5, "maximum": 5.0}, "maximum", "more than exclusiveMinimum"),
        ({"minimum": 9, "exclusiveMinimum": 1, "maximum": 8}, "maximum", "at least minimum"),
        ({"minimum": 1, "maximum": 9, "exclusiveMaximum": 1}, "exclusiveMaximum", "more than minimum"),
        ({"type": "integer", "minimum": 1.5, "maximum": 1.9}, "maximum", "a whole number between minimum and this"),
        (
            {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
            "exclusiveMaximum",
            "a whole number between exclusiveMinimum and this",
        ),
        (
            {"minimum": 1, "maximum": 9, "multipleOf": 10},
            "maximum",
            "a multiple of multipleOf between minimum and this",
        ),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "maxLength", "at least minLength"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "maxItems", "at least minItems"),
        ({"minProperties": 3, "maxProperties": 2}, "maxProperties", "at least minProperties"),
        ({"required": ["a", "b"], "maxProperties": 1}, "maxProperties", "at least 2, as so many keys are required"),
        (
            {"prefixItems": [{}], "items": False, "minItems": 2},
            "minItems",
            "at most 1, as items: false allows no others",
        ),
    ],
)
def test_bounds_that_exclude_each_other_are_told_with_their_place(
    part: dict[str, JsonValue], key: str, expected: str
) -> None:
    schema: dict[str, JsonValue] = {"type": "object", "properties": {"a": {"allOf": [{"title": "A"}, part]}}}
    assert find_schema_fault(schema) == Fault(("properties", "a", "allOf", 1, key), expected)


IMPOSSIBLE = {"type": "integer", "minimum": 5, "maximum": 1}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minimum": 5, "maximum": 1},
        {"type": "null", "minLength": 5, "maxLength": 1, "minItems": 5, "maxItems": 1, "required": ["a", "b"]},
        {"type": "array", "required": ["a"], "maxProperties": 0},
        {"type": "object", "prefixItems": [{}], "items": False, "minItems": 2},
        {"type": "string", "$defs": {"unused": IMPOSSIBLE}, "definitions": {"unused": IMPOSSIBLE}},
    ],
)
def test_bounds_of_what_never_applies_are_left_alone(schema: dict[str, JsonValue]) -> None:
    assert find_schema_fault(schema) is None
    assert find_schema_warning(schema) is None


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"anyOf": [IMPOSSIBLE, {"type": "string"}]}, "anyOf.0.maximum"),
        ({"oneOf": [{"type": "null"}, {"$ref": "#/$defs/a"}], "$defs": {"a": IMPOSSIBLE}}, "$defs.a.maximum"),
        ({"anyOf": [True, {"properties": {"b": IMPOSSIBLE}}]}, "anyOf.1.properties.b.maximum"),
        ({"type": ["string", "integer"], "minimum": 5, "maximum": 1}, "maximum"),
        ({"properties": {"a": {"anyOf": [IMPOSSIBLE, {"type": "null"}]}}}, "properties.a.anyOf.0.maximum"),
    ],
)
def test_bounds_of_what_others_may_stand_for_are_a_warning(schema: dict[str, JsonValue], place: str) -> None:
    assert find_schema_fault(schema) is None
    assert str(find_schema_warning(schema)).startswith(f"{place} is not at least minimum: no answer will have")


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"anyOf": [IMPOSSIBLE, {"minLength": 2, "maxLength": 1}]}, ("anyOf", 0, "maximum")),
        ({"anyOf": [{"$ref": "#/$defs/a"}, False], "$defs": {"a": IMPOSSIBLE}}, ("$defs", "a", "maximum")),
        ({"anyOf": [{"items": IMPOSSIBLE}]}, ("anyOf", 0, "items", "maximum")),
        # Needed in one place, and a branch in another.
        (
            {
                "properties": {"x": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}, "y": {"$ref": "#/$defs/a"}},
                "$defs": {"a": IMPOSSIBLE},
            },
            ("$defs", "a", "maximum"),
        ),
        ({"items": {"$ref": "#/x-own/a"}, "x-own": {"a": IMPOSSIBLE}}, ("x-own", "a", "maximum")),
        ({"type": ["integer", "number"], "minimum": 5, "maximum": 1}, ("maximum",)),
    ],
)
def test_bounds_that_nothing_stands_for_are_refused(schema: dict[str, JsonValue], path: tuple[str | int, ...]) -> None:
    fault = find_schema_fault(schema)
    assert fault is not None
    assert fault.path == path


@pytest.mark.parametrize(
    "part",
    [
        {"minimum": 5, "maximum": 5},
        {"minimum": 0.1, "maximum": 0.3, "multipleOf": 0.1},
        {"minimum": 0.3, "maximum": 0.3, "multipleOf": 0.1},
        {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 3},
        {"type": ["integer", "string"], "minimum": 1.5, "maximum": 1.9},
        {"minimum": -(10**5000), "maximum": 10**5000},
        {"minimum": -1e308, "maximum": 1e308, "type": "integer"},
        {"minLength": 2, "maxLength": 2},
        {"prefixItems": [{}], "minItems": 2},
        {"required": ["a"], "maxProperties": 1},
        {"minItems": 5, "maxLength": 1},
    ],
)
def test_bounds_that_go_together_are_left_alone(part: dict[str, JsonValue]) -> None:
    assert find_bounds_fault(part) is None


NUMBERS = st.integers(-6, 6) | st.sampled_from([-0.5, 0.5, 1.5, 2.25])


@given(
    st.dictionaries(st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]), NUMBERS),
    st.sampled_from([None, 1, 2, 0.5, 3]),
)
def test_no_number_fits_what_is_refused_and_one_fits_what_is_not(bounds: dict[str, JsonValue], step: float) -> None:
    schema: dict[str, JsonValue] = {"type": "number", **bounds, **({} if step is None else {"multipleOf": step})}
    validator = Draft202012Validator(schema)
    tried = [quarter / 8 for quarter in range(-100, 101)]
    assert (find_bounds_fault(schema) is None) == any(validator.is_valid(one) for one in tried)
