"""All documents of a run that are answered in parts. The parts go through queue and engine as documents do.

What is asked is known by its hash: an equal part of another document, or one that an earlier run has answered, is not
asked again. Rules of a single document are in `assembly`.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bulkinfer.fingerprint import hash_part
from bulkinfer.prompt import DocumentFault
from bulkinfer.prompt.joining import JoinTemplate
from bulkinfer.records import (
    Completion,
    Failure,
    FailureCode,
    Message,
    Outcome,
    PartAnswer,
    Rejection,
    Request,
    Result,
)
from bulkinfer.runner.assembly import Assembly

FindParts = Callable[[Sequence[bytes]], Mapping[bytes, PartAnswer]]
MAX_LOOKED_UP = 1024
"""Questions that are looked up together, of as many documents as it takes: each look-up goes through all parts that
are stored."""
MAX_CHARS_AHEAD = 16 * 1024 * 1024
"""Of their prompts, which are made for it: more wait until these are asked."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """What a document that was split ended with."""

    request: Request
    outcome: Outcome
    rejection: Rejection


@dataclass(frozen=True, slots=True)
class _Waiter:
    """Who wants the answer to a part, and as which of its questions."""

    assembly: Assembly
    number: int


@dataclass(frozen=True, slots=True)
class _Question:
    """What is to be asked, if it is not known."""

    waiter: _Waiter
    request: Request
    may_be_stored: bool


class Assemblies:
    """Give it what the engine refuses (`begin`) and what came of parts (`settle`); ask it what is to be asked next.

    `find_parts` is the store's word on which parts are answered.
    """

    def __init__(self, template: JoinTemplate | None, find_parts: FindParts) -> None:
        self.num_reused = 0
        """Questions that need not be asked: they were answered before, or are equal to another."""
        self._template = template
        self._find_parts = find_parts
        self._live: dict[Assembly, None] = {}
        """In their order, as is the next."""
        self._unasked: dict[Assembly, None] = {}
        """Those with questions that nobody has asked yet."""
        self._ready: deque[Request] = deque()
        """To be asked next."""
        self._waiters: dict[bytes, list[_Waiter]] = {}
        """By part that is ready, queued or in flight; none where the document has failed meanwhile."""
        self._unstored: dict[bytes, PartAnswer] = {}
        """Answers that are not on disk yet: the store does not know them."""
        self._assembled: list[Assembled] = []
        self._answered: list[PartAnswer] = []

    def __len__(self) -> int:
        """Documents that are not done, or were not taken."""
        return len(self._live) + len(self._assembled)

    @property
    def has_questions(self) -> bool:
        """Whether there is something to ask; new documents can wait until there is not."""
        return bool(self._ready or self._unasked)

    def begin(self, request: Request, event: Completion | Rejection) -> bool:
        """Take a document that the engine wants to be split; False for anything else."""
        if self._template is None or not isinstance(event, Rejection) or not event.cuts:
            return False
        assembly = Assembly(request, event, self._template)
        self._live[assembly] = None
        if fault := assembly.find_fault():
            self._end(assembly, assembly.fail_unasked(fault))
        else:
            self._unasked[assembly] = None
        return True

    def has_part(self, part_hash: bytes) -> bool:
        """Whether a request is one of a part."""
        return part_hash in self._waiters

    def next_request(self) -> Request | None:
        """What is to be asked next; None where nothing is, for now. Raises StoreError as the store does."""
        while self.has_questions:
            while self._ready:
                request = self._ready.popleft()
                if self._waiters[request.document_hash]:
                    return request
                del self._waiters[request.document_hash]
            if self._unasked:
                self._look_up()
        return None

    def settle(self, request: Request, outcome: Outcome, event: Completion | Rejection) -> None:
        """A part came back from the engine, for the last time."""
        waiters = self._waiters.pop(request.document_hash)
        if isinstance(outcome, Failure):
            for waiter in waiters:
                self._settle_failure(waiter, outcome, event)
            return
        answer = _answer_of(waiters[0].assembly.request if waiters else request, outcome)
        self._unstored[answer.part_hash] = answer
        self._answered.append(answer)
        for waiter in waiters:
            self._note_answer(waiter, answer, _since(outcome, request, waiter.assembly.request))

    def forget(self, part_hashes: Sequence[bytes]) -> None:
        """These answers are on disk: from now on the store knows them."""
        for part_hash in part_hashes:
            self._unstored.pop(part_hash, None)

    def take_assembled(self) -> list[Assembled]:
        """Documents that are done, each once."""
        taken, self._assembled = self._assembled, []
        return taken

    def take_answered(self) -> list[PartAnswer]:
        """New answers to parts, each once: to be stored."""
        taken, self._answered = self._answered, []
        return taken

    def _look_up(self) -> None:
        """Prepare the next questions of all documents; what is answered already is answered at once."""
        asked = list(self._take_unasked())
        hashes = {question.request.document_hash for question in asked}
        known = {one: self._unstored[one] for one in hashes if one in self._unstored}
        stored = {question.request.document_hash for question in asked if question.may_be_stored}
        if left := [one for one in stored if one not in known and one not in self._waiters]:
            known |= self._find_parts(left)
        for question in asked:
            if question.waiter.assembly in self._live:
                self._ask(question.waiter, question.request, known.get(question.request.document_hash))

    def _take_unasked(self) -> Iterator[_Question]:
        """The next questions, with their prompts. A document that one cannot be made of is done."""
        num_taken = num_chars = 0
        for assembly in list(self._unasked):
            while assembly.unasked and num_taken < MAX_LOOKED_UP and num_chars < MAX_CHARS_AHEAD:
                number = assembly.unasked.popleft()
                prompt = assembly.make_prompt(number)
                if isinstance(prompt, DocumentFault):
                    self._end(assembly, assembly.fail_unasked(prompt))
                    break
                request = _request_part(assembly.request, prompt)
                yield _Question(_Waiter(assembly, number), request, assembly.may_be_stored(number))
                num_taken += 1
                num_chars += request.num_chars
            if assembly.unasked and assembly in self._live:
                return
            self._unasked.pop(assembly, None)

    def _ask(self, waiter: _Waiter, request: Request, answer: PartAnswer | None) -> None:
        if answer is not None:
            self.num_reused += 1
            self._note_answer(waiter, answer, None)
        elif (waiters := self._waiters.get(request.document_hash)) is not None:
            self.num_reused += 1
            waiters.append(waiter)
        else:
            self._waiters[request.document_hash] = [waiter]
            self._ready.append(request)

    def _note_answer(self, waiter: _Waiter, answer: PartAnswer, result: Result | None) -> None:
        assembly = waiter.assembly
        if assembly not in self._live:  # another of its parts failed
            return
        if assembly.note_answer(waiter.number, answer, result):
            self._end(assembly, assembly.finish_known(answer) if result is None else assembly.finish(result))
        elif assembly.unasked:
            self._unasked[assembly] = None

    def _settle_failure(self, waiter: _Waiter, failure: Failure, event: Completion | Rejection) -> None:
        assembly = waiter.assembly
        if assembly not in self._live:
            return
        is_too_long = isinstance(event, Rejection) and failure.code is FailureCode.PROMPT_TOO_LONG
        if isinstance(event, Rejection) and is_too_long and assembly.regroup(waiter.number, event):
            self._unasked[assembly] = None
        else:
            self._end(assembly, assembly.fail(waiter.number, failure))

    def _end(self, assembly: Assembly, outcome: Outcome) -> None:
        """The document is done. What is asked of it and not answered has one that waits less."""
        del self._live[assembly]
        self._unasked.pop(assembly, None)
        if isinstance(outcome, Failure):
            for waiters in self._waiters.values():
                waiters[:] = [waiter for waiter in waiters if waiter.assembly is not assembly]
        self._assembled.append(Assembled(assembly.request, outcome, assembly.rejection))


def _request_part(document: Request, messages: tuple[Message, ...]) -> Request:
    """A request for a part: all that is asked besides the messages is as for the document."""
    part = replace(
        document,
        messages=messages,
        num_chars=sum(len(message.content) for message in messages),
        attempt=1,
        prefix_group=None,
        spans=(),
        fields=None,
    )
    return replace(part, document_hash=hash_part(part))


def _since(result: Result, asked: Request, document: Request) -> Result:
    """The answer to a part with durations since its document came into the queue: another may have asked earlier."""
    later_s = document.queued_at_s - asked.queued_at_s
    if later_s == 0:
        return result
    durations = result.queue_s, result.first_token_s, result.total_s
    queue_s, first_token_s, total_s = (max(0.0, one - later_s) for one in durations)
    return replace(result, queue_s=queue_s, first_token_s=first_token_s, total_s=total_s)


def _answer_of(document: Request, result: Result) -> PartAnswer:
    repairs: Any = (result.details or {}).get("repairs", ())
    return PartAnswer(
        part_hash=result.document_hash,
        document_hash=document.document_hash,
        output=result.output,
        prompt_tokens=result.prompt_tokens,
        cached_tokens=result.cached_tokens,
        output_tokens=result.output_tokens,
        attempts=result.attempts,
        answered_at=result.completed_at,
        finish_reason=result.finish_reason,
        repairs=repairs,
    )
