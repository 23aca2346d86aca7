"""The job file's keys of the task `generate`: what goes together, and what rows may bring."""

import json
from typing import Any

import pytest
import yaml

from bulkinfer.job import ClassifyTask, RowFault, RowSampling, SamplingSpec
from bulkinfer.records import FORM, JsonValue
from tests.unit.test_job import MINIMAL, Load, line_of, load

__all__ = ["load"]
"""The fixture."""


def with_prompt(prompt: dict[str, Any]) -> str:
    """The minimal job with another prompt."""
    return yaml.safe_dump({**yaml.safe_load(MINIMAL), "prompt": prompt}, sort_keys=False)


def test_all_keys_of_a_few_shot_prompt_load(load: Load) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    prompt = load(with_prompt({"system": "s", "turns": turns, "user": "u"})).spec.prompt
    assert [(turn.role, turn.content) for turn in prompt.turns or ()] == [("user", "a"), ("assistant", "b")]
    assert load(with_prompt({"messages": "talk", "system": "s"})).spec.prompt.messages == "talk"
    assert load(with_prompt({"text": "{{ body }}"})).spec.prompt.text == "{{ body }}"
    first = load(with_prompt({"turns": [{"role": "system", "content": "s"}], "user": "u"})).spec.prompt.turns
    assert first is not None


NONE = "prompt.user: the key is missing; add it: a prompt has user, messages or text"
ONE = "; a prompt is one of user (with system, turns and images), messages (with system and images) and text"
TURN = {"role": "user", "content": "secret"}


@pytest.mark.parametrize(
    ("prompt", "line"),
    [
        ({}, NONE),
        ({"system": "secret"}, NONE),
        (
            {"user": "secret", "text": "secret"},
            f"prompt.text: expected nothing beside prompt.user, found a text{{}}{ONE}",
        ),
        (
            {"user": "x", "messages": "talk"},
            f"prompt.messages: expected nothing beside prompt.user, found a text{{}}{ONE}",
        ),
        (
            {"messages": "talk", "text": "x"},
            f"prompt.text: expected nothing beside prompt.messages, found a text{{}}{ONE}",
        ),
        (
            {"messages": "m", "turns": [TURN]},
            f"prompt.turns: expected nothing beside prompt.messages, found a list{{}}{ONE}",
        ),
        (
            {"text": "x", "system": "secret"},
            f"prompt.system: expected nothing beside prompt.text, found a text{{}}{ONE}",
        ),
        ({"text": "x", "turns": [TURN]}, f"prompt.turns: expected nothing beside prompt.text, found a list{{}}{ONE}"),
        (
            {"user": "x", "turns": "secret"},
            "prompt.turns: expected a list of turns, each with role and content, found a",
        ),
        ({"user": "x", "turns": []}, "prompt.turns: expected at least 1 entry, found a list of 0"),
        (
            {"user": "x", "turns": ["secret"]},
            "prompt.turns.0: expected a mapping of keys, found a text of 6 characters",
        ),
        ({"user": "x", "turns": [{"role": "user"}]}, "prompt.turns.0.content: the key is missing; add it"),
        (
            {"user": "x", "turns": [{**TURN, "role": "bot"}]},
            "prompt.turns.0.role: expected 'system', 'user' or 'assistant', found a text of 3 characters",
        ),
        ({"user": "x", "turns": [{**TURN, "contents": "x"}]}, "unknown key; did you mean content?"),
        (
            {"user": "x", "system": "s", "turns": [{**TURN, "role": "system"}]},
            "prompt.turns.0.role: expected user or assistant, found a text of 6 characters; a system message",
        ),
        (
            {"user": "x", "turns": [TURN, {**TURN, "role": "system"}]},
            "prompt.turns.1.role: expected user or assistant, found a text of 6 characters; a system message",
        ),
    ],
)
def test_prompts_that_are_none(load: Load, prompt: dict[str, Any], line: str) -> None:
    told = line_of(load, with_prompt(prompt))
    before, _, after = line.partition("{}")
    assert before in told
    assert after in told
    assert "secret" not in told


