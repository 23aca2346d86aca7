"""Sampling parameters are made once for all requests that have the same."""

from collections.abc import Mapping

import pytest

from bulkinfer.engines import vllm_sampling
from bulkinfer.engines.vllm_sampling import SamplingChoices
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
    monkeypatch.setattr(vllm_sampling, "_MAX_KEPT", 2)
    assert choices.find({"seed": 2}) == 3
    assert choices.find({"seed": 2}) == 4, "what does not fit is made again"
    assert choices.find({"seed": 1, "max_tokens": 2}) == 2
