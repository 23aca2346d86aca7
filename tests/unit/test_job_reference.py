"""docs/jobs.md: the reference of the job file is what the schema says."""

import runpy
from typing import Any

from bulkinfer.job import json_schema
from tests.conftest import ROOT

SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "make_job_reference.py"))
PAGE = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")


def test_the_page_is_up_to_date() -> None:
    """`make schema` renews it."""
    _, _, rest = PAGE.partition(SCRIPT["BEGIN"])
    assert rest.partition(SCRIPT["END"])[0].strip() == SCRIPT["describe_schema"](json_schema())


def test_every_key_is_there_with_what_it_is_for() -> None:
    schema = json_schema()
    lines = SCRIPT["describe_schema"](schema).splitlines()
    keys = [key for section in schema["$defs"].values() for key in section.get("properties", ())]
    assert len(keys) > 30
    for key in keys:
        told = [line for line in lines if line.startswith(f"| `{key}` ") or f".{key}` " in line]
        assert told, f"{key} is not told"
        for line in told:
            assert line.rstrip(" |").rpartition("|")[2].strip(), f"{key} has no description"


def test_types_are_told_in_words() -> None:
    describe = SCRIPT["_tell_type"]
    definitions = {"Inner": {"type": "object", "properties": {}}}
    expected = {
        "a whole number from 1 to 10": {"type": "integer", "minimum": 1, "maximum": 10},
        "a number above 0, to 1": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "a text or a list of texts": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "true or false": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "`a`, `b`": {"enum": ["a", "b"]},
        "a list of sections": {"type": "array", "items": {"$ref": "#/$defs/Inner"}},
        "any value": {},
    }
    assert {name: describe(value, definitions) for name, value in expected.items()} == {name: name for name in expected}
