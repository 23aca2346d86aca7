"""The outcome of a request, and the failure limit."""

import math
from array import array
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from bulkinfer.contract import Broken, Contract, Kept, make_contract
from bulkinfer.job import FailureLimit, JobSpec
from bulkinfer.outcome import (
    decide_outcome,
    describe_excess,
    fail_document,
    fail_unreadable,
    is_over_limit,
    is_retryable,
)
from bulkinfer.records import (
    Completion,
    Document,
    Failure,
    FailureCode,
    Message,
    Origin,
    Outcome,
    Rejection,
    Request,
    Result,
    UnreadableRow,
)

NOW = datetime(2025, 3, 1, 12, 0, tzinfo=UTC)
HASH = bytes(range(16))
ORIGIN = Origin("tickets.jsonl", 7, "T-7")
REQUEST = Request(HASH, ORIGIN, (Message("user", "hello"),), 5, attempt=2, queued_at_s=10.0)


def completion(text: str, finish_reason: str) -> Completion:
    return Completion(HASH, text, finish_reason, 30, 16, 48, queue_s=0.5, first_token_s=1.0, total_s=4.0)


def decide_failure(event: Completion | Rejection) -> Failure:
    outcome = decide_outcome(REQUEST, event, submitted_at_s=12.0, now=NOW)
    assert isinstance(outcome, Failure)
    return outcome


def test_stop_gives_a_result_whose_durations_count_from_entering_the_queue() -> None:
    outcome = decide_outcome(REQUEST, completion(" yes\n", "stop"), submitted_at_s=12.0, now=NOW)
    assert outcome == Result(HASH, " yes\n", None, "stop", 30, 16, 48, 2.5, 3.0, 6.0, 2, NOW)


def test_a_clock_that_lags_gives_no_negative_wait() -> None:
    outcome = decide_outcome(REQUEST, completion("yes", "stop"), submitted_at_s=9.0, now=NOW)
    assert isinstance(outcome, Result)
    assert outcome.queue_s == 0.5


def contract_of(task: dict[str, Any], prompt: dict[str, str]) -> Contract:
    files = {"input": {"path": "a.jsonl"}, "model": {"path": "org/name"}, "output": {"database": "a.duckdb"}}
    return make_contract(JobSpec.model_validate({"name": "a", "task": task, "prompt": prompt, **files}))


SCORE = contract_of({"kind": "score"}, {"query": "x", "document": "y"})


def vector_of(*numbers: float) -> Completion:
    return replace(completion("", "stop"), output_tokens=0, vector=array("f", numbers).tobytes())


def decide_vector(event: Completion, vector_size: int | None = 3) -> Outcome:
    contract = contract_of({"kind": "embed"}, {"text": "x"})
    return decide_outcome(REQUEST, event, submitted_at_s=12.0, now=NOW, contract=contract, vector_size=vector_size)


@pytest.mark.parametrize("vector_size", [3, None])
def test_a_vector_of_finite_numbers_is_a_result_without_text(vector_size: int | None) -> None:
    outcome = decide_vector(vector_of(3e38, 3e38, -0.5), vector_size)
    assert isinstance(outcome, Result)
    assert (outcome.output, outcome.value, outcome.output_tokens) == ("", None, 0)
    assert outcome.vector == array("f", [3e38, 3e38, -0.5]).tobytes()


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((1.0, math.nan, 0.5), "the vector holds numbers that are not finite"),
        ((math.inf, -math.inf, 0.5), "the vector holds numbers that are not finite"),
        ((1.0, 2.0), "the vector has 2 numbers, and the model's have 3"),
        ((1.0, 2.0, 3.0, 4.0), "the vector has 4 numbers, and the model's have 3"),
        ((), "the vector has 0 numbers, and the model's have 3"),
    ],
)
def test_a_vector_that_is_none_is_a_failure(numbers: tuple[float, ...], message: str) -> None:
    outcome = decide_vector(vector_of(*numbers))
    assert isinstance(outcome, Failure)
    assert (outcome.code, outcome.message, outcome.retryable) == (FailureCode.INVALID_OUTPUT, message, False)


