"""What an answer may be made to be, and what not: choices, patterns, schemas; and what is JSON."""

from typing import Any

import pytest

from bulkinfer.constraints import (
    MAX_CHOICES,
    JsonFault,
    Matcher,
    MatchTooLong,
    cannot_fit,
    find_choices_fault,
    find_pattern_fault,
    find_pattern_warning,
    find_schema_warning,
    most_tokens,
    parse_strict_json,
    write_json,
)
from bulkinfer.constraints.json_schema import SchemaChecker, find_schema_fault
from bulkinfer.records import JsonValue

PERSON: dict[str, Any] = {
    "$defs": {"p": {"type": "object", "properties": {"next": {"$ref": "#/$defs/p"}}}},
    "$ref": "#/$defs/p",
}


@pytest.mark.parametrize(
    ("choices", "path", "words"),
    [
        ([], (), "at least 2"),
        (["a"], (), "at least 2"),
        (["a", " "], (1,), "white space"),
        (["a", "b "], (1,), "white space around"),
        (["a", "b\nc"], (1,), "one line"),
        (["spam", "ham", "spam"], (2,), "'spam' (number 1) and 'spam' (number 3) are equal"),
        (["caf\u00e9", "cafe\u0301"], (1,), "are equal"),
        (["ship", "shipping", "other"], (1,), "none begins another: 'ship' (number 1) and 'shipping' (number 2)"),
        (["not spam", "not"], (0,), "'not' (number 2) and 'not spam' (number 1)"),
        ([f"label {number:04}" for number in range(MAX_CHOICES + 1)], (), "at most 1000"),
    ],
)
def test_choices_that_decoding_could_not_tell_apart_are_refused(
    choices: list[str], path: tuple[int, ...], words: str
) -> None:
    fault = find_choices_fault(choices)
    assert fault is not None
    assert fault.path == path
    assert words in fault.expected


def test_choices_that_differ_are_good_and_their_longest_bounds_the_answer() -> None:
    choices = ["yes", "Yes", "no", "größer"]
    assert find_choices_fault(choices) is None
    assert most_tokens(choices) == len("größer".encode()) + 1


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("a(", "unterminated subpattern at character 2"),
        ("[", "unterminated character set"),
        ("(?=a)b", "looking ahead"),
        ("(?<!a)b", "looking ahead or behind"),
        (r"(a)\1", "references to a group"),
        ("(?P<x>a)(?P=x)", "references to a group"),
        ("(a)?(?(1)b|c)", "conditions on a group"),
        ("(?>a)", "atomic"),
        ("a++", "possessive"),
        (r"\ba", "anchors inside"),
        (r"\Aa", "anchors inside"),
        ("a|^b", "anchors inside"),
        ("(?m)a", "flags"),
        ("a\0", "NUL"),
        ("a" * 10_001, "at most 10,000"),
        ("(?:ab){e}", "brace that repeats nothing"),
        ("{name}", "brace that repeats nothing"),
        (r"\\\\{i<=1}", "brace that repeats nothing"),
        ("[[:alpha:]]", "sets in sets"),
        ("[a&&b]", "sets in sets"),
    ],
)
def test_patterns_that_python_and_the_engine_read_differently_are_refused(pattern: str, words: str) -> None:
    fault = find_pattern_fault(pattern)
    assert fault is not None
    assert words in fault.expected


@pytest.mark.parametrize(
    "pattern", [r"[A-Z]{2}-\d{1,6}", "^a$", "(?:a|b)c?", "(?i)yes|no", "(a)(?P<name>b)", "", "a*", r"\{a\}[{}]{,3}"]
)
def test_patterns_that_both_read_alike_are_good(pattern: str) -> None:
    assert find_pattern_fault(pattern) is None


def test_a_pattern_without_end_is_a_warning_and_one_that_never_fits_is_known() -> None:
    assert "no greatest length" in str(find_pattern_warning("[a-z]+"))
    assert find_pattern_warning("[a-z]{1,40}") is None
    assert cannot_fit("a{9000}", 30)
    assert not cannot_fit("a{900}", 30)


@pytest.mark.parametrize(
    ("schema", "path", "words"),
    [
        ({"type": "objct"}, ("type",), "one of array, boolean"),
        ({"properties": {"a": {"minLength": "3"}}}, ("properties", "a", "minLength"), "JSON Schema allows"),
        ({"required": "a"}, ("required",), "type array"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, ("$schema",), "draft of JSON Schema"),
        ({"properties": {"a": {"uniqueItems": True}}}, ("properties", "a", "uniqueItems"), "without uniqueItems"),
        ({"items": {"not": {}}}, ("items", "not"), "without not"),
        ({"anyOf": [{}, {"if": {}}]}, ("anyOf", 1, "if"), "without if"),
        ({"$defs": {"x": {"contains": {}}}}, ("$defs", "x", "contains"), "without contains"),
        ({"requried": ["a"]}, ("requried",), "a key of JSON Schema"),
        ({"format": "iri"}, ("format",), "a format that the engine can hold"),
        ({"pattern": "(?=a)"}, ("pattern",), "looking ahead"),
        ({"patternProperties": {"(?=a)": {}}}, ("patternProperties", "(?=a)"), "looking ahead"),
        ({"$ref": "other.json"}, ("$ref",), "within the schema"),
        ({"$ref": "#/$defs/none"}, ("$ref",), "that exists"),
        ({"$ref": "#name"}, ("$ref",), "that exists"),
        ({"properties": {"a": {"$id": "x"}}}, ("properties", "a", "$id"), "no $id below"),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, (), "can end"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, (), "can end"),
        ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, (), "can end"),
        ({"anyOf": [{"$ref": "#"}]}, (), "can end"),
    ],
)
def test_schemas_that_answers_cannot_be_made_to_fit_are_refused_by_key_and_path(
    schema: dict[str, Any], path: tuple[str | int, ...], words: str
) -> None:
    fault = find_schema_fault(schema)
    assert fault is not None
    assert fault.path == path
    assert words in fault.expected


