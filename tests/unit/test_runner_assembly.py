"""A document in parts: whatever fits together, its answers come out in order, once each, and it comes to an end."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkinfer.prompt import DocumentFault
from bulkinfer.prompt.joining import JoinTemplate
from bulkinfer.records import (
    Failure,
    FailureCode,
    Message,
    Origin,
    PartAnswer,
    Rejection,
    Request,
    Result,
    Span,
)
from bulkinfer.runner.assembly import Assembly

HASH = b"d" * 16
ORIGIN = Origin("a.jsonl", 1, "a")


def make_template(combine: str = "{{ parts | join('') }}") -> JoinTemplate:
    return JoinTemplate.parse(combine)


def make_assembly(num_parts: int, template: JoinTemplate | None = None) -> Assembly:
    """A document whose parts are one letter each."""
    body = "".join(chr(ord("a") + number % 26) for number in range(num_parts))
    messages = (Message("system", "S"), Message("user", f"<{body}>"))
    request = Request(HASH, ORIGIN, messages, 9, spans=(Span(1, 1, 1 + num_parts),), fields={})
    cuts = tuple((number, number + 1) for number in range(num_parts))
    rejection = Rejection(HASH, FailureCode.PROMPT_TOO_LONG, "too long", 900, 90, cuts, 80)
    return Assembly(request, rejection, template or make_template())


def make_answer(output: str, attempts: int = 1, finish_reason: str = "stop", *repairs: str) -> PartAnswer:
    told = [{"then": step} for step in repairs]
    return PartAnswer(output.encode(), HASH, output, 10, 2, 3, attempts, datetime.now(UTC), finish_reason, told)


def make_result(queue_s: float = 0.5, total_s: float = 1.1, finish_reason: str = "stop") -> Result:
    durations = queue_s, max(queue_s, total_s - 0.1), total_s
    return Result(b"part", "both", None, finish_reason, 10, 2, 3, *durations, 1, datetime.now(UTC), {"logprobs": []})


def make_failure(code: FailureCode = FailureCode.TRUNCATED) -> Failure:
    return Failure(b"part", ORIGIN, code, "cut", "half", 2, False, datetime.now(UTC))


def drive(assembly: Assembly, room: int) -> str | None:
    """Answer every question with what it asks, unless that is longer than `room`; None where it comes to none."""
    for _ in range(10_000):
        number = assembly.unasked.popleft()
        prompt = assembly.make_prompt(number)
        assert not isinstance(prompt, DocumentFault)
        text = prompt[-1].content.strip("<>")
        if len(text) > room:
            if not assembly.regroup(number, Rejection(b"", FailureCode.PROMPT_TOO_LONG, "", len(text), room)):
                return None
        elif assembly.note_answer(number, make_answer(text), make_result()):
            assert not assembly.unasked
            return text
    raise AssertionError("it does not come to an end")


@given(st.integers(2, 300), st.integers(1, 400))
def test_answers_are_joined_in_order_in_as_many_steps_as_it_takes(num_parts: int, room: int) -> None:
    assembly = make_assembly(num_parts)
    joined = drive(assembly, room)
    if room >= num_parts:
        assert joined == "".join(chr(ord("a") + number % 26) for number in range(num_parts))
    else:
        assert joined is None, "what joins all of them is as long as they are"


@given(st.integers(2, 300), st.integers(2, 40))
def test_where_joining_makes_it_shorter_it_always_comes_to_one_answer(num_parts: int, room: int) -> None:
    template = make_template("{{ parts | length }}{% for part in parts %}x{% endfor %}")
    assembly = make_assembly(num_parts, template)
    asked = 0
    while True:
        asked += 1
        number = assembly.unasked.popleft()
        prompt = assembly.make_prompt(number)
        assert not isinstance(prompt, DocumentFault)
        num_joined = prompt[-1].content.count("x")
        if num_joined > room:
            assert assembly.regroup(number, Rejection(b"", FailureCode.PROMPT_TOO_LONG, "", num_joined, room))
        elif assembly.note_answer(number, make_answer("y"), None):
            break
    assert asked <= 4 * num_parts + 10


def test_a_part_has_the_job_s_text_and_a_join_the_system_message() -> None:
    assembly = make_assembly(3)
    assert assembly.make_prompt(1) == (Message("system", "S"), Message("user", "<b>"))
    for number in range(3):
        assembly.note_answer(assembly.unasked.popleft(), make_answer(f"({number})"), None)
    (number,) = assembly.unasked
    assert assembly.make_prompt(number) == (Message("system", "S"), Message("user", "(0)(1)(2)"))


def test_the_document_s_result_sums_up_what_was_asked_for_it() -> None:
    assembly = make_assembly(2)
    assembly.note_answer(0, make_answer("one", attempts=3), make_result(0.4, 0.6))
    assembly.note_answer(1, make_answer("two"), make_result(0.2, 0.5))
    asked = make_result(0.9, 1.1)
    assert assembly.note_answer(2, make_answer("both"), asked)
    result = assembly.finish(asked)
    assert (result.document_hash, result.output) == (HASH, "both")
    assert (result.prompt_tokens, result.cached_tokens, result.output_tokens, result.attempts) == (30, 6, 9, 3)
    assert (result.queue_s, result.first_token_s, result.total_s) == (0.2, 1.0, 1.1)
    overlong = {"policy": "split", "tokens_before": 900, "tokens_after": 80, "parts": 2}
    assert result.details == {"logprobs": [], "overlong": overlong}
    assert result.finish_reason == "stop"
    assert assembly.finish_known(make_answer("both")).details == {"overlong": overlong}


def test_a_document_whose_last_question_was_known_waited_for_what_was_run_besides() -> None:
    assembly = make_assembly(2)
    assembly.note_answer(0, make_answer("one"), make_result(0.4, 0.6))
    assembly.note_answer(1, make_answer("two"), make_result(3.0, 5.0))
    answer = make_answer("both")
    assert assembly.note_answer(2, answer, None)
    known = assembly.finish_known(answer)
    assert (known.queue_s, known.first_token_s, known.total_s) == (0.4, 5.0, 5.0)
    nothing_run = make_assembly(1)
    nothing_run.note_answer(0, answer, None)
    known = nothing_run.finish_known(answer)
    assert (known.queue_s, known.first_token_s, known.total_s) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("reasons", "finish_reason", "num_cut"),
    [("stop stop stop", "stop", None), ("stop length stop", "length", 1), ("length stop length", "length", 2)],
)
def test_a_document_of_cut_answers_says_so(reasons: str, finish_reason: str, num_cut: int | None) -> None:
    assembly = make_assembly(2)
    for number, reason in enumerate(reasons.split()):
        answer, run = make_answer("x", 1, reason), make_result(finish_reason=reason)
        assembly.note_answer(number, answer, run)
    for result in (assembly.finish(run), assembly.finish_known(answer)):
        assert result.finish_reason == finish_reason
        assert result.details is not None
        overlong: Any = result.details["overlong"]
        assert overlong.get("parts_cut") == num_cut


def test_repairs_of_every_question_are_told_with_the_question() -> None:
    assembly = make_assembly(3)
    for number, steps in ((2, ["longer", "shown"]), (0, []), (1, ["longer"])):
        assembly.note_answer(number, make_answer("x", 1 + len(steps), "stop", *steps), make_result())
    told = [{"part": 2, "then": "longer"}, {"part": 3, "then": "longer"}, {"part": 3, "then": "shown"}]
    failure = replace(make_failure(), details={"repairs": [{"then": "again"}], "reasoning": "hm"})
    details = assembly.fail(3, failure).details
    assert details is not None
    assert (details["reasoning"], details["repairs"]) == ("hm", [*told, {"joins": 3, "then": "again"}])
    assembly = make_assembly(1)
    assembly.note_answer(0, make_answer("x", 2, "stop", "again"), make_result())
    details = assembly.finish(make_result()).details
    assert details is not None
    assert details["repairs"] == [{"part": 1, "then": "again"}]


def test_the_document_s_failure_names_the_part() -> None:
    assembly = make_assembly(12)
    failure = assembly.fail(3, make_failure())
    assert (failure.document_hash, failure.code, failure.raw_output) == (HASH, FailureCode.TRUNCATED, "half")
    assert failure.message == "part 4 of 12: cut"
    for _ in range(12):
        assembly.note_answer(assembly.unasked.popleft(), make_answer("x"), None)
    joining = assembly.fail(assembly.unasked[0], make_failure(FailureCode.PROMPT_TOO_LONG))
    assert joining.message.startswith("joining the answers to its 12 parts: cut; two answers cannot be joined")


def test_a_join_that_cannot_be_made_is_known_before_the_parts_are_asked() -> None:
    assembly = make_assembly(3, make_template("{{ parts }}{{ author }}"))
    fault = assembly.find_fault()
    assert fault is not None
    assert fault.code is FailureCode.MISSING_FIELD
    assert assembly.fail_unasked(fault).code is FailureCode.MISSING_FIELD
    assert make_assembly(3).find_fault() is None


def test_one_part_alone_is_the_document_s_answer() -> None:
    assembly = make_assembly(1)
    assert assembly.note_answer(0, make_answer("whole"), None)
