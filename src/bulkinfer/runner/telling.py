"""What a run tells of single documents, in numbers: only where somebody counts them."""

from collections.abc import Iterable

from bulkinfer.events import DocumentsFinished, EventSink, Finished
from bulkinfer.records import Completion, Failure, Outcome, Rejection, Result


class FinishedDocuments:
    """Collects what ended since it last told.

    A run of cheap documents ends tens of thousands a second: where nobody wants them, nothing is made of them.
    """

    def __init__(self, emit: EventSink, *, is_wanted: bool) -> None:
        self._emit = emit
        self._is_wanted = is_wanted
        self._finished: list[Finished] = []

    def note(self, outcome: Outcome, event: Completion | Rejection, *, is_asked_again: bool) -> None:
        """The engine is done with a request."""
        if self._is_wanted:
            self._finished.append(describe_finished(outcome, event, is_asked_again=is_asked_again))

    def note_unasked(self, failures: Iterable[Failure]) -> None:
        """Documents that failed before the engine."""
        if self._is_wanted:
            self._finished += (Finished(failure.code, failure.attempts) for failure in failures)

    def tell(self) -> None:
        """Emit what there is."""
        if self._finished:
            self._emit(DocumentsFinished(tuple(self._finished)))
            self._finished.clear()


def describe_finished(outcome: Outcome, event: Completion | Rejection, *, is_asked_again: bool = False) -> Finished:
    """One attempt in numbers. Tokens count when the engine completed it, whatever became of the answer."""
    if isinstance(outcome, Result):
        return Finished(
            None,
            outcome.attempts,
            is_asked_again,
            outcome.prompt_tokens,
            outcome.cached_tokens,
            outcome.output_tokens,
            outcome.queue_s,
            outcome.first_token_s,
            outcome.total_s,
        )
    if isinstance(event, Rejection):
        return Finished(outcome.code, outcome.attempts, is_asked_again)
    return Finished(
        outcome.code,
        outcome.attempts,
        is_asked_again,
        event.prompt_tokens,
        event.cached_tokens,
        event.output_tokens,
    )