def test_draft_7_tuples_are_told_their_newer_name() -> None:
    fault = find_schema_fault({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{}]})
    assert fault is not None
    assert (fault.path, "prefixItems" in str(fault.advice)) == (("items",), True)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"uniqueItems": {"type": "boolean"}}, "x-note": 1},
        {"type": ["string", "null"], "maxLength": 5, "description": "a word"},
        {"enum": ["a", 1, None], "default": "a"},
        {"const": {"not": 1, "requried": 2}},
        PERSON,
        {"type": "object", "additionalProperties": {"$ref": "#"}},
        {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}, "minItems": 1}]},
    ],
)
def test_schemas_that_answers_can_be_made_to_fit_are_good(schema: dict[str, Any]) -> None:
    assert find_schema_fault(schema) is None


def test_a_schema_that_leads_back_to_itself_is_a_warning_where_it_can_end() -> None:
    assert "$defs.p.properties.next.$ref" in str(find_schema_warning(PERSON))
    flat: dict[str, Any] = {"$defs": {"a": {"type": "null"}}, "$ref": "#/$defs/a"}
    assert find_schema_warning(flat) is None


@pytest.mark.parametrize(
    ("schema", "value", "fault"),
    [
        ({"type": "object", "required": ["a"]}, {}, "$ breaks the rule required: a"),
        ({"properties": {"a": {"type": "string"}}}, {"a": 3}, "$.a breaks the rule type"),
        ({"properties": {"a": {"items": {"enum": [1]}}}}, {"a": [1, 2]}, "$.a[1] breaks the rule enum"),
        ({"additionalProperties": {"type": "null"}}, {"secret": 3}, "$.<key> breaks the rule type"),
        ({"additionalProperties": False}, {"secret": 3}, "$ breaks the rule additionalProperties"),
        ({"type": "string", "format": "date"}, "2026-02-31", "$ breaks the rule format"),
        (PERSON, {"next": {"next": 3}}, "$.next.next breaks the rule type"),
        ({"type": "object"}, {"a": 1}, None),
        ({"type": "integer"}, 3.0, None),
    ],
)
def test_what_does_not_fit_is_told_by_place_and_rule_and_never_by_what_stands_there(
    schema: dict[str, Any], value: JsonValue, fault: str | None
) -> None:
    assert SchemaChecker(schema).find_fault(value) == fault


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON at character 0 of 0"),
        ('{"a": 1', "not JSON at character 7 of 7"),
        ('{"a": 1} {}', "not JSON at character 9"),
        ("NaN", "NaN"),
        ("[1, -Infinity]", "Infinity"),
        ("1e400", "out of range"),
        ("9" * 5000, "out of range"),
        ('{"a": 1, "a": 2}', "given twice"),
        ('"\\ud800"', "half a character"),
        ("[" * 100_000, "JSON"),
    ],
)
def test_what_only_looks_like_json_is_refused(text: str, words: str) -> None:
    with pytest.raises(JsonFault) as raised:
        parse_strict_json(text)
    assert words in str(raised.value)


def test_json_is_kept_as_it_is_but_for_white_space() -> None:
    text = ' {"b": [1, 1.0, 12345678901234567890123], "a": "\\u00e9\\ud83d\\ude00 x"}\n'
    assert write_json(parse_strict_json(text)) == '{"b":[1,1.0,12345678901234567890123],"a":"é😀 x"}'


def test_a_dialect_that_is_no_text_is_told_like_one_that_is_unknown() -> None:
    fault = find_schema_fault({"$schema": ["2020-12"], "type": "object"})
    assert fault is not None
    assert fault.path == ("$schema",)


@pytest.mark.parametrize(
    "definitions",
    [
        {"a": {"$ref": "#/$defs/a"}},
        {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {"type": "string"}]}, "b": {"$ref": "#/$defs/a"}},
        {"a": {"allOf": [{"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}]}},
    ],
)
def test_a_reference_that_leads_to_itself_without_a_step_into_the_value_is_refused(definitions: dict[str, Any]) -> None:
    fault = find_schema_fault({"$ref": "#/$defs/a", "$defs": definitions})
    assert fault is not None
    assert fault.expected in {"a reference that leads elsewhere", "a schema that an answer can end"}


def test_a_match_that_would_take_years_is_given_up() -> None:
    matcher = Matcher("(a|aa)+[cd]")
    assert matcher.matches("a" * 30 + "d")
    with pytest.raises(MatchTooLong):
        matcher.matches("a" * 60 + "e")
