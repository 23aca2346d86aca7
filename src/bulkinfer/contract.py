"""What an answer must be, made of the job: the answer is held to it whatever the engine promised. Pure.

text -> Contract.judge -> Kept (with the value that is stored) or Broken (with the reason)
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from bulkinfer.constraints import JsonFault, Matcher, MatchTooLong, parse_strict_json, write_json
from bulkinfer.job import ClassifyTask, EmbedTask, ExtractTask, JobSpec, ScoreTask
from bulkinfer.records import JsonValue


@dataclass(frozen=True, slots=True)
class Kept:
    """The answer is what was promised."""

    value: str | None
    """As JSON text, where the task gives one."""
    output: str | None = None
    """What is kept as text, where it is not the answer as it stands."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The answer is not what was promised."""

    reason: str
    """Never quotes the answer."""


Judgement = Kept | Broken


class Judge(Protocol):
    """Tells whether a text is what it must be; one that is blank is given to it only where that may be."""

    def __call__(self, text: str, /) -> Judgement:
        """Judge one answer."""


@dataclass(frozen=True, slots=True)
class Contract:
    """What the answers of a job must be."""

    judge: Judge
    demand: str
    """What is asked for, in words for the model."""
    accepts_truncated: bool = False
    """An answer that was cut counts, if it is what it must be all the same."""
    is_vector: bool = False
    """It is numbers, and no text: `judge_vector` tells."""
    allows_blank: bool = False
    """Text that is empty or only white space may be an answer."""


def make_contract(spec: JobSpec) -> Contract:
    """The contract of a job."""
    accepts_truncated = spec.output.accept_truncated
    match spec.task:
        case ClassifyTask(choices=choices):
            demand = f"exactly one of these, and nothing else: {', '.join(choices)}"
            return Contract(partial(_judge_choice, frozenset(choices)), demand, accepts_truncated)
        case ExtractTask(answer_schema=dict(schema)):
            from bulkinfer.constraints.json_schema import SchemaChecker  # noqa: PLC0415 - only such jobs need it

            checker = SchemaChecker(schema)
            return Contract(
                partial(_judge_json, checker.find_fault, "task.schema"),
                "JSON that fits the schema, and nothing else",
                accepts_truncated,
            )
        case ExtractTask(regex=str(regex)):
            demand = f"text that matches {regex} as a whole, and nothing else"
            return Contract(partial(_judge_match, Matcher(regex)), demand, accepts_truncated, allows_blank=True)
        case ScoreTask():
            return Contract(_judge_number, "a number")
        case EmbedTask():
            return Contract(_keep_any, "a vector", is_vector=True)
    return Contract(_keep_any, "a whole answer", accepts_truncated)


def make_form_contract(schema: Mapping[str, JsonValue], *, accepts_truncated: bool) -> Contract:
    """The contract of one document that asks for JSON of its own."""
    from bulkinfer.constraints.json_schema import SchemaChecker  # noqa: PLC0415 - only such documents need it

    judge = partial(_judge_json, SchemaChecker(schema).find_fault, "its response_format")
    return Contract(judge, f"JSON that fits this schema, and nothing else: {write_json(schema)}", accepts_truncated)


def judge_vector(vector: bytes, vector_size: int | None) -> Judgement:
    """Of 32-bit floats. `vector_size`: how many numbers each of the model has; None where that is not known."""
    numbers = memoryview(vector).cast("f")
    if vector_size is not None and len(numbers) != vector_size:
        return Broken(f"the vector has {len(numbers):,} numbers, and the model's have {vector_size:,}")
    # 32-bit numbers cannot add up to more than a 64-bit one can hold: the sum is finite if all are.
    is_good = bool(numbers) and math.isfinite(sum(numbers))
    return Kept(None) if is_good else Broken("the vector holds numbers that are not finite")


def _keep_any(_: str, /) -> Judgement:
    return Kept(None)


def _judge_choice(choices: frozenset[str], text: str, /) -> Judgement:
    choice = text.strip()
    return Kept(write_json(choice), choice) if choice in choices else Broken("the answer is not one of task.choices")


def _judge_json(find_fault: Callable[[JsonValue], str | None], name: str, text: str, /) -> Judgement:
    try:
        value = parse_strict_json(text)
    except JsonFault as fault:
        return Broken(f"the answer is {fault}")
    reason = find_fault(value)
    return Kept(write_json(value)) if reason is None else Broken(f"the answer does not fit {name}: {reason}")


def _judge_number(text: str, /) -> Judgement:
    try:
        is_finite = math.isfinite(float(text))
    except ValueError:
        is_finite = False
    return Kept(text) if is_finite else Broken("the score is not a finite number")


def _judge_match(matcher: Matcher, text: str, /) -> Judgement:
    try:
        is_match = matcher.matches(text)
    except MatchTooLong:
        return Broken("whether the answer matches task.regex takes too long to tell: simplify it")
    return Kept(write_json(text)) if is_match else Broken("the answer does not match task.regex as a whole")


ANY_ANSWER = Contract(_keep_any, "a whole answer")
"""For a task that asks for text alone."""