@pytest.mark.parametrize(
    ("sampling", "line"),
    [
        ("n: 0", "sampling.n: expected at least 1, found the whole number 0"),
        ("n: 129, temperature: 1", "sampling.n: expected at most 128, found the whole number 129"),
        (
            "n: 2",
            "sampling.n: expected 1, found the whole number 2; with temperature 0 all answers would be the same; raise",
        ),
        ("logprobs: 21", "sampling.logprobs: expected at most 20, found the whole number 21"),
        ("logprobs: true", "sampling.logprobs: expected a whole number, found true"),
        ("columns: {temprature: t}", "sampling.columns.temprature: unknown key; did you mean temperature?"),
        ("columns: {temperature: 3}", "sampling.columns.temperature: expected text, found the whole number 3"),
        ("columns: temperature", "sampling.columns: expected a mapping of keys, found the text 'temperature'"),
    ],
)
def test_sampling_that_is_none(load: Load, sampling: str, line: str) -> None:
    assert line in line_of(load, MINIMAL.replace("max_tokens: 48", f"max_tokens: 48, {sampling}"))


def test_what_the_engine_is_told_leaves_the_columns_out(load: Load) -> None:
    text = "max_tokens: 48, temperature: 0.5, n: 2, logprobs: 3, columns: {seed: s, top_p: p}"
    sampling = load(MINIMAL.replace("max_tokens: 48", text)).spec.sampling
    assert sampling.to_engine() == {"max_tokens": 48, "temperature": 0.5, "n": 2, "logprobs": 3}
    assert sampling.columns is not None
    assert sampling.columns.to_fields() == {"seed": "s", "top_p": "p"}


SCHEMA: JsonValue = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "null"}}}
FORM_FIELD = "response_format: the field response_format"
BIAS_FIELD = (
    "logit_bias: the field logit_bias: expected a mapping with numbers of tokens as keys, each with a number from -100 "
    "to 100"
)
FORMS = "{type: text}, {type: json_object} or {type: json_schema, json_schema: {name, schema}}"
TYPES = "array, boolean, integer, null, number, object, string"


def schema_of(schema: JsonValue) -> JsonValue:
    """What a row asks for that wants JSON of a schema."""
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


PARAMETERS = (
    "temperature", "max_tokens", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "stop", "seed", "n", "logprobs", "logit_bias", "response_format",
)  # fmt: skip


