"""What schemas lead to: where they end, where they go in circles, and how deep they are."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from bulkinfer.constraints import find_schema_warning
from bulkinfer.constraints.json_schema import SchemaChecker, find_schema_fault
from bulkinfer.constraints.keywords import iter_schemas
from bulkinfer.constraints.nesting import MAX_LEVELS, MAX_STEPS
from bulkinfer.constraints.references import find_recursion, find_reference_fault

Wrap = Callable[[dict[str, Any]], dict[str, Any]]
WRAPS: dict[str, Wrap] = {
    "ref": lambda one: one,
    "allOf": lambda one: {"allOf": [one, {"description": "a word"}]},
    "anyOf": lambda one: {"anyOf": [{"type": "null"}, one]},
    "object": lambda one: {"type": "object", "properties": {"x": one}, "required": ["x"]},
}


def chain(num_links: int, wrap: Wrap, *, is_reversed: bool = False) -> dict[str, Any]:
    """Definitions of which each refers to the next, and the last is a text."""
    names = [f"d{number}" for number in range(num_links + 1)]
    links = {name: wrap({"$ref": f"#/$defs/{after}"}) for name, after in pairwise(names)}
    definitions = {**links, names[-1]: {"type": "string"}}
    ordered = dict(reversed(definitions.items())) if is_reversed else definitions
    return {"$ref": "#/$defs/d0", "$defs": ordered}


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_a_chain_of_references_that_is_short_enough_is_good_and_can_be_checked(wrap: Wrap, is_reversed: bool) -> None:
    schema = chain(90, wrap, is_reversed=is_reversed)
    assert find_schema_fault(schema) is None
    assert find_recursion(schema) is None
    checker = SchemaChecker(schema)
    value: Any = "ember"
    for _ in range(90):
        value = {"x": value} if "required" in schema["$defs"]["d0"] else value
    assert checker.find_fault(value) is None
    assert checker.find_fault(3) is not None


@pytest.mark.parametrize(
    ("wrap", "words"),
    [("ref", f"at most {MAX_STEPS} schemas"), ("allOf", f"at most {MAX_STEPS}"), ("object", f"at most {MAX_LEVELS}")],
)
def test_a_chain_in_which_checkers_and_engines_lose_themselves_is_refused(wrap: str, words: str) -> None:
    fault = find_schema_fault(chain(700, WRAPS[wrap]))
    assert fault is not None
    assert words in fault.expected
    assert fault.path[0] == "$defs"


def test_thousands_of_definitions_are_judged_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    num_resolved = 0

    def count(*args: Any) -> Any:  # noqa: ANN401 - as what it stands before
        nonlocal num_resolved
        num_resolved += 1
        return resolve(*args)

    from bulkinfer.constraints import nesting
    from bulkinfer.constraints.pointers import resolve

    monkeypatch.setattr(nesting, "resolve", count)
    schema = chain(4_000, WRAPS["object"], is_reversed=True)
    assert find_reference_fault(schema) is not None  # too deep, which is told last
    assert find_recursion(schema) is None
    assert num_resolved < 10 * 4_000


@pytest.mark.parametrize(
    ("schema", "ends"),
    [
        ({"type": "object", "minProperties": 1, "additionalProperties": {"$ref": "#"}}, False),
        ({"type": "object", "minProperties": 1, "patternProperties": {"^a$": {"$ref": "#"}}}, True),
        ({"type": "object", "minProperties": 1, "additionalProperties": False}, False),
        ({"type": "object", "minProperties": 1, "properties": {"a": {}}, "additionalProperties": False}, True),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, False),
        ({"type": "object", "properties": {"a": False}}, True),
        ({"$ref": "#/$defs/a", "$defs": {"a": False}}, False),
        ({"$ref": "#/$defs/a", "$defs": {"a": True}}, True),
        ({"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, True),
        ({"allOf": [{"type": "object"}, {"properties": {"a": {"$ref": "#"}}, "required": ["a"]}]}, False),
        ({"oneOf": [{"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, {"type": "null"}]}, True),
    ],
)
def test_whether_an_answer_can_end(schema: dict[str, Any], ends: bool) -> None:
    fault = find_schema_fault(schema)
    assert ends is (fault is None)
    assert fault is None or "can end" in fault.expected


def test_two_definitions_that_need_each_other_are_a_warning_where_one_may_be_left_out() -> None:
    person: Any = {"type": "object", "properties": {"pet": {"$ref": "#/$defs/pet"}}}
    pet: Any = {"type": "object", "properties": {"owner": {"$ref": "#/$defs/person"}}, "required": ["owner"]}
    schema: Any = {"$ref": "#/$defs/person", "$defs": {"person": person, "pet": pet}}
    assert find_schema_fault(schema) is None
    assert "leads back" in str(find_schema_warning(schema))
    person["required"] = ["pet"]
    assert find_schema_fault(schema) is not None


@pytest.mark.parametrize(
    ("place", "path", "words"),
    [
        ({"type": "objct"}, ("x-own", "a", "type"), "one of array"),
        ({"uniqueItems": True}, ("x-own", "a", "uniqueItems"), "without uniqueItems"),
        ({"pattern": "(?=a)"}, ("x-own", "a", "pattern"), "looking ahead"),
        ({"$ref": "#/x-own/b"}, ("x-own", "a", "$ref"), "that exists"),
        ({"$ref": "#/x-own/a"}, ("x-own", "a"), "can end"),
    ],
)
def test_what_a_reference_leads_to_is_judged_wherever_it_stands(
    place: dict[str, Any], path: tuple[str, ...], words: str
) -> None:
    fault = find_schema_fault({"properties": {"p": {"$ref": "#/x-own/a"}}, "x-own": {"a": place}})
    assert fault is not None
    assert words in fault.expected
    assert fault.path == path or words == "can end"


@pytest.mark.parametrize(
    ("reference", "definitions"),
    [("#/$defs/a%20b", {"a b": {"type": "string"}}), ("#/$defs/a~1b~0c", {"a/b~c": {"type": "string"}})],
)
def test_references_are_read_as_pointers(reference: str, definitions: dict[str, Any]) -> None:
    schema: dict[str, Any] = {"$ref": reference, "$defs": definitions, "$id": "https://example.com/ticket.json"}
    assert find_schema_fault(schema) is None
    checker = SchemaChecker(schema)
    assert (checker.find_fault("x"), checker.find_fault(1)) == (None, "$ breaks the rule type")


def test_each_schema_is_met_once_though_many_refer_to_it() -> None:
    shared = {"type": "string"}
    schema = {"$defs": {"a": shared}, "properties": {name: {"$ref": "#/$defs/a"} for name in "bcd"}}
    assert [part for _, part in iter_schemas(schema)].count(shared) == 1
