"""The simulated engine's answers in the form that a job asks for."""

import hashlib
import json
import re
from typing import Any

import pytest

from bulkinfer.constraints import find_pattern_fault
from bulkinfer.constraints.json_schema import SchemaChecker, find_schema_fault
from bulkinfer.constraints.keywords import FORMATS
from bulkinfer.engines.scoring import Scoring
from bulkinfer.engines.simulated_answers import draft_answer, score, write_structured
from bulkinfer.engines.simulated_arguments import FaultKind
from bulkinfer.records import FinishReason, Message

HASHES = [hashlib.sha256(bytes([number])).digest()[:16] for number in range(40)]
TREE = {
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "n": {"type": "integer"}}}},
    "$ref": "#/$defs/node",
}
TICKET: dict[str, Any] = {
    "type": "object",
    "properties": {
        "product": {"type": "string", "maxLength": 6, "minLength": 2},
        "urgency": {"enum": ["low", "high"]},
        "days": {"type": ["integer", "null"], "minimum": 1, "maximum": 30},
        "when": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,5}$"}, "minItems": 1, "maxItems": 3},
        "cost": {"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.5},
    },
    "required": ["product", "urgency", "tags"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "schema",
    [
        TICKET,
        TREE,
        {"type": "array", "prefixItems": [{"const": 1}, {"type": "boolean"}], "items": False, "minItems": 2},
        {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}, "minItems": 1, "maxItems": 2}]},
        {"allOf": [{"type": "object", "required": ["a"]}, {"properties": {"a": {"type": "integer", "minimum": -3}}}]},
        {"type": "integer", "exclusiveMaximum": 10, "multipleOf": 5},
        {"type": "object", "required": ["a"], "additionalProperties": {"type": "integer"}, "minProperties": 3},
        {"$ref": "#/$defs/a%20b", "$defs": {"a b": {"type": "boolean"}}},
        *({"type": "string", "format": name} for name in sorted(FORMATS)),
    ],
)
def test_json_fits_its_schema(schema: dict[str, Any]) -> None:
    assert find_schema_fault(schema) is None
    checker = SchemaChecker(schema)
    for document_hash in HASHES:
        text = write_structured(document_hash, {"json": schema})
        assert checker.find_fault(json.loads(text)) is None, text
        assert text == write_structured(document_hash, {"json": schema})


@pytest.mark.parametrize(
    "pattern", [r"[A-Z]{2}-\d{1,6}", "(yes|no)!?", r"\w+ [^a-z]", "(?:ab){2,3}.", r"[\s\S]\D", "é", "[é-ë]"]
)
def test_texts_match_their_pattern(pattern: str) -> None:
    assert find_pattern_fault(pattern) is None
    for document_hash in HASHES:
        text = write_structured(document_hash, {"regex": pattern})
        assert re.fullmatch(pattern, text), text


def test_every_choice_comes_up() -> None:
    choices = ["a", "b", "c"]
    assert {write_structured(document_hash, {"choice": choices}) for document_hash in HASHES} == set(choices)


@pytest.mark.parametrize(
    ("fault", "reason", "is_json", "fits"),
    [
        (None, FinishReason.STOP, True, True),
        (FaultKind.BROKEN, FinishReason.STOP, False, False),
        (FaultKind.MISMATCH, FinishReason.STOP, True, False),
        (FaultKind.TRUNCATE, FinishReason.LENGTH, False, False),
        (FaultKind.WHITE_SPACE, FinishReason.WHITE_SPACE, False, False),
    ],
)
def test_scripted_faults_spoil_the_answer(
    fault: FaultKind | None, reason: FinishReason, is_json: bool, fits: bool
) -> None:
    answer = draft_answer(HASHES[0], {"json": TICKET}, 100, fault)
    assert answer.finish_reason is reason
    assert answer.output_tokens <= 100
    try:
        value = json.loads(answer.text)
    except ValueError:
        assert not is_json
    else:
        assert is_json
        assert (SchemaChecker(TICKET).find_fault(value) is None) == fits


def test_an_answer_longer_than_its_tokens_is_cut() -> None:
    answer = draft_answer(HASHES[0], {"json": TICKET}, 3, None)
    assert (answer.finish_reason, answer.output_tokens, len(answer.text)) == (FinishReason.LENGTH, 3, 12)
    white = draft_answer(HASHES[0], {"json": TICKET}, 3, FaultKind.WHITE_SPACE)
    assert (white.finish_reason, white.output_tokens) == (FinishReason.LENGTH, 3)


def test_scored_choices_have_probabilities_and_the_label_is_the_best() -> None:
    choices = ("a", "b", "c")
    plain = score(HASHES[0], Scoring(choices, is_told=True))
    assert plain.details is not None
    probabilities: Any = plain.details["probabilities"]
    assert sum(probabilities.values()) == pytest.approx(1)
    assert plain.label == max(probabilities, key=probabilities.__getitem__)
    calibrated = score(HASHES[0], Scoring(choices, is_told=True, prior=(Message("user", ""),)))
    assert calibrated.details is not None
    assert calibrated.details["uncalibrated"] == probabilities
