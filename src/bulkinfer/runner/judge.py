"""What becomes of what an engine returned: an outcome, or another attempt."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from bulkinfer.constraints import write_json
from bulkinfer.contract import Contract, make_contract, make_form_contract
from bulkinfer.job import JobSpec
from bulkinfer.outcome import MAX_ATTEMPTS, decide_outcome
from bulkinfer.records import FORM, Completion, Failure, FailureCode, Outcome, Rejection, Request
from bulkinfer.repair import Repairs
from bulkinfer.runner.window import Returned

_REFUSALS = frozenset({FailureCode.PROMPT_TOO_LONG, FailureCode.ENGINE_REJECTED})


_MAX_CONTRACTS = 256


class Judge:
    """Holds answers to the contract of one job, and repairs what it can."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._contract = make_contract(spec)
        self._of_forms: dict[str, Contract] = {}

    def decide(
        self, returned: Returned, vector_size: int | None, max_context_tokens: int | None
    ) -> tuple[Outcome, Request | None]:
        """The outcome, and the request to be asked instead of recording it, if there is one.

        Both numbers are those of the engine; None where it does not tell.
        """
        request, event = returned.flight.request, returned.event
        contract = self._find_contract(request)
        outcome = decide_outcome(
            request,
            event,
            submitted_at_s=returned.flight.submitted_at_s,
            now=datetime.now(UTC),
            contract=contract,
            vector_size=vector_size,
        )
        if isinstance(outcome, Failure):
            if outcome.retryable and outcome.attempts < MAX_ATTEMPTS + len(request.repairs):
                return outcome, request
            if isinstance(event, Completion):
                again = Repairs(self._spec, contract).find_next(request, event, outcome, max_context_tokens)
                if again is not None:
                    return outcome, again
            elif request.repairs and event.code in _REFUSALS:
                outcome = _recall(outcome, request)
        return _add_repairs(outcome, request, event), None

    def _find_contract(self, request: Request) -> Contract:
        """The job's, but for a document that asks for a form of its own."""
        match request.sampling.get(FORM):
            case {"json": Mapping() as schema}:
                name = write_json(schema)
            case _:
                return self._contract
        if name not in self._of_forms:
            if len(self._of_forms) >= _MAX_CONTRACTS:
                self._of_forms.clear()
            accepts_truncated = self._spec.output.accept_truncated
            self._of_forms[name] = make_form_contract(schema, accepts_truncated=accepts_truncated)
        return self._of_forms[name]


def _recall(refusal: Failure, request: Request) -> Failure:
    """An attempt at a repair was refused, not the document: what was wrong before stands."""
    last = request.repairs[-1]
    return replace(refusal, code=last.code, message=last.message, raw_output=last.raw_output)


def _add_repairs(outcome: Outcome, request: Request, event: Completion | Rejection) -> Outcome:
    if not request.repairs:
        return outcome
    repairs = [repair.describe() for repair in request.repairs]
    if isinstance(event, Rejection):
        repairs[-1] |= {"refused": f"{event.code}: {event.message}"}
    return replace(outcome, details={**(outcome.details or {}), "repairs": repairs})
