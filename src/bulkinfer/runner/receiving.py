"""What comes back from the engines, and what it means for documents: an outcome, another attempt, or parts to ask."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from bulkinfer.outcome import MAX_ATTEMPTS, decide_outcome
from bulkinfer.records import Completion, Failure, Outcome, PartAnswer, Result
from bulkinfer.runner.assemblies import Assemblies
from bulkinfer.runner.fleet import Fleet
from bulkinfer.runner.ledger import Ledger
from bulkinfer.runner.plan import RunPlan
from bulkinfer.runner.telling import FinishedDocuments
from bulkinfer.runner.window import Returned


@dataclass(slots=True)
class Receiving:
    """For the loop's thread. `add_parts` stores answers to parts; outcomes are the caller's to store."""

    plan: RunPlan
    fleet: Fleet
    ledger: Ledger
    finished: FinishedDocuments
    assemblies: Assemblies
    add_parts: Callable[[Sequence[PartAnswer]], None]
    _outcomes: list[Outcome] = field(default_factory=list)

    def receive(self, timeout_s: float) -> list[Outcome]:
        """Wait for the engines, up to `timeout_s` seconds; return the documents that are done, each once.

        Raises EngineError and JobError as the fleet does, StoreError as the store does.
        """
        for returned in self.fleet.poll(timeout_s):
            self._accept(returned)
        self._take_assembled()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def _accept(self, returned: Returned) -> None:
        request, event = returned.flight.request, returned.event
        if self.assemblies.begin(request, event):
            return
        is_part = self.assemblies.has_part(request.document_hash)
        outcome = self._decide(returned, is_part=is_part)
        is_again = isinstance(outcome, Failure) and outcome.retryable and outcome.attempts < MAX_ATTEMPTS
        if not is_part:
            self.finished.note(outcome, event, is_asked_again=is_again)
        if is_again:
            self.fleet.ask_again(request)
        elif is_part:
            self.assemblies.settle(request, outcome, event)
        else:
            self.ledger.note_outcome(outcome, request.num_chars)
            self._outcomes.append(outcome)

    def _decide(self, returned: Returned, *, is_part: bool) -> Outcome:
        request, event = returned.flight.request, returned.event
        if isinstance(event, Completion):
            self.ledger.note_completion(request, event, returned.replica)
            if is_part:
                self.ledger.note_part()
        return decide_outcome(
            request,
            event,
            submitted_at_s=returned.flight.submitted_at_s,
            now=datetime.now(UTC),
            task=self.plan.job.spec.task,
            vector_size=self.ledger.vector_size,
        )

    def _take_assembled(self) -> None:
        """Documents that were answered in parts. The answers to their parts go to the store before them."""
        if answers := self.assemblies.take_answered():
            self.add_parts(answers)
        for one in self.assemblies.take_assembled():
            self.finished.note(one.outcome, one.rejection, is_asked_again=False)
            self.ledger.note_outcome(one.outcome, one.request.num_chars)
            self.ledger.num_assembled += isinstance(one.outcome, Result)
            self._outcomes.append(one.outcome)
        self.ledger.num_parts_reused = self.assemblies.num_reused
