"""What is done about an answer that was cut, or is not what the job promises, within the run. Pure.

    retry         ask again
    retry_longer  cut: twice the tokens, as far as the context goes; anything else: ask again. Then show what was wrong.

None of it is part of the task's identity: it changes what becomes of documents that have no answer, and no answer.
"""

from dataclasses import dataclass, replace

from bulkinfer.contract import Contract
from bulkinfer.job import JobSpec
from bulkinfer.records import Completion, Failure, FailureCode, JsonValue, Message, Repair, RepairStep, Request

DRAW_TEMPERATURE = 0.7
"""Of another draw where the job's temperature is 0: the same answer would come again."""
_TURN_TOKENS = 96
"""What the further turns take besides the answer that they show, rather too many."""
_REPAIRABLE = frozenset({FailureCode.TRUNCATED, FailureCode.INVALID_OUTPUT})


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
        for step in _list_steps(policy, failure.code, num_done):
            asked = self._take(step, request, completion, failure, max_tokens, room)
            if asked is not None:
                repair = Repair(
                    failure.code, failure.message, completion.text, completion.output_tokens, max_tokens, step
                )
                return replace(asked, repairs=(*request.repairs, repair))
        return None

    def _take(
        self,
        step: RepairStep,
        request: Request,
        completion: Completion,
        failure: Failure,
        max_tokens: int,
        room: int | None,
    ) -> Request | None:
        """The request of one step; None where the step cannot be taken."""
        match step:
            case RepairStep.AGAIN:
                return _with(request, **self._draw_anew(request))
            case RepairStep.LONGER:
                longer = 2 * max_tokens if room is None else min(2 * max_tokens, room)
                return _with(request, max_tokens=longer) if longer > max_tokens else None
            case RepairStep.SHOWN:
                if room is not None:
                    room -= completion.output_tokens + _TURN_TOKENS
                return self._show(request, completion.text, failure, max_tokens, room)

    def _show(self, request: Request, text: str, failure: Failure, max_tokens: int, room: int | None) -> Request | None:
        """Only in a conversation, and where there is something to show and room for it."""
        is_plain = self.spec.prompt.text is not None
        if is_plain or not text.strip() or (room is not None and room < max_tokens):
            return None
        is_cut = failure.code is FailureCode.TRUNCATED
        wrong = "That answer was cut, it was too long." if is_cut else f"That answer is wrong: {failure.message}."
        demand = f"Answer again, with {self.contract.demand}."
        turns = (Message("assistant", text.strip()), Message("user", f"{wrong} {demand}"))
        # Turns that an earlier step added are replaced: the prompt must not grow with each.
        has_shown = any(repair.step is RepairStep.SHOWN for repair in request.repairs)
        first = len(request.messages) - (2 if has_shown else 0)
        return replace(request, messages=(*request.messages[:first], *turns))

    def _draw_anew(self, request: Request) -> dict[str, JsonValue]:
        """Parameters of another draw."""
        if self._find_number(request, "temperature", self.spec.sampling.temperature) == 0:
            return {"temperature": DRAW_TEMPERATURE}
        seed = request.sampling.get("seed", self.spec.sampling.seed)
        return {"seed": seed + 1} if isinstance(seed, int) else {}

    def _find(self, request: Request, name: str, default: int) -> int:
        return int(self._find_number(request, name, default))

    def _find_number(self, request: Request, name: str, default: float) -> float:
        """The request's own parameter, or the job's."""
        value = request.sampling.get(name, default)
        assert isinstance(value, int | float)
        return value


def _list_steps(policy: str, code: FailureCode, num_done: int) -> tuple[RepairStep, ...]:
    """What to do next, the first of these that can be done."""
    if policy == "retry":
        return (RepairStep.AGAIN,)
    if code is FailureCode.TRUNCATED:
        steps = (RepairStep.LONGER, RepairStep.SHOWN)
        return steps if num_done == 0 else (RepairStep.SHOWN, RepairStep.LONGER)
    return (RepairStep.AGAIN,) if num_done == 0 else (RepairStep.SHOWN, RepairStep.AGAIN)


def _with(request: Request, **sampling: JsonValue) -> Request:
    return replace(request, sampling={**request.sampling, **sampling})
