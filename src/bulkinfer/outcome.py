"""What a document ends with: a Result or a Failure, and how many failures are too many. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bulkinfer.constraints import write_json
from bulkinfer.contract import ANY_ANSWER, Broken, Contract, Kept, judge_vector
from bulkinfer.job import FailureLimit
from bulkinfer.records import (
    Completion,
    Document,
    Failure,
    FailureCode,
    FinishReason,
    JsonValue,
    Outcome,
    Rejection,
    Request,
    Result,
    UnreadableRow,
)

MAX_ATTEMPTS = 3
"""So often a request is asked in one run when the engine fails on it for a reason of its own."""
MIN_OUTCOMES_FOR_SHARE = 200
"""A share of fewer outcomes says little: one failure in the first ten would end a run with a limit of 5%."""

_BY_LENGTH = (FailureCode.PROMPT_TOO_LONG, FailureCode.TRUNCATED, FailureCode.INVALID_OUTPUT)
"""Failures that may well go with the length of a document: its prompt, or the answer that it takes."""

_IS_RETRYABLE: Mapping[FailureCode, bool] = {
    FailureCode.UNREADABLE_ROW: False,
    FailureCode.MISSING_FIELD: False,
    FailureCode.INVALID_FIELD: False,
    FailureCode.TEMPLATE_ERROR: False,
    FailureCode.EMPTY_PROMPT: False,
    FailureCode.PROMPT_TOO_LONG: False,
    FailureCode.ENGINE_REJECTED: False,
    FailureCode.TRUNCATED: False,
    FailureCode.INVALID_OUTPUT: False,
    FailureCode.ENGINE_ERROR: True,
    # Asked again each night it would end the engine each night.
    FailureCode.ENGINE_KILLER: False,
}


def decide_outcome(
    request: Request,
    event: Completion | Rejection,
    *,
    submitted_at_s: float,
    now: datetime,
    contract: Contract = ANY_ANSWER,
    vector_size: int | None = None,
) -> Outcome:
    """What the engine's word on a request means for its document, and for the contract of its job.

    `submitted_at_s`, when the engine was given the request, is on the engine's clock, as is `request.queued_at_s`: the
    durations of a Result count from entering the queue, those of a Completion from being submitted. `vector_size`: how
    many numbers each vector of the model has; None where that is not known.
    """
    if isinstance(event, Rejection):
        return fail_request(request, event.code, event.message, None, now)
    judged = _judge(event, contract, vector_size)
    if isinstance(judged, Kept):
        return _succeed(request, event, judged, max(submitted_at_s - request.queued_at_s, 0.0), now)
    return fail_request(request, judged.code, judged.message, judged.text, now, _add_adapter(event.details, request))


def fail_unreadable(row: UnreadableRow, now: datetime) -> Failure:
    """The outcome of a row that could not be read. It has no attempts: the engine never saw it."""
    details = None if row.parameter is None else {"parameter": row.parameter}
    return _fail_unseen(row, row.digest, FailureCode.UNREADABLE_ROW, row.reason, now, details)


def fail_document(document: Document, document_hash: bytes, code: FailureCode, message: str, now: datetime) -> Failure:
    """The outcome of a document that gives no prompt. It has no attempts: the engine never saw it."""
    return _fail_unseen(document, document_hash, code, message, now)


def fail_request(
    request: Request,
    code: FailureCode,
    message: str,
    raw_output: str | None,
    now: datetime,
    details: Mapping[str, JsonValue] | None = None,
) -> Failure:
    """The outcome of a request that came to nothing; `raw_output` is what the engine wrote."""
    return Failure(
        document_hash=request.document_hash,
        origin=request.origin,
        code=code,
        message=message,
        raw_output=raw_output,
        attempts=request.attempt,
        retryable=is_retryable(code),
        failed_at=now,
        details=details,
    )


def is_retryable(code: FailureCode) -> bool:
    """Whether the same document may well succeed with the same settings another time."""
    return _IS_RETRYABLE[code]


def is_over_limit(limit: FailureLimit, num_failed: int, num_outcomes: int, *, is_final: bool) -> bool:
    """Whether more documents failed than the job allows. `num_outcomes` are results and failures together.

    A count holds at once; a share from the first 200 outcomes on and at the end. A run in which every document failed
    is over any limit: no setting makes it a success.
    """
    if is_final and num_failed == num_outcomes > 0:
        return True
    is_enough = is_final or limit.count is not None or num_outcomes >= MIN_OUTCOMES_FOR_SHARE
    return is_enough and _exceeds(limit, num_failed, num_outcomes)


def expect_failures(
    failed_by_code: Mapping[FailureCode, int], num_succeeded: int, num_unaskable: int, num_to_do: int
) -> int:
    """Failures among `num_to_do` documents, if the rest fares as those that the engine has run already.

    Counted as they are, not as a sample: the `num_unaskable` rows of which no request can be made, which are all known
    before the first answer, and what goes with the length of a document, because the longest go first.
    """
    num_failed = sum(failed_by_code.values())
    num_counted = num_unaskable + sum(failed_by_code.get(code, 0) for code in _BY_LENGTH)
    num_left_out = num_unaskable + failed_by_code.get(FailureCode.PROMPT_TOO_LONG, 0)
    num_run = num_succeeded + num_failed - num_left_out
    if num_run < MIN_OUTCOMES_FOR_SHARE:
        return num_failed
    return num_counted + (num_failed - num_counted) * (num_to_do - num_left_out) // num_run


def describe_excess(limit: FailureLimit, num_failed: int, num_outcomes: int) -> str:
    """Why so many failures are too many."""
    if _exceeds(limit, num_failed, num_outcomes):
        return f"{num_failed:,} of {num_outcomes:,} documents failed, above max_failures {limit}"
    return f"all {num_failed:,} documents failed: that is no success, whatever max_failures allows"


def _exceeds(limit: FailureLimit, num_failed: int, num_outcomes: int) -> bool:
    if limit.count is not None:
        return num_failed > limit.count
    # 0.29 * 100 is a little below 29 in binary: half a document of leeway would be wrong, a millionth is not.
    return num_failed - (limit.share or 0.0) * num_outcomes > 1e-6


@dataclass(frozen=True, slots=True)
class _Answer:
    """One of the answers to a request."""

    text: str
    finish_reason: str
    output_tokens: int
    fault: str | None
    """Why it could not be read."""


@dataclass(frozen=True, slots=True)
class _Unkept:
    """Why a completion is no answer, and the text that is to blame."""

    code: FailureCode
    message: str
    text: str


def _list_answers(completion: Completion) -> list[_Answer]:
    """All answers; where there are several, `details` has them."""
    outputs: Any = (completion.details or {}).get("outputs", ())  # as `engines.answers` made it
    several = [
        _Answer(one["text"], one["finish_reason"], one["output_tokens"], one.get("fault") or None) for one in outputs
    ]
    return several or [
        _Answer(completion.text, completion.finish_reason, completion.output_tokens, completion.fault),
    ]


def _judge(completion: Completion, contract: Contract, vector_size: int | None) -> Kept | _Unkept:
    """What is kept of an answer; else why it is none."""
    reason = completion.finish_reason
    # What an engine ends is the text of the answer that it ended.
    text = next((one.text for one in _list_answers(completion) if one.finish_reason == reason), completion.text)
    match reason:
        case FinishReason.STOP:
            return _hold_to(contract, completion, vector_size)
        case FinishReason.LENGTH:
            advice = "`run --only truncated --set sampling.max_tokens=N` asks it again"
            if contract.accepts_truncated:
                judged = _hold_to(contract, completion, vector_size)
                if isinstance(judged, Kept):
                    return judged
                advice = f"{judged.message}; {advice}"
            return _Unkept(FailureCode.TRUNCATED, f"{_describe_cut(completion)}; {advice}", text)
        case FinishReason.REPETITION:
            message = "the engine ended the answer because it repeated itself"
        case FinishReason.WHITE_SPACE:
            message = "the engine ended the answer because it went on with white space alone"
        case _:
            # abort, error, and what later engines may add: none of them is an answer.
            return _Unkept(FailureCode.ENGINE_ERROR, f"the engine ended the request with {reason!r}", text)
    return _Unkept(FailureCode.INVALID_OUTPUT, message, text)


def _hold_to(contract: Contract, completion: Completion, vector_size: int | None) -> Kept | _Unkept:
    """Of several answers, each must be what was promised; their value is the list of all."""
    if contract.is_vector:
        judged = judge_vector(completion.vector or b"", vector_size)
        if isinstance(judged, Broken):
            return _Unkept(FailureCode.INVALID_OUTPUT, judged.reason, completion.text)
        return judged
    kept = []
    answers = _list_answers(completion)
    for number, answer in enumerate(answers, start=1):
        judged = _judge_answer(contract, answer)
        if isinstance(judged, Broken):
            which = f" (answer {number} of {len(answers)})" if len(answers) > 1 else ""
            return _Unkept(FailureCode.INVALID_OUTPUT, f"{judged.reason}{which}", answer.text)
        kept.append(judged)
    if len(answers) == 1:
        return kept[0]
    values = (
        write_json(answer.text) if one.value is None else one.value for one, answer in zip(kept, answers, strict=True)
    )
    return Kept(f"[{','.join(values)}]")


def _judge_answer(contract: Contract, answer: _Answer) -> Kept | Broken:
    if answer.fault is not None:
        return Broken(answer.fault)
    if not answer.text.strip() and not contract.allows_blank:
        return Broken("the answer is empty or only white space")
    return contract.judge(answer.text)


def _describe_cut(completion: Completion) -> str:
    answers = _list_answers(completion)
    if len(answers) == 1:
        return f"the answer was cut at {completion.output_tokens} tokens"
    cut = [answer for answer in answers if answer.finish_reason == FinishReason.LENGTH]
    return f"{len(cut)} of {len(answers)} answers were cut, the first at {cut[0].output_tokens} tokens"


def _add_adapter(details: Mapping[str, JsonValue] | None, request: Request) -> Mapping[str, JsonValue] | None:
    return details if request.adapter is None else {**(details or {}), "adapter": request.adapter}


def _succeed(request: Request, completion: Completion, kept: Kept, waited_s: float, now: datetime) -> Result:
    return Result(
        document_hash=request.document_hash,
        output=completion.text if kept.output is None else kept.output,
        value=kept.value,
        finish_reason=completion.finish_reason,
        prompt_tokens=completion.prompt_tokens,
        cached_tokens=completion.cached_tokens,
        output_tokens=completion.output_tokens,
        queue_s=waited_s + completion.queue_s,
        first_token_s=waited_s + completion.first_token_s,
        total_s=waited_s + completion.total_s,
        attempts=request.attempt,
        completed_at=now,
        details=_add_adapter(completion.details, request),
        vector=completion.vector,
    )


def _fail_unseen(
    row: Document | UnreadableRow,
    document_hash: bytes,
    code: FailureCode,
    message: str,
    now: datetime,
    details: Mapping[str, JsonValue] | None = None,
) -> Failure:
    return Failure(
        document_hash=document_hash,
        origin=row.origin,
        code=code,
        message=message,
        raw_output=None,
        attempts=0,
        retryable=is_retryable(code),
        failed_at=now,
        details=details,
    )
