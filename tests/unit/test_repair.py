"""What is asked next after an answer that was not kept."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from bulkinfer.contract import make_contract
from bulkinfer.job import JobSpec
from bulkinfer.records import Completion, Failure, FailureCode, Message, Origin, RepairStep, Request
from bulkinfer.repair import DRAW_TEMPERATURE, Repairs

HASH = bytes(16)
ORIGIN = Origin("in.jsonl", 1, "d1")
ASKED = (Message("system", "Say a label."), Message("user", "hello"))
REQUEST = Request(HASH, ORIGIN, ASKED, 17)
CONTEXT = 512


def repairs_of(
    repair: str, *, max_repairs: int = 5, prompt: dict[str, Any] | None = None, **sampling: object
) -> Repairs:
    spec = JobSpec.model_validate(
        {
            "name": "a",
            "input": {"path": "a.jsonl"},
            "model": {"path": "org/name"},
            "task": {"kind": "extract", "regex": "[a-z]{1,9}"},
            "prompt": prompt or {"user": "{{ body }}"},
            "sampling": {"max_tokens": 40, **sampling},
            "output": {"database": "a.duckdb", "repair": repair, "max_repairs": max_repairs},
        }
    )
    return Repairs(spec, make_contract(spec))


def ask(repairs: Repairs, request: Request, code: FailureCode, text: str = "BAD", context: int = CONTEXT) -> Request:
    found = find(repairs, request, code, text, context)
    assert found is not None
    return found


def find(
    repairs: Repairs, request: Request, code: FailureCode, text: str = "BAD", context: int = CONTEXT
) -> Request | None:
    completion = Completion(HASH, text, "stop", 30, 0, 20, queue_s=0.0, first_token_s=0.0, total_s=0.0)
    failure = Failure(HASH, ORIGIN, code, "the answer is bad", text, 1, retryable=False, failed_at=datetime.now(UTC))
    return repairs.find_next(request, completion, failure, context)


@pytest.mark.parametrize("code", [FailureCode.TRUNCATED, FailureCode.INVALID_OUTPUT])
def test_without_a_policy_a_failure_stands(code: FailureCode) -> None:
    assert find(repairs_of("none"), REQUEST, code) is None


@pytest.mark.parametrize("code", [FailureCode.ENGINE_ERROR, FailureCode.PROMPT_TOO_LONG, FailureCode.ENGINE_KILLER])
def test_what_is_no_fault_of_the_answer_is_not_repaired(code: FailureCode) -> None:
    assert find(repairs_of("retry_longer"), REQUEST, code) is None


def test_retry_asks_for_another_draw_each_time_up_to_the_limit() -> None:
    repairs = repairs_of("retry", max_repairs=2)
    first = ask(repairs, REQUEST, FailureCode.INVALID_OUTPUT)
    assert first.sampling == {"temperature": DRAW_TEMPERATURE}
    assert first.messages == ASKED
    assert [(one.step, one.code, one.max_tokens, one.raw_output) for one in first.repairs] == [
        (RepairStep.AGAIN, FailureCode.INVALID_OUTPUT, 40, "BAD")
    ]
    second = ask(repairs, first, FailureCode.TRUNCATED)
    assert len(second.repairs) == 2
    assert find(repairs, second, FailureCode.INVALID_OUTPUT) is None


def test_another_draw_moves_a_seed_and_leaves_a_temperature() -> None:
    seeded = ask(repairs_of("retry", temperature=0.5, seed=7), REQUEST, FailureCode.INVALID_OUTPUT)
    assert seeded.sampling == {"seed": 8}
    own = ask(repairs_of("retry"), replace(REQUEST, sampling={"temperature": 0.2}), FailureCode.INVALID_OUTPUT)
    assert own.sampling == {"temperature": 0.2}


def test_a_cut_answer_gets_twice_the_tokens_and_then_sees_that_it_was_too_long() -> None:
    repairs = repairs_of("retry_longer")
    first = ask(repairs, REQUEST, FailureCode.TRUNCATED)
    assert (first.sampling, first.messages) == ({"max_tokens": 80}, ASKED)
    second = ask(repairs, first, FailureCode.TRUNCATED, "x" * 5)
    assert second.sampling == {"max_tokens": 80}
    assert second.messages[:2] == ASKED
    assert second.messages[2] == Message("assistant", "xxxxx")
    assert "it was too long" in second.messages[3].content
    assert [one.step for one in second.repairs] == [RepairStep.LONGER, RepairStep.SHOWN]
    third = ask(repairs, second, FailureCode.TRUNCATED, "y")
    assert third.messages[2] == Message("assistant", "y")
    assert len(third.messages) == 4


def test_an_invalid_answer_is_asked_again_and_then_shown_with_what_was_wrong() -> None:
    repairs = repairs_of("retry_longer")
    first = ask(repairs, REQUEST, FailureCode.INVALID_OUTPUT)
    assert first.repairs[0].step is RepairStep.AGAIN
    second = ask(repairs, first, FailureCode.INVALID_OUTPUT)
    assert second.messages[2:] == (
        Message("assistant", "BAD"),
        Message(
            "user",
            "That answer is wrong: the answer is bad. Answer again, with text that matches [a-z]{1,9} as a whole, and "
            "nothing else.",
        ),
    )


@pytest.mark.parametrize(("context", "max_tokens"), [(110, 80), (109, 79), (71, 41), (70, None), (50, None)])
def test_more_tokens_than_the_context_has_are_not_asked_for(context: int, max_tokens: int | None) -> None:
    found = find(repairs_of("retry_longer"), REQUEST, FailureCode.TRUNCATED, context=context)
    assert (found and found.sampling["max_tokens"]) == max_tokens


def test_what_cannot_be_shown_is_asked_again() -> None:
    once = ask(repairs_of("retry_longer"), REQUEST, FailureCode.INVALID_OUTPUT)
    for text, context, prompt in ((" \n", CONTEXT, None), ("BAD", 150, None), ("BAD", CONTEXT, {"text": "{{ body }}"})):
        found = ask(repairs_of("retry_longer", prompt=prompt), once, FailureCode.INVALID_OUTPUT, text, context)
        assert found.repairs[-1].step is RepairStep.AGAIN
        assert found.messages == ASKED


def test_however_often_it_is_shown_the_document_stays_in_the_prompt() -> None:
    repairs, request = repairs_of("retry_longer", max_repairs=5), REQUEST
    for number in range(5):
        request = ask(repairs, request, FailureCode.INVALID_OUTPUT, f"BAD {number}")
        assert request.messages[: len(ASKED)] == ASKED
        assert len(request.messages) <= len(ASKED) + 2
    assert request.messages[-2].content == "BAD 4"
