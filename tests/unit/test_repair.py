"""What is asked next after an answer that was not kept."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from bulkinfer.contract import make_contract
from bulkinfer.job import JobSpec
from bulkinfer.outcome import decide_outcome
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
    repairs: Repairs, request: Request, code: FailureCode, text: str = "BAD", context: int | None = CONTEXT
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


def test_of_several_answers_none_is_drawn_with_the_seed_of_another() -> None:
    repairs = repairs_of("retry", temperature=0.5, seed=7, n=3)
    first = ask(repairs, REQUEST, FailureCode.INVALID_OUTPUT)  # 7, 8 and 9 are used up
    assert first.sampling == {"seed": 10}
    own = ask(repairs, replace(REQUEST, sampling={"n": 5, "seed": 1}), FailureCode.INVALID_OUTPUT)
    assert own.sampling == {"n": 5, "seed": 6}


@pytest.mark.parametrize("code", [FailureCode.TRUNCATED, FailureCode.INVALID_OUTPUT])
def test_by_default_every_rung_of_the_ladder_is_reached(code: FailureCode) -> None:
    spec = repairs_of("retry_longer").spec
    by_default = type(spec.output)(database="a.duckdb", repair="retry_longer")
    spec = spec.model_copy(update={"output": by_default})
    repairs, request = Repairs(spec, make_contract(spec)), REQUEST
    while (found := find(repairs, request, code)) is not None:
        request = found
    assert [str(one.step) for one in request.repairs] == ["again", "longer", "shown"]
    assert {one.step for one in request.repairs} == set(RepairStep)


def test_a_cut_answer_is_drawn_anew_then_with_twice_the_tokens_and_then_sees_that_it_was_too_long() -> None:
    repairs = repairs_of("retry_longer")
    first = ask(repairs, REQUEST, FailureCode.TRUNCATED)
    assert (first.sampling, first.messages) == ({"temperature": DRAW_TEMPERATURE}, ASKED)
    second = ask(repairs, first, FailureCode.TRUNCATED)
    assert (second.sampling, second.messages) == ({"temperature": DRAW_TEMPERATURE, "max_tokens": 80}, ASKED)
    third = ask(repairs, second, FailureCode.TRUNCATED, "x" * 5)
    assert third.sampling == second.sampling
    assert third.messages[:2] == ASKED
    assert third.messages[2] == Message("assistant", "xxxxx")
    assert "it was too long" in third.messages[3].content
    fourth = ask(repairs, third, FailureCode.TRUNCATED, "y")
    assert (fourth.sampling["max_tokens"], fourth.messages) == (160, third.messages)
    fifth = ask(repairs, fourth, FailureCode.TRUNCATED, "z", context=300)
    assert fifth.repairs[-1].step is RepairStep.LONGER
    assert fifth.sampling["max_tokens"] == 270


def test_an_invalid_answer_is_drawn_anew_then_with_more_tokens_and_then_shown_with_what_was_wrong() -> None:
    repairs = repairs_of("retry_longer", temperature=0.5, seed=7)
    first = ask(repairs, REQUEST, FailureCode.INVALID_OUTPUT)
    assert first.sampling == {"seed": 8}
    second = ask(repairs, first, FailureCode.INVALID_OUTPUT)
    assert second.sampling == {"seed": 9, "max_tokens": 80}  # what ended would only end again
    assert second.messages == ASKED
    third = ask(repairs, second, FailureCode.INVALID_OUTPUT)
    assert third.sampling == {"seed": 10, "max_tokens": 80}
    assert third.messages[2:] == (
        Message("assistant", "BAD"),
        Message(
            "user",
            "That answer is wrong: the answer is bad. Answer again, with text that matches [a-z]{1,9} as a whole, and "
            "nothing else.",
        ),
    )
    fourth = ask(repairs, third, FailureCode.INVALID_OUTPUT)
    assert (fourth.sampling["seed"], fourth.messages) == (11, third.messages)


def test_a_failure_of_another_kind_goes_on_with_the_rungs_that_are_left() -> None:
    repairs = repairs_of("retry_longer")
    first = ask(repairs, REQUEST, FailureCode.TRUNCATED)
    second = ask(repairs, first, FailureCode.INVALID_OUTPUT)
    third = ask(repairs, second, FailureCode.TRUNCATED)
    assert [str(one.step) for one in third.repairs] == ["again", "longer", "shown"]


@pytest.mark.parametrize(
    ("context", "max_tokens"), [(None, 80), (110, 80), (109, 79), (71, 41), (70, None), (50, None)]
)
def test_more_tokens_than_the_context_has_are_not_asked_for(context: int | None, max_tokens: int | None) -> None:
    repairs = repairs_of("retry_longer")
    found = find(repairs, ask(repairs, REQUEST, FailureCode.TRUNCATED), FailureCode.TRUNCATED, context=context)
    assert found is not None
    assert found.sampling.get("max_tokens") == max_tokens
    assert found.repairs[-1].step is (RepairStep.AGAIN if max_tokens is None else RepairStep.LONGER)


def test_what_is_shown_leaves_as_many_tokens_as_the_job_gives_and_no_fewer() -> None:
    repairs = repairs_of("retry_longer")
    request = ask(repairs, ask(repairs, REQUEST, FailureCode.TRUNCATED), FailureCode.TRUNCATED)
    assert request.sampling["max_tokens"] == 80
    # The prompt has 30 tokens, the answer that is shown 20, what is said of it 96, and the demand.
    turns = 30 + 20 + 96 + len(repairs.contract.demand) // 3
    for context, max_tokens in ((turns + 80, 80), (turns + 50, 50), (turns + 40, 40)):
        assert ask(repairs, request, FailureCode.TRUNCATED, context=context).sampling["max_tokens"] == max_tokens
    left = ask(repairs, request, FailureCode.TRUNCATED, context=turns + 39)
    assert left.repairs[-1].step is not RepairStep.SHOWN


def test_what_cannot_be_shown_is_asked_again() -> None:
    repairs = repairs_of("retry_longer")
    twice = ask(repairs, ask(repairs, REQUEST, FailureCode.INVALID_OUTPUT), FailureCode.INVALID_OUTPUT)
    for text, context, prompt in ((" \n", CONTEXT, None), ("BAD", 150, None), ("BAD", CONTEXT, {"text": "{{ body }}"})):
        found = ask(repairs_of("retry_longer", prompt=prompt), twice, FailureCode.INVALID_OUTPUT, text, context)
        assert found.repairs[-1].step is RepairStep.AGAIN
        assert found.messages == ASKED


def test_however_often_it_is_shown_the_document_stays_in_the_prompt() -> None:
    repairs, request = repairs_of("retry_longer", max_repairs=5), REQUEST
    for number in range(5):
        request = ask(repairs, request, FailureCode.INVALID_OUTPUT, f"BAD {number}")
        assert request.messages[: len(ASKED)] == ASKED
        assert len(request.messages) <= len(ASKED) + 2
    assert request.messages[-2].content == "BAD 4"
    assert [one.step for one in request.repairs].count(RepairStep.SHOWN) == 3


def test_of_several_answers_the_one_that_was_not_kept_is_shown_and_takes_its_own_room() -> None:
    repairs = repairs_of("retry_longer", n=3, temperature=0.5)
    twice = ask(repairs, ask(repairs, REQUEST, FailureCode.INVALID_OUTPUT), FailureCode.INVALID_OUTPUT)
    outputs: list[Any] = [
        {"text": text, "finish_reason": "stop", "output_tokens": num_tokens}
        for text, num_tokens in (("good", 5), ("BAD", 6), ("fine", 50))
    ]
    completion = Completion(HASH, "good", "stop", 30, 0, 61, 0.0, 0.0, 0.0, details={"outputs": outputs})
    failure = decide_outcome(twice, completion, submitted_at_s=0.0, now=datetime.now(UTC), contract=repairs.contract)
    assert isinstance(failure, Failure)
    # 30 of the prompt, 6 of the answer that is shown, what is said of it, 80 of the next.
    turns = 30 + 6 + 96 + len(repairs.contract.demand) // 3
    found = repairs.find_next(twice, completion, failure, turns + 80)
    assert found is not None
    assert found.messages[-2] == Message("assistant", "BAD")
    assert "(answer 2 of 3)" in found.messages[-1].content
    last = found.repairs[-1]
    assert (last.step, last.raw_output, last.output_tokens) == (RepairStep.SHOWN, "BAD", 6)
    assert found.sampling["max_tokens"] == 80


def test_an_answer_that_cannot_be_read_is_repaired_like_any_other() -> None:
    completion = Completion(HASH, "thought, and 4", "stop", 30, 0, 20, 0.0, 0.0, 0.0, fault="the parser failed on it")
    repairs = repairs_of("retry")
    failure = decide_outcome(REQUEST, completion, submitted_at_s=0.0, now=datetime.now(UTC), contract=repairs.contract)
    assert isinstance(failure, Failure)
    found = repairs.find_next(REQUEST, completion, failure, CONTEXT)
    assert found is not None
    assert (found.repairs[0].raw_output, found.repairs[0].message) == ("thought, and 4", "the parser failed on it")
