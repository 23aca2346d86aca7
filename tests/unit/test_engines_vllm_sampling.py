"""Sampling parameters are made once for all requests that have the same."""

from collections.abc import Mapping

import pytest

from bulkinfer.engines import vllm_sampling
from bulkinfer.engines.vllm_sampling import SamplingChoices, build_params
from bulkinfer.records import JsonValue


def test_equal_parameters_are_made_once_and_go_before_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Mapping[str, JsonValue]] = []

    def build(given: Mapping[str, JsonValue]) -> int:
        made.append(given)
        return len(made)

    choices = SamplingChoices({"temperature": 0, "max_tokens": 8}, build)
    assert choices.find({}) == 1
    assert choices.find({"seed": 1, "max_tokens": 2}) == choices.find({"max_tokens": 2, "seed": 1}) == 2
    assert made == [{"temperature": 0, "max_tokens": 8}, {"temperature": 0, "max_tokens": 2, "seed": 1}]
    forms: list[JsonValue] = [{"json": {"a": 1, "b": 2}}, {"json": {"b": 2, "a": 1}}]
    assert choices.find({"form": forms[0]}) == 3
    assert choices.find({"form": forms[1]}) == 4, "the order of a schema's keys is that of an answer"
    monkeypatch.setattr(vllm_sampling, "_MAX_KEPT", 4)
    assert choices.find({"seed": 2}) == 5
    assert choices.find({"seed": 2}) == 6, "what does not fit is made again"
    assert choices.find({"seed": 1, "max_tokens": 2}) == 2


def test_long_schemas_are_not_kept() -> None:
    made: list[int] = []
    choices = SamplingChoices({}, lambda _: made.append(1))
    for _ in range(2):
        choices.find({"structured_outputs": {"json": {"const": "x" * 30_000}}})
    assert len(made) == 3


def test_what_json_cannot_say_is_made_of_it() -> None:
    def make(**given: object) -> dict[str, object]:
        return given

    given: dict[str, JsonValue] = {"n": 1, "logit_bias": {"7": -100.0}, "structured_outputs": {"json": {"a": 1}}}
    assert build_params(make, lambda json: ("form", json), given) == {
        "n": 1,
        "logit_bias": {7: -100.0},
        "structured_outputs": ("form", {"a": 1}),
    }
