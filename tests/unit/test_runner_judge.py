"""What becomes of what an engine returned: an outcome, or another attempt."""

from typing import Any

import pytest

from bulkinfer.job import JobSpec
from bulkinfer.records import Completion, Failure, FailureCode, Message, Origin, Rejection, Request
from bulkinfer.runner.judge import Judge
from bulkinfer.runner.window import InFlight, Returned

HASH = bytes(16)
REQUEST = Request(HASH, Origin("in.jsonl", 1, "d1"), (Message("user", "What is 2 and 2?"),), 17)
FAULT = "the reasoning parser qwen3 failed on it: RuntimeError"


def judge_of(**output: object) -> Judge:
    files = {"input": {"path": "a.jsonl"}, "model": {"path": "org/name"}}
    sections = {"prompt": {"user": "{{ body }}"}, "sampling": {"max_tokens": 40}}
    return Judge(
        JobSpec.model_validate({"name": "a", **files, **sections, "output": {"database": "a.duckdb", **output}})
    )


def returned(request: Request, event: Completion | Rejection) -> Returned:
    return Returned(InFlight(request, 0.0), event)


def unreadable(reason: str) -> Completion:
    """An answer on which a reasoning parser failed."""
    return Completion(HASH, "<think>2 and 2</thi", reason, 9, 0, 40, 0.0, 0.0, 0.0, fault=FAULT)


@pytest.mark.parametrize(("reason", "code"), [("stop", FailureCode.INVALID_OUTPUT), ("length", FailureCode.TRUNCATED)])
def test_an_answer_that_cannot_be_read_is_repaired_and_its_last_text_stays(reason: str, code: FailureCode) -> None:
    judge, request = judge_of(repair="retry_longer"), REQUEST
    steps = []
    outcome, again = judge.decide(returned(request, unreadable(reason)), None, 512)
    while again is not None:
        request = again
        steps.append(str(again.repairs[-1].step))
        outcome, again = judge.decide(returned(request, unreadable(reason)), None, 512)
    assert steps == ["again", "longer", "shown"]
    assert isinstance(outcome, Failure)
    assert (outcome.code, outcome.raw_output) == (code, "<think>2 and 2</thi")
    repairs: Any = (outcome.details or {})["repairs"]
    assert [one["output_tokens"] for one in repairs] == [40, 40, 40]
    assert (FAULT in outcome.message) is (reason == "stop")


def test_a_repair_that_is_refused_leaves_what_it_was_to_mend() -> None:
    judge = judge_of(repair="retry")
    _, again = judge.decide(returned(REQUEST, unreadable("length")), None, 512)
    assert again is not None
    refusal = Rejection(HASH, FailureCode.PROMPT_TOO_LONG, "too long", 600)
    outcome, further = judge.decide(returned(again, refusal), None, 512)
    assert further is None
    assert isinstance(outcome, Failure)
    assert (outcome.code, outcome.raw_output) == (FailureCode.TRUNCATED, "<think>2 and 2</thi")
    repairs: Any = (outcome.details or {})["repairs"]
    assert repairs[-1]["refused"] == "prompt_too_long: too long"
