"""Several answers, and log probabilities, as one completion; without and with vLLM's objects."""

import math
from types import SimpleNamespace

import pytest

from bulkinfer.engines.answers import Answer, TokenLogprob, join_answers
from bulkinfer.engines.vllm_reading import read_outcome
from bulkinfer.records import Completion, Rejection


def test_one_answer_adds_no_details() -> None:
    joined = join_answers([Answer("yes", "stop", 3)])
    assert (joined.text, joined.finish_reason, joined.output_tokens, joined.details) == ("yes", "stop", 3, None)


@pytest.mark.parametrize(
    ("reasons", "joined"),
    [
        (("stop", "stop"), "stop"),
        (("stop", "length"), "length"),
        (("repetition", "length"), "length"),
        (("stop", "repetition"), "repetition"),
    ],
)
def test_any_answer_that_is_cut_counts(reasons: tuple[str, ...], joined: str) -> None:
    assert join_answers([Answer("x", reason, 1) for reason in reasons]).finish_reason == joined


def test_all_answers_are_in_the_details_and_the_first_is_the_text() -> None:
    joined = join_answers([Answer("yes", "stop", 3), Answer("no", "stop", 2)])
    assert (joined.text, joined.output_tokens) == ("yes", 5)
    assert joined.details == {
        "outputs": [
            {"text": "yes", "finish_reason": "stop", "output_tokens": 3},
            {"text": "no", "finish_reason": "stop", "output_tokens": 2},
        ]
    }


def test_log_probabilities_are_a_short_list_for_each_token() -> None:
    one = TokenLogprob("Ye", -0.123456, [("No", -2.0), ("Hm", -math.inf)])
    described = ["Ye", -0.1235, [["No", -2.0], ["Hm", -9999.0]]]
    assert join_answers([Answer("Ye", "stop", 1, [one])]).details == {"logprobs": [described]}
    details = join_answers([Answer("Ye", "stop", 1, [one]), Answer("", "stop", 1, [])]).details
    assert details is not None
    assert details["logprobs"] == [[described], []]


def test_reasoning_stands_beside_the_answer() -> None:
    assert join_answers([Answer("4", "stop", 9, reasoning="2 and 2")]).details == {"reasoning": "2 and 2"}
    details = join_answers([Answer("4", "stop", 9, reasoning="2 and 2"), Answer("5", "stop", 9)]).details
    assert details is not None
    assert details["reasoning"] == ["2 and 2", None]


def vllm_output(*answers: SimpleNamespace) -> SimpleNamespace:
    """As much of a RequestOutput as is read."""
    return SimpleNamespace(
        request_id=bytes(16).hex(), outputs=answers, prompt_token_ids=[1, 2], metrics=None, num_cached_tokens=None
    )


def vllm_answer(text: str, finish_reason: str | None, logprobs: object = None) -> SimpleNamespace:
    return SimpleNamespace(text=text, finish_reason=finish_reason, token_ids=[7, 8], logprobs=logprobs)


def logprob(logprob: float, rank: int, decoded_token: str | None) -> SimpleNamespace:
    return SimpleNamespace(logprob=logprob, rank=rank, decoded_token=decoded_token)


def test_vllms_answers_are_all_read() -> None:
    found = read_outcome(vllm_output(vllm_answer("yes", "stop"), vllm_answer("n", "length")), 3.0)
    assert isinstance(found, Completion)
    assert (found.text, found.finish_reason, found.output_tokens, found.prompt_tokens) == ("yes", "length", 4, 2)
    assert found.details is not None


@pytest.mark.parametrize("reason", [None, "error", "abort"])
def test_an_answer_that_vllm_gave_up_is_a_rejection(reason: str | None) -> None:
    found = read_outcome(vllm_output(vllm_answer("yes", "stop"), vllm_answer("n", reason)), 3.0)
    assert isinstance(found, Rejection)
    assert found.code == "engine_error"


def test_vllms_log_probabilities_are_the_token_and_the_others_the_likeliest_first() -> None:
    places = [
        {7: logprob(-3.0, 9, "c"), 1: logprob(-0.5, 1, "a"), 2: logprob(-1.0, 2, None)},
        {8: logprob(-0.25, 1, "d"), 3: logprob(-1.5, 2, "e")},
    ]
    found = read_outcome(vllm_output(vllm_answer("cd", "stop", places)), 3.0)
    assert isinstance(found, Completion)
    assert found.details == {"logprobs": [["c", -3.0, [["a", -0.5], ["", -1.0]]], ["d", -0.25, [["e", -1.5]]]]}
