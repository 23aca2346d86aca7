"""What schemas lead to: where they end, where they go in circles, and how deep they are."""

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from bulkinfer.constraints import find_schema_warning
from bulkinfer.constraints.depth import MAX_LEVELS, find_depth_fault, find_too_deep
from bulkinfer.constraints.json_schema import SchemaChecker, find_schema_fault
from bulkinfer.constraints.keywords import iter_schemas
from bulkinfer.constraints.nesting import MAX_STEPS
from bulkinfer.constraints.references import find_recursion, find_reference_fault

COMPILE = """
import sys, threading
from llguidance import LLMatcher
said = []
def work():
    grammar = LLMatcher.grammar_from_json_schema(sys.stdin.read())
    said.append(LLMatcher.validate_grammar_with_warnings(grammar, None)[0])
threading.stack_size(8 * 1024 * 1024)
thread = threading.Thread(target=work)
thread.start()
thread.join()
sys.exit(said != [False])
"""
"""As the engine does: in a thread."""
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
    [("ref", f"at most {MAX_STEPS} schemas"), ("allOf", f"at most {MAX_STEPS}"), ("object", f"{MAX_LEVELS:,} levels")],
)
def test_a_chain_in_which_checkers_and_engines_lose_themselves_is_refused(wrap: str, words: str) -> None:
    fault = find_schema_fault(chain(701, WRAPS[wrap]))
    assert fault is not None
    assert words in fault.expected
    assert fault.path[0] == "$defs"


def net(num_definitions: int, *, seed: int = 1) -> dict[str, Any]:
    """Definitions of which each refers to three others at random."""
    drawn = Random(seed)
    names = [f"T{number}" for number in range(num_definitions)]
    definitions = {
        name: {
            "type": "object",
            "properties": {f"p{place}": {"$ref": f"#/$defs/{drawn.choice(names)}"} for place in "abc"},
        }
        for name in names
    }
    return {"$defs": definitions, "$ref": "#/$defs/T0"}


def test_a_flat_schema_of_many_definitions_is_good_and_too_many_are_told_with_what_to_do() -> None:
    assert find_reference_fault(net(1_100)) is None
    fault = find_reference_fault(net(1_600))
    assert fault is not None
    assert 'replace a "$ref"' in str(fault.advice)


@pytest.mark.parametrize(
    "schema",
    [net(1_100), chain(690, WRAPS["object"]), chain(690, lambda one: {"type": "array", "prefixItems": [one]})],
    ids=["net", "objects", "arrays"],
)
def test_the_backend_gets_through_what_is_just_not_too_deep(schema: dict[str, Any]) -> None:
    pytest.importorskip("llguidance")
    assert find_depth_fault(schema) is None
    done = subprocess.run([sys.executable, "-c", COMPILE], input=json.dumps(schema), text=True, check=False, timeout=60)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("schema", "max_levels", "path"),
    [
        ({"properties": {"a": {}}}, 1, ("properties", "a")),
        ({"properties": {"a": {}}}, 2, None),
        ({"$defs": {"a": {"items": {"items": {}}}}}, 1, None),  # nothing leads there
        ({"$ref": "#/$defs/a", "$defs": {"a": {}}}, 1, ("$defs", "a")),
        ({"$ref": "#/$defs/a", "$defs": {"a": {}}}, 1.5, None),
        ({"type": "string", "properties": {"a": {}}}, 1, None),
        ({"properties": {"a": {}}, "prefixItems": [{}]}, 1, ("prefixItems", 0)),
        ({"type": ["object", "array"], "properties": {"a": {}}, "prefixItems": [{}]}, 1, ("properties", "a")),
        ({"items": {}, "anyOf": [{}], "prefixItems": [{}]}, 1, ("items",)),
        # What is met first leads to b by way of a; the other way round, a is known when b is met.
        (
            {
                "properties": {"x": {"$ref": "#/$defs/a"}, "y": {"$ref": "#/$defs/b"}},
                "$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {}},
            },
            3,
            ("$defs", "b"),
        ),
        (
            {
                "properties": {"y": {"$ref": "#/$defs/b"}, "x": {"$ref": "#/$defs/a"}},
                "$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {}},
            },
            3,
            None,
        ),
        ({"properties": {"a": {"$ref": "#"}}}, 3, None),
    ],
)
def test_levels_are_counted_on_the_way_that_the_backend_takes(
    schema: dict[str, Any], max_levels: float, path: tuple[str | int, ...] | None
) -> None:
    assert find_too_deep(schema, max_levels) == path


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
