"""One document that is answered in parts: which questions it has, and what becomes of their answers. Asks nobody.

cuts -> a question for each part -> answers -> one that joins them all
                                               | too long: groups of them, each joined -> fewer answers -> ...
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from bulkinfer.engines.overlong import describe_overlong
from bulkinfer.outcome import fail_request
from bulkinfer.prompt import DocumentFault
from bulkinfer.prompt.cutting import find_longest, put_text
from bulkinfer.prompt.joining import JoinTemplate
from bulkinfer.records import (
    Failure,
    FailureCode,
    FinishReason,
    JsonValue,
    Message,
    Overlong,
    PartAnswer,
    Rejection,
    Request,
    Result,
    Span,
)

_SMALLEST_GROUP = 2
"""Answers that are joined at a time: joining single ones would come to no end."""


@dataclass(slots=True, eq=False)
class Assembly:
    """A document whose prompt is to be split, as the engine has said in `rejection`.

    Questions have numbers that are never used again. `unasked` are those that nobody has asked yet.
    """

    request: Request
    rejection: Rejection
    template: JoinTemplate
    unasked: deque[int] = field(init=False)
    _text: str = field(init=False)
    _places: tuple[Span, ...] = field(init=False)
    _level: list[int] = field(init=False)
    """The questions whose answers are joined next, in the order of the text."""
    _groups: dict[int, tuple[PartAnswer, ...]] = field(init=False, default_factory=dict)
    """What a question joins; one without is a part's."""
    _answers: dict[int, PartAnswer] = field(init=False, default_factory=dict)
    _num_questions: int = field(init=False)
    _num_open: int = field(init=False)
    """Of this level, not answered yet."""
    _used: list[PartAnswer] = field(init=False, default_factory=list)
    _repairs: list[tuple[int, Mapping[str, JsonValue]]] = field(init=False, default_factory=list)
    """Of answers that were not kept, by question."""
    _new: set[bytes] = field(init=False, default_factory=set)
    """Hashes of parts that were run now."""
    _queue_s: float | None = field(init=False, default=None)
    _total_s: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._text, self._places = find_longest(self.request.messages, self.request.spans)
        self._level = list(range(self.num_parts))
        self.unasked = deque(self._level)
        self._num_questions = self._num_open = self.num_parts

    @property
    def num_parts(self) -> int:
        """Of the document."""
        return len(self.rejection.cuts)

    def find_fault(self) -> DocumentFault | None:
        """Why its answers cannot be joined, before its parts are asked in vain."""
        joined = self.template.render(["x"], self.request.fields or {})
        return joined if isinstance(joined, DocumentFault) else None

    def make_prompt(self, number: int) -> tuple[Message, ...] | DocumentFault:
        """What a question asks."""
        messages = self.request.messages
        if number in self._groups:
            outputs = [answer.output for answer in self._groups[number]]
            joined = self.template.render(outputs, self.request.fields or {})
            if isinstance(joined, DocumentFault):
                return joined
            if messages[-1].role == "text":  # no conversation, here neither
                return (replace(joined, role="text"),)
            return (*(message for message in messages[:1] if message.role == "system"), joined)
        start, end = self.rejection.cuts[number]
        return put_text(messages, self._places, self._text[start:end])

    def may_be_stored(self, number: int) -> bool:
        """Whether an earlier run may have answered a question: not one that joins an answer that was new in this."""
        return all(answer.part_hash not in self._new for answer in self._groups.get(number, ()))

    def note_answer(self, number: int, answer: PartAnswer, result: Result | None) -> bool:
        """A question is answered. True: that was the last one, and the answer is the document's.

        `result`: how it was run, in seconds since the document came into the queue; None where it was not run now.
        """
        self._answers[number] = answer
        self._used.append(answer)
        self._repairs += ((number, repair) for repair in answer.repairs)
        self._num_open -= 1
        if result is not None:
            self._new.add(answer.part_hash)
            self._queue_s = result.queue_s if self._queue_s is None else min(self._queue_s, result.queue_s)
            self._total_s = max(self._total_s, result.total_s)
        if self._num_open > 0:
            return False
        if len(self._level) == 1:
            return True
        self._join()
        return False

    def regroup(self, number: int, rejection: Rejection) -> bool:
        """A question is too long: join its answers in groups first. False where that does not help."""
        group = self._groups.get(number, ())
        if len(group) <= _SMALLEST_GROUP:
            return False
        room_tokens = max(1, rejection.room_tokens or 1)
        num_wanted = -(-(rejection.prompt_tokens or 0) // room_tokens)
        num_groups = max(2, min(num_wanted, len(group) // _SMALLEST_GROUP))
        place = self._level.index(number)
        self._num_open -= 1
        self._level[place : place + 1] = [self._add_question(part) for part in _divide(group, num_groups)]
        return True

    def finish(self, result: Result) -> Result:
        """The document's, of the one of its last question."""
        return replace(
            result,
            document_hash=self.request.document_hash,
            finish_reason=FinishReason.LENGTH if self._num_cut else result.finish_reason,
            prompt_tokens=sum(answer.prompt_tokens for answer in self._used),
            cached_tokens=sum(answer.cached_tokens for answer in self._used),
            output_tokens=sum(answer.output_tokens for answer in self._used),
            queue_s=result.queue_s if self._queue_s is None else self._queue_s,
            attempts=max(answer.attempts for answer in self._used),
            details={**(result.details or {}), **self._describe()},
        )

    def finish_known(self, answer: PartAnswer) -> Result:
        """The same where the last question was answered before: what was waited for is what was run besides, if any."""
        known = answer.document_hash, answer.output, None, answer.finish_reason
        waited = 0.0, self._total_s, self._total_s
        return self.finish(Result(*known, 0, 0, 0, *waited, 1, datetime.now(UTC)))

    def fail(self, number: int, failure: Failure) -> Failure:
        """The document's, of the one of a question."""
        message = f"{self._name(number)}: {failure.message}"
        if failure.code is FailureCode.PROMPT_TOO_LONG and number in self._groups:
            message += "; two answers cannot be joined: lower sampling.max_tokens, or raise limits.max_context_tokens"
        told = dict(failure.details or {})
        repairs: Any = told.pop("repairs", ())
        self._repairs += ((number, repair) for repair in repairs)
        details = {**told, **self._describe()}
        return replace(failure, document_hash=self.request.document_hash, message=message, details=details)

    def fail_unasked(self, fault: DocumentFault) -> Failure:
        """The document's, where a question cannot be asked."""
        failure = fail_request(self.request, fault.code, fault.message, None, datetime.now(UTC))
        return replace(failure, details=self._describe())

    def _join(self) -> None:
        """Ask for all answers of this level to be joined."""
        answers = tuple(self._answers.pop(one) for one in self._level)
        self._level = [self._add_question(answers)]

    def _add_question(self, group: tuple[PartAnswer, ...]) -> int:
        number = self._num_questions
        self._num_questions += 1
        if len(group) == 1:  # what is left over goes to the next level as it is
            self._answers[number] = group[0]
        else:
            self._num_open += 1
            self._groups[number] = group
            self.unasked.append(number)
        return number

    def _name(self, number: int) -> str:
        if number in self._groups:
            return f"joining the answers to its {self.num_parts:,} parts"
        return f"part {number + 1:,} of {self.num_parts:,}"

    def _describe(self) -> dict[str, JsonValue]:
        rejection = self.rejection
        tokens_after = rejection.longest_tokens or 0
        told = describe_overlong(Overlong.SPLIT, rejection.prompt_tokens, tokens_after, self.num_parts)
        details: dict[str, JsonValue] = {"overlong": told | {"parts_cut": self._num_cut} if self._num_cut else told}
        if self.request.adapter is not None:
            details["adapter"] = self.request.adapter
        if self._repairs:
            repairs = sorted(self._repairs, key=lambda noted: noted[0])
            details["repairs"] = [{**self._place(number), **repair} for number, repair in repairs]
        return details

    @property
    def _num_cut(self) -> int:
        """Answers among those used that were cut."""
        return sum(answer.finish_reason == FinishReason.LENGTH for answer in self._used)

    def _place(self, number: int) -> dict[str, JsonValue]:
        """Which question, in `details.repairs`: that of a part, or one that joins so many answers."""
        return {"joins": len(self._groups[number])} if number in self._groups else {"part": number + 1}


def _divide(answers: Sequence[PartAnswer], num_groups: int) -> Iterable[tuple[PartAnswer, ...]]:
    """Neighbours together, in groups of about the same size."""
    bounds = [len(answers) * number // num_groups for number in range(num_groups + 1)]
    return [tuple(answers[start:end]) for start, end in pairwise(bounds)]