def test_no_vector_where_one_was_promised_is_a_failure() -> None:
    for event in (completion("text", "stop"), vector_of()):
        assert isinstance(decide_vector(event, None), Failure)


@pytest.mark.parametrize("text", ["0.25", "-1.5", "1e-07", "0.0"])
def test_a_score_is_its_number(text: str) -> None:
    event = replace(completion(text, "stop"), details={"scored_by": "cosine"})
    outcome = decide_outcome(REQUEST, event, submitted_at_s=12.0, now=NOW, contract=SCORE)
    assert isinstance(outcome, Result)
    assert (outcome.output, outcome.value, outcome.details) == (text, text, {"scored_by": "cosine"})


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "", "high"])
def test_a_score_that_is_no_finite_number_is_a_failure(text: str) -> None:
    event = completion(text, "stop")
    outcome = decide_outcome(REQUEST, event, submitted_at_s=12.0, now=NOW, contract=SCORE)
    assert isinstance(outcome, Failure)
    assert (outcome.code, outcome.raw_output) == (FailureCode.INVALID_OUTPUT, text)


@pytest.mark.parametrize(
    ("text", "finish_reason", "code", "retryable"),
    [
        ("", "stop", "invalid_output", False),
        (" \n\t", "stop", "invalid_output", False),
        ("half an ans", "length", "truncated", False),
        ("", "length", "truncated", False),
        ("no no no no", "repetition", "invalid_output", False),
        ("half", "abort", "engine_error", True),
        ("", "error", "engine_error", True),
        ("whole", "a reason of a later engine", "engine_error", True),
    ],
)
def test_any_other_end_is_a_failure_that_keeps_the_raw_output(
    text: str, finish_reason: str, code: str, retryable: bool
) -> None:
    failure = decide_failure(completion(text, finish_reason))
    assert (failure.code, failure.raw_output, failure.retryable) == (code, text, retryable)
    assert (failure.origin, failure.attempts, failure.failed_at) == (ORIGIN, 2, NOW)
    assert not text.strip() or text not in failure.message


def test_truncation_names_the_length_and_the_key_to_raise() -> None:
    message = decide_failure(completion("half an ans", "length")).message
    assert (
        message == "the answer was cut at 48 tokens; `run --only truncated --set sampling.max_tokens=N` asks it again"
    )


def test_a_rejection_keeps_its_code_and_message() -> None:
    failure = decide_failure(Rejection(HASH, FailureCode.PROMPT_TOO_LONG, "3000 of 2048 tokens", 3000))
    assert failure == Failure(HASH, ORIGIN, FailureCode.PROMPT_TOO_LONG, "3000 of 2048 tokens", None, 2, False, NOW)


def test_documents_that_the_engine_never_saw_have_no_attempts() -> None:
    row = UnreadableRow(ORIGIN, HASH, "tickets.jsonl, line 7: not JSON")
    assert fail_unreadable(row, NOW) == Failure(
        HASH, ORIGIN, FailureCode.UNREADABLE_ROW, "tickets.jsonl, line 7: not JSON", None, 0, False, NOW
    )
    failure = fail_document(Document(ORIGIN, {}), HASH, FailureCode.MISSING_FIELD, "the field body is absent", NOW)
    assert failure == Failure(HASH, ORIGIN, FailureCode.MISSING_FIELD, "the field body is absent", None, 0, False, NOW)


def test_every_code_says_whether_it_may_be_retried() -> None:
    assert {code for code in FailureCode if is_retryable(code)} == {"engine_error"}


