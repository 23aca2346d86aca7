"""What is done about an answer that was cut, or is not what the job promises, within the run. Pure.

    retry         ask again
    retry_longer  ask again, then with twice the tokens, as far as the context goes, then with what was wrong shown

Each time another answer is drawn. None of it is part of the task's identity: it changes what becomes of documents that
have no answer, and no answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bulkinfer.contract import Contract
from bulkinfer.job import JobSpec
from bulkinfer.records import Completion, Failure, FailureCode, JsonValue, Message, Repair, RepairStep, Request

DRAW_TEMPERATURE = 0.7
"""Of another draw where the job's temperature is 0: the same answer would come again."""
_TURN_TOKENS = 96
"""What the further turns take besides the answer that they show and what is asked for, rather too many; likewise:"""
_CHARS_PER_TOKEN = 3
_REPAIRABLE = frozenset({FailureCode.TRUNCATED, FailureCode.INVALID_OUTPUT})
_LADDER = (RepairStep.AGAIN, RepairStep.LONGER, RepairStep.SHOWN)
"""The cheapest first; docs/checked-outputs.md has what each mends."""


@dataclass(frozen=True, slots=True)
class Repairs:
    """The policy of a job."""

    spec: JobSpec
    contract: Contract

    def find_next(
        self, request: Request, completion: Completion, failure: Failure, max_context_tokens: int | None
    ) -> Request | None:
        """How the document is asked next; None: the failure stands.

        `max_context_tokens`: of the engine; None where it is not known.
        """
        policy, num_done = self.spec.output.repair, len(request.repairs)
        if not self.spec.writes_answers or policy == "none" or num_done >= self.spec.output.max_repairs:
            return None
        if failure.code not in _REPAIRABLE:
            return None
        max_tokens = self._find(request, "max_tokens", self.spec.max_tokens)
        room = None if max_context_tokens is None else max_context_tokens - completion.prompt_tokens
        bad = _Bad(failure, failure.raw_output or "", _find_length(completion, failure), max_tokens, room)
        for step in _list_steps(policy, failure.code, request.repairs):
            asked = self._take(step, request, bad)
            if asked is not None:
                repair = Repair(failure.code, failure.message, bad.text, bad.output_tokens, max_tokens, step)
                return replace(_with(asked, **self._draw_anew(request)), repairs=(*request.repairs, repair))
        return None

    def _take(self, step: RepairStep, request: Request, bad: "_Bad") -> Request | None:
        """The request of one step; None where the step cannot be taken."""
        match step:
            case RepairStep.AGAIN:
                return request
            case RepairStep.LONGER:
                longer = 2 * bad.max_tokens if bad.room is None else min(2 * bad.max_tokens, bad.room)
                return _with(request, max_tokens=longer) if longer > bad.max_tokens else None
            case RepairStep.SHOWN:
                return self._show(request, bad)

    def _show(self, request: Request, bad: "_Bad") -> Request | None:
        """Only in a conversation, and where there is something to show and room for it."""
        if self.spec.prompt.text is not None or not bad.text.strip():
            return None
        max_tokens = bad.max_tokens
        if bad.room is not None:
            turn_tokens = _TURN_TOKENS + len(self.contract.demand) // _CHARS_PER_TOKEN
            # A rung that gave more tokens may have taken the room: those of the job are enough.
            max_tokens = min(max_tokens, bad.room - bad.output_tokens - turn_tokens)
            if max_tokens < min((bad.max_tokens, *(repair.max_tokens for repair in request.repairs))):
                return None
        reason = "was cut, it was too long" if bad.is_cut else f"is wrong: {bad.failure.message}"
        demand = f"Answer again, with {self.contract.demand}."
        turns = (Message("assistant", bad.text.strip()), Message("user", f"That answer {reason}. {demand}"))
        # Turns that an earlier step added are replaced: the prompt must not grow with each.
        has_shown = any(repair.step is RepairStep.SHOWN for repair in request.repairs)
        first = len(request.messages) - (2 if has_shown else 0)
        shown = replace(request, messages=(*request.messages[:first], *turns))
        return shown if max_tokens == bad.max_tokens else _with(shown, max_tokens=max_tokens)

    def _draw_anew(self, request: Request) -> dict[str, JsonValue]:
        """Parameters of another draw."""
        if self._find_number(request, "temperature", self.spec.sampling.temperature) == 0:
            return {"temperature": DRAW_TEMPERATURE}
        seed = request.sampling.get("seed", self.spec.sampling.seed)
        # Each of several answers has a seed of its own, one more than that of the answer before it.
        num_answers = self._find(request, "n", self.spec.sampling.num_answers)
        return {"seed": seed + num_answers} if isinstance(seed, int) else {}

    def _find(self, request: Request, name: str, default: int) -> int:
        return int(self._find_number(request, name, default))

    def _find_number(self, request: Request, name: str, default: float) -> float:
        """The request's own parameter, or the job's."""
        value = request.sampling.get(name, default)
        assert isinstance(value, int | float)
        return value


@dataclass(frozen=True, slots=True)
class _Bad:
    """The answer that was not kept: of several, the first."""

    failure: Failure
    text: str
    output_tokens: int
    max_tokens: int
    """That it could have; `room`: that prompt and context leave, None where that is not known."""
    room: int | None

    @property
    def is_cut(self) -> bool:
        return self.failure.code is FailureCode.TRUNCATED


def _find_length(completion: Completion, failure: Failure) -> int:
    """Tokens of the answer that was not kept. Of several it is known by its text; equal ones are equally long."""
    outputs: Any = (completion.details or {}).get("outputs", ())  # as `engines.answers` made it
    of_equal = (int(one["output_tokens"]) for one in outputs if one["text"] == failure.raw_output)
    return next(of_equal, completion.output_tokens)


def _list_steps(policy: str, code: FailureCode, repairs: Sequence[Repair]) -> tuple[RepairStep, ...]:
    """What to do next, the first of these that can be done: what was not done yet, then what mends most."""
    if policy == "retry":
        return (RepairStep.AGAIN,)
    taken = {repair.step for repair in repairs}
    once_more = RepairStep.LONGER if code is FailureCode.TRUNCATED else RepairStep.SHOWN
    new = (step for step in _LADDER if step not in taken)
    return (*new, once_more, RepairStep.SHOWN, RepairStep.AGAIN)


def _with(request: Request, **sampling: JsonValue) -> Request:
    return replace(request, sampling={**request.sampling, **sampling})