def read(row: dict[str, JsonValue], **sampling: object) -> dict[str, JsonValue] | RowFault:
    """What a row brings whose fields are named as the parameters."""
    columns = {name: name for name in PARAMETERS}
    return RowSampling(SamplingSpec.model_validate({"max_tokens": 8, "columns": columns, **sampling})).read(row)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"max_tokens": 11, "stop": ["!", "sir"]}, None),
        ({"max_tokens": 10}, "max_tokens: the field most: expected at least 11, which the longest choice may take"),
        ({"stop": ["!", "indeed"]}, "stop: the field ends: expected no text that is part of a choice"),
        ({"stop": "n"}, "stop: the field ends: expected no text that is part of a choice"),
    ],
)
def test_a_row_cannot_cut_a_label(row: dict[str, JsonValue], expected: str | None) -> None:
    task = ClassifyTask.model_validate({"kind": "classify", "choices": ["yes indeed", "no"]})
    sampling = SamplingSpec.model_validate({"columns": {"max_tokens": "most", "stop": "ends"}})
    fields = {"most": row.get("max_tokens"), "ends": row.get("stop")}
    found = RowSampling(sampling, task).read(fields)
    assert found == (row if expected is None else RowFault(f"sampling.columns.{expected}"))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({}, {}),
        (dict.fromkeys(PARAMETERS), {}),
        ({"temperature": 1, "max_tokens": 7, "top_p": 0.5, "top_k": -1}, None),
        ({"min_p": 0, "presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 10}, None),
        ({"stop": "."}, {"stop": ["."]}),
        ({"stop": [".", "!"], "seed": 2**63 - 1, "logprobs": 0}, None),
        ({"n": 3, "temperature": 0.5}, None),
        # A column with nulls is one of floats in many a table.
        ({"max_tokens": 7.0, "seed": 3.0}, {"max_tokens": 7, "seed": 3}),
        ({"other": "x"}, {}),
        ({"logit_bias": {"50256": -100, "7": 1.5}}, None),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": '{"type": "json_object"}'}, {FORM: {"json": {"type": "object"}}}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
                }
            },
            {FORM: {"json": SCHEMA}},
        ),
    ],
)
def test_what_rows_may_bring(row: dict[str, JsonValue], expected: dict[str, JsonValue] | None) -> None:
    assert read(row) == (row if expected is None else expected)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"temperature": "0.5"}, "temperature: the field temperature: expected a number"),
        ({"temperature": 3}, "temperature: the field temperature: expected at most 2.0"),
        ({"temperature": True}, "temperature: the field temperature: expected a number"),
        ({"temperature": [1]}, "temperature: the field temperature: expected a number"),
        ({"max_tokens": 0}, "max_tokens: the field max_tokens: expected at least 1"),
        ({"max_tokens": 7.5}, "max_tokens: the field max_tokens: expected a whole number"),
        ({"top_p": 0}, "top_p: the field top_p: expected more than 0.0"),
        ({"top_k": -2}, "top_k: the field top_k: expected at least -1"),
        ({"stop": []}, "stop: the field stop: expected at least 1 entry"),
        ({"stop": [""]}, "stop: the field stop: expected text that is not empty"),
        ({"stop": 3}, "stop: the field stop: expected text or a list of texts"),
        ({"seed": -1}, "seed: the field seed: expected at least 0"),
        ({"seed": 2**63}, "seed: the field seed: expected at most 9223372036854775807"),
        ({"logprobs": 21}, "logprobs: the field logprobs: expected at most 20"),
        ({"logit_bias": {"x": 1}}, BIAS_FIELD),
        ({"logit_bias": {"7": 101}}, "logit_bias: the field logit_bias: expected at most 100.0"),
        ({"logit_bias": [7]}, BIAS_FIELD),
        ({"response_format": "json"}, f"{FORM_FIELD}: expected a mapping, or one as JSON text"),
        ({"response_format": {"type": "json"}}, f"{FORM_FIELD}: expected {FORMS}"),
        ({"response_format": {"type": "json_object", "schema": {}}}, f"{FORM_FIELD}: expected {FORMS}"),
        ({"response_format": {"type": "json_schema"}}, f"{FORM_FIELD}: expected {FORMS}"),
        (
            {"response_format": schema_of({"type": "objekt"})},
            f"{FORM_FIELD}: expected one of {TYPES}, or a list of them at json_schema.schema.type",
        ),
        (
            {"response_format": schema_of({"properties": {"a": {"not": {}}}})},
            f"{FORM_FIELD}: expected a schema without not at json_schema.schema.properties.a.not",
        ),
    ],
)
def test_what_rows_may_not_bring(row: dict[str, JsonValue], expected: str) -> None:
    assert read(row) == RowFault(f"sampling.columns.{expected}")


def test_a_form_that_many_rows_ask_for_is_the_same_and_keeps_the_order_of_its_keys() -> None:
    sampling = SamplingSpec.model_validate({"max_tokens": 8, "columns": {"response_format": "form"}})
    reader = RowSampling(sampling)
    assert (reader.fields, reader.parameters) == (frozenset({"form"}), (FORM,))
    turned: JsonValue = {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "integer"}}}
    one, again, other = (reader.read({"form": schema_of(schema)}) for schema in (SCHEMA, SCHEMA, turned))
    assert isinstance(one, dict)
    assert isinstance(again, dict)
    assert one[FORM] is again[FORM]
    assert json.dumps(one) != json.dumps(other)
    assert one == other
    for number in range(600):
        assert isinstance(reader.read({"form": schema_of({"const": number})}), dict)
    assert isinstance(reader.read({"form": schema_of({"const": "x" * 200_000})}), dict)
    assert len(reader._forms._known) <= 256
    assert max(map(len, reader._forms._known)) <= 100_000


def test_several_answers_of_a_row_need_a_temperature() -> None:
    fault = RowFault("sampling: expected a temperature above 0 for n 2: all answers would be equal")
    assert read({"n": 2}) == fault
    assert read({"temperature": 0}, n=2, temperature=1) == fault
    assert read({"n": 2}, temperature=1) == {"n": 2}
    assert read({}, n=2) == fault, "the job's temperature of 0 holds for this row"