@pytest.mark.parametrize(
    ("limit", "num_failed", "num_outcomes", "is_final", "is_over"),
    [
        (FailureLimit(count=3), 3, 10, False, False),
        (FailureLimit(count=3), 4, 10, False, True),
        (FailureLimit(count=0), 1, 2, False, True),
        (FailureLimit(count=0), 0, 0, True, False),
        (FailureLimit(share=0.05), 199, 199, False, False),
        (FailureLimit(share=0.05), 10, 200, False, False),
        (FailureLimit(share=0.05), 11, 200, False, True),
        (FailureLimit(share=0.05), 1, 10, False, False),
        (FailureLimit(share=0.05), 1, 10, True, True),
        (FailureLimit(share=0.29), 29, 100, True, False),
        (FailureLimit(share=0.29), 30, 100, True, True),
        (FailureLimit(share=0.0), 1, 1_000_000, False, True),
        (FailureLimit(share=1.0), 500, 500, False, False),
        (FailureLimit(share=1.0), 500, 500, True, True),
        (FailureLimit(count=1000), 1, 1, True, True),
        (FailureLimit(count=1000), 1, 2, True, False),
        (FailureLimit(share=0.05), 0, 0, True, False),
    ],
)
def test_failure_limit(limit: FailureLimit, num_failed: int, num_outcomes: int, is_final: bool, is_over: bool) -> None:
    assert is_over_limit(limit, num_failed, num_outcomes, is_final=is_final) is is_over


@pytest.mark.parametrize(
    ("limit", "num_failed", "num_outcomes", "expected"),
    [
        (FailureLimit(count=5), 6, 1_000, "6 of 1,000 documents failed, above max_failures 5"),
        (FailureLimit(share=0.05), 1_100, 2_000, "1,100 of 2,000 documents failed, above max_failures 5%"),
        (FailureLimit(share=0.5), 2, 2, "2 of 2 documents failed, above max_failures 50%"),
        (FailureLimit(share=1.0), 2, 2, "all 2 documents failed: that is no success, whatever max_failures allows"),
        (FailureLimit(count=5), 2, 2, "all 2 documents failed: that is no success, whatever max_failures allows"),
    ],
)
def test_what_is_said_of_too_many_failures_is_so(
    limit: FailureLimit, num_failed: int, num_outcomes: int, expected: str
) -> None:
    assert is_over_limit(limit, num_failed, num_outcomes, is_final=True)
    assert describe_excess(limit, num_failed, num_outcomes) == expected


JSON_CONTRACT = Contract(
    lambda text: Kept(text) if text.startswith("{") else Broken("the answer is not JSON"),
    "JSON",
    accepts_truncated=True,
)


@pytest.mark.parametrize(
    ("text", "finish_reason", "contract", "ending"),
    [
        ("{}", "stop", JSON_CONTRACT, "{}"),
        ("no", "stop", JSON_CONTRACT, "the answer is not JSON"),
        ("{}", "length", JSON_CONTRACT, "{}"),
        ("no", "length", JSON_CONTRACT, "cut at 48 tokens; the answer is not JSON"),
        (
            "{}",
            "length",
            replace(JSON_CONTRACT, accepts_truncated=False),
            "cut at 48 tokens; `run --only truncated",
        ),
        (" ", "length", JSON_CONTRACT, "the answer is empty or only white space"),
        ("{ ", "white_space", JSON_CONTRACT, "white space alone"),
        ("{}", "repetition", JSON_CONTRACT, "repeated itself"),
    ],
)
def test_answers_are_held_to_the_contract_of_their_job(
    text: str, finish_reason: str, contract: Contract, ending: str
) -> None:
    outcome = decide_outcome(REQUEST, completion(text, finish_reason), submitted_at_s=12.0, now=NOW, contract=contract)
    if isinstance(outcome, Result):
        assert (outcome.value, outcome.finish_reason) == (ending, finish_reason)
    else:
        assert ending in outcome.message
        assert outcome.raw_output == text
        assert outcome.code == ("truncated" if finish_reason == "length" else "invalid_output")


def test_a_label_is_kept_without_the_white_space_around_it() -> None:
    contract = Contract(lambda text: Kept(f'"{text.strip()}"', text.strip()), "a label")
    outcome = decide_outcome(REQUEST, completion(" spam\n", "stop"), submitted_at_s=12.0, now=NOW, contract=contract)
    assert isinstance(outcome, Result)
    assert (outcome.output, outcome.value) == ("spam", '"spam"')


