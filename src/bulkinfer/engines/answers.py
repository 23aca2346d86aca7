"""The answers to one request as one completion: several texts, their log probabilities. Knows no engine."""

from collections.abc import Sequence
from dataclasses import dataclass

from bulkinfer.records import FinishReason, JsonValue

LOWEST_LOGPROB = -9999.0
"""Stands for a probability of 0, which JSON has no logarithm for; as in OpenAI's files."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token of an answer."""

    token: str
    logprob: float
    alternatives: Sequence[tuple[str, float]]
    """The likeliest others in its place, the likeliest first."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One of the answers to a request."""

    text: str
    finish_reason: str
    output_tokens: int
    logprobs: Sequence[TokenLogprob] | None = None
    reasoning: str | None = None
    """What a model thought aloud before it, split off."""
    fault: str | None = None
    """Why that could not be split off, without the text."""


@dataclass(frozen=True, slots=True)
class Joined:
    """What a completion says of all answers."""

    text: str
    """Of the first."""
    finish_reason: str
    """`length` if any was cut; else the first that is not `stop`; else `stop`."""
    output_tokens: int
    """Of all."""
    details: dict[str, JsonValue] | None
    fault: str | None = None
    """Of the first that could not be read."""


def join_answers(answers: Sequence[Answer]) -> Joined:
    """All answers to a request, in their order; `details.outputs` where there are several."""
    details: dict[str, JsonValue] = {}
    if len(answers) > 1:
        details["outputs"] = [_describe_answer(one) for one in answers]
    _add(details, "logprobs", [None if one.logprobs is None else _describe(one.logprobs) for one in answers])
    _add(details, "reasoning", [one.reasoning for one in answers])
    reasons = [one.finish_reason for one in answers if one.finish_reason != FinishReason.STOP]
    reason = reasons[0] if reasons else FinishReason.STOP
    return Joined(
        text=answers[0].text,
        finish_reason=FinishReason.LENGTH if FinishReason.LENGTH in reasons else reason,
        output_tokens=sum(one.output_tokens for one in answers),
        details=details or None,
        fault=next((one.fault for one in answers if one.fault is not None), None),
    )


def _describe_answer(answer: Answer) -> dict[str, JsonValue]:
    told: dict[str, JsonValue] = {"text": answer.text, "finish_reason": str(answer.finish_reason)}
    told["output_tokens"] = answer.output_tokens
    return told if answer.fault is None else {**told, "fault": answer.fault}


def _add(details: dict[str, JsonValue], name: str, values: Sequence[JsonValue]) -> None:
    """One value where there is one answer, else a list of them; nothing where there are none."""
    if any(value is not None for value in values):
        details[name] = values if len(values) > 1 else values[0]


def _describe(logprobs: Sequence[TokenLogprob]) -> list[JsonValue]:
    """A list for each token: its text, its logarithm, and a list of text and logarithm for each alternative."""
    return [
        [one.token, _round(one.logprob), [[token, _round(logprob)] for token, logprob in one.alternatives]]
        for one in logprobs
    ]


def _round(logprob: float) -> float:
    return round(max(logprob, LOWEST_LOGPROB), 4)
