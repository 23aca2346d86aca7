"""What comes back from the engines, and what it means for documents: an outcome, another attempt, or parts to ask."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bulkinfer.records import Completion, Outcome, PartAnswer, Result
from bulkinfer.runner.assemblies import Assemblies
from bulkinfer.runner.fleet import Fleet
from bulkinfer.runner.judge import Judge
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
    _judge: Judge = field(init=False)
    _outcomes: list[Outcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._judge = Judge(self.plan.job.spec)

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
        # A repair that is refused is no document to be split: what it was to mend stands.
        if not request.repairs and self.assemblies.begin(request, event):
            return
        is_part = self.assemblies.has_part(request.document_hash)
        if isinstance(event, Completion):
            self.ledger.note_completion(request, event, returned.replica)
        outcome, again = self._judge.decide(returned, self.ledger.vector_size, self.ledger.max_context_tokens)
        if not is_part:
            self.finished.note(outcome, event, is_asked_again=again is not None)
        if again is not None:
            self.fleet.ask_again(again)
        elif is_part:
            self.ledger.note_part(is_answered=isinstance(outcome, Result))
            self.assemblies.settle(request, outcome, event)
        else:
            self.ledger.note_outcome(outcome, request.num_chars)
            self._outcomes.append(outcome)

    def _take_assembled(self) -> None:
        """Documents that were answered in parts. The answers to their parts go to the store before them."""
        if answers := self.assemblies.take_answered():
            self.add_parts(answers)
        for one in self.assemblies.take_assembled():
            self.finished.note(one.outcome, one.rejection, is_asked_again=False)
            self.ledger.note_outcome(one.outcome, one.request.num_chars)
            self._outcomes.append(one.outcome)
        self.ledger.num_parts_reused = self.assemblies.num_reused
