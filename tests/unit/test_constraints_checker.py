"""Whether a value fits a schema: formats, patterns that would take years, keys of patterns, decimal steps."""

from typing import Any

import pytest

from bulkinfer.constraints.json_schema import SchemaChecker, find_schema_fault
from bulkinfer.constraints.keywords import FORMATS
from bulkinfer.records import JsonValue

# A text that llguidance may write for each, and texts that it may not.
TEXTS: dict[str, tuple[list[str], list[str]]] = {
    "date": (["2026-02-28", "2024-02-29"], ["2026-02-29", "2026-02-31", "20260228", "2026-W09-6", "26-02-28", ""]),
    "date-time": (
        ["2026-03-01T12:00:00Z", "2026-03-01t12:00:60.25+01:30"],
        ["2026-03-01", "2026-03-01 12:00:00Z", "2026-03-01T12:00:00", "2026-02-30T12:00:00Z", "2026-03-01T24:00:00Z"],
    ),
    "time": (["12:00:00Z", "23:59:60.5-11:00"], ["12:00:00", "12:00Z", "25:00:00Z", "12:00:00+24:00"]),
    "duration": (
        ["P3D", "P1Y2M3D", "PT5M", "P1DT12H", "P4W", "P1Y"],
        ["P", "PT", "3D", "P1DT", "P1W2D", "P1M2Y", "PT1S2M", "P-1D"],
    ),
    "email": (["a@example.com", "a.b+c@d"], ["a.example.com", "a b@c", "a@b@c", ".a@b", "@b", "a@"]),
    "hostname": (["example.com", "a", "1-2.c"], ["-a.com", "a..b", "a_b", "a.com.", "a" * 64, "a.", ""]),
    "ipv4": (["192.0.2.1"], ["192.0.2.256", "192.0.2"]),
    "ipv6": (["2001:db8::1"], ["2001:db8::g", "1::2::3"]),
    "uri": (
        ["https://example.com/a?b=c#d", "mailto:a@example.com", "urn:a:b", "https://[::1]:80/%20"],
        ["example.com", "https://a b", "https://a/%2", "1a:b", "https://a#b#c", ""],
    ),
    "uuid": (["0b0e7a52-6c3f-4c58-9f53-0d6c1f6b8a11"], ["0b0e7a52-6c3f-4c58-9f53", "x"]),
}


def test_every_format_that_a_job_may_have_is_checked() -> None:
    assert set(TEXTS) == FORMATS


@pytest.mark.parametrize("draft", ["draft-06/schema#", "draft-07/schema#", "draft/2020-12/schema"])
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_text_is_of_its_format(name: str, draft: str) -> None:
    checker = SchemaChecker({"format": name, "$schema": f"https://json-schema.org/{draft}"})
    good, bad = TEXTS[name]
    assert [text for text in good if checker.find_fault(text) is not None] == []
    assert [text for text in bad if checker.find_fault(text) is None] == []
    assert checker.find_fault(3) is None  # a format says nothing of a number


@pytest.mark.parametrize(
    "schema",
    [
        {"items": {"type": "string", "pattern": "^(a|aa)+[cd]$"}},
        {"items": {"patternProperties": {"^(a|aa)+[cd]$": {"type": "null"}}}},
        {"items": {"patternProperties": {"^(a|aa)+[cd]$": True}, "additionalProperties": False}},
    ],
)
def test_a_pattern_that_would_take_years_is_given_up(schema: dict[str, Any]) -> None:
    assert find_schema_fault(schema) is None
    text = "a" * 60 + "e"
    values: list[JsonValue] = [text if "pattern" in schema["items"] else {text: 1}]
    fault = SchemaChecker(schema).find_fault(values * 1000)  # the limit is for all of them together
    assert fault == "whether it matches a pattern takes too long to tell: simplify them"


KEYED = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "patternProperties": {"^x_": {"type": "integer"}, "_t$": {"type": "string"}},
    "additionalProperties": {"type": "null"},
}


@pytest.mark.parametrize(
    ("schema", "value", "fault"),
    [
        (KEYED, {"n": 1, "x_a": 2, "a_t": "b", "other": None}, None),
        (KEYED, {"x_a": "b"}, "$.<key> breaks the rule type"),
        (KEYED, {"x_t": 3}, "$.<key> breaks the rule type"),
        (KEYED, {"other": 3}, "$.<key> breaks the rule type"),
        (KEYED, [], "$ breaks the rule type"),
        ({**KEYED, "additionalProperties": False}, {"x_a": 1, "n": 2}, None),
        ({**KEYED, "additionalProperties": False}, {"other": 3}, "$ breaks the rule additionalProperties"),
        ({"additionalProperties": True}, {"other": 3}, None),
        ({"additionalProperties": False}, 3, None),
        ({"pattern": "[0-9]{3}"}, "x123y", None),  # a part of the text is enough
        ({"pattern": "^[0-9]{3}$"}, "x123y", "$ breaks the rule pattern"),
        ({"pattern": "x"}, 3, None),
        ({"multipleOf": 0.1}, 0.3, None),  # not in binary
        ({"multipleOf": 0.1}, 0.35, "$ breaks the rule multipleOf"),
        ({"multipleOf": 0.01}, 1e22, None),
        ({"multipleOf": 3}, 7, "$ breaks the rule multipleOf"),
        ({"multipleOf": 3}, "7", None),
        ({"enum": [f"value {number}" for number in range(50_000)]}, "value 49999", None),
        ({"enum": [f"value {number}" for number in range(50_000)]}, "value 50000", "$ breaks the rule enum"),
        (
            {"properties": {"$ref": {"type": "string"}, "$id": {"type": "string"}}},
            {"$id": 3},
            "$.$id breaks the rule type",
        ),
    ],
)
def test_keys_parts_and_steps(schema: dict[str, Any], value: JsonValue, fault: str | None) -> None:
    assert find_schema_fault(schema) is None
    assert SchemaChecker(schema).find_fault(value) == fault