def several(*texts: str, finish_reason: str = "stop", **more: object) -> Completion:
    """A completion of these answers; those in capitals end for this reason."""
    outputs: list[Any] = [
        {"text": text, "finish_reason": finish_reason if text.isupper() else "stop", "output_tokens": 4, **more}
        for text in texts
    ]
    return replace(completion(texts[0], finish_reason), details={"outputs": outputs})


def test_each_of_several_answers_is_held_to_the_contract_and_their_value_is_a_list() -> None:
    event = several("{}", "{1}")
    outcome = decide_outcome(REQUEST, event, submitted_at_s=12.0, now=NOW, contract=JSON_CONTRACT)
    assert isinstance(outcome, Result)
    assert outcome.value == "[{},{1}]"
    strings = decide_outcome(REQUEST, several("a", 'b"'), submitted_at_s=12.0, now=NOW)
    assert isinstance(strings, Result)
    assert strings.value == '["a","b\\""]'


@pytest.mark.parametrize(
    ("event", "code", "message", "raw_output"),
    [
        (several("{}", "no", "nor this"), "invalid_output", "the answer is not JSON (answer 2 of 3)", "no"),
        (several("{}", " "), "invalid_output", "the answer is empty or only white space (answer 2 of 2)", " "),
        (several("{}", "{A", finish_reason="length"), "truncated", "1 of 2 answers were cut, the first at 4", "{A"),
        (several("{}", "{A", finish_reason="repetition"), "invalid_output", "repeated itself", "{A"),
        (several("{}", "{A", finish_reason="abort"), "engine_error", "'abort'", "{A"),
    ],
)
def test_of_several_answers_the_one_that_is_to_blame_is_told_and_kept(
    event: Completion, code: str, message: str, raw_output: str
) -> None:
    contract = replace(JSON_CONTRACT, accepts_truncated=False)
    outcome = decide_outcome(REQUEST, event, submitted_at_s=12.0, now=NOW, contract=contract)
    assert isinstance(outcome, Failure)
    assert (outcome.code, outcome.raw_output) == (code, raw_output)
    assert message in outcome.message


@pytest.mark.parametrize(
    ("finish_reason", "accepts_truncated", "code"),
    [("stop", False, "invalid_output"), ("length", False, "truncated"), ("length", True, "truncated")],
)
def test_an_answer_that_cannot_be_read_is_a_failure_with_its_text(
    finish_reason: str, accepts_truncated: bool, code: str
) -> None:
    event = replace(completion("thought, and {}", finish_reason), fault="the parser failed")
    contract = Contract(lambda _: Kept(None), "an answer", accepts_truncated)
    outcome = decide_outcome(REQUEST, event, submitted_at_s=12.0, now=NOW, contract=contract)
    assert isinstance(outcome, Failure)
    assert (outcome.code, outcome.raw_output) == (code, "thought, and {}")
    assert ("the parser failed" in outcome.message) is (finish_reason == "stop" or accepts_truncated)
    one_of_two = several("x", fault="the parser failed")
    assert isinstance(decide_outcome(REQUEST, one_of_two, submitted_at_s=12.0, now=NOW, contract=contract), Failure)


@pytest.mark.parametrize(
    ("regex", "text", "value"), [("x*", "", '""'), (" {0,3}", " ", '" "'), ("x{1,3}", "", None), ("x*", "y", None)]
)
def test_a_match_may_be_empty_where_the_pattern_says_so(regex: str, text: str, value: str | None) -> None:
    task = {"kind": "extract", "regex": regex}
    files = {"input": {"path": "a.jsonl"}, "model": {"path": "org/name"}, "output": {"database": "a.duckdb"}}
    spec = {"name": "a", "task": task, "prompt": {"user": "x"}, "sampling": {"max_tokens": 9}, **files}
    contract = make_contract(JobSpec.model_validate(spec))
    outcome = decide_outcome(REQUEST, completion(text, "stop"), submitted_at_s=12.0, now=NOW, contract=contract)
    assert (outcome.value if isinstance(outcome, Result) else None) == value
