"""Documents that ended, in numbers."""

from datetime import UTC, datetime

from bulkinfer.events import DocumentsFinished, Event, Finished
from bulkinfer.outcome import decide_outcome, fail_unreadable
from bulkinfer.records import Completion, FailureCode, Message, Origin, Rejection, Request, UnreadableRow
from bulkinfer.runner.telling import FinishedDocuments, describe_finished

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REQUEST = Request(b"1" * 16, Origin("in.jsonl", 1, "d1"), (Message("user", "secret"),), 6, attempt=2, queued_at_s=10.0)


def complete(finish_reason: str) -> Completion:
    """What the engine returned."""
    return Completion(REQUEST.document_hash, "secret answer", finish_reason, 30, 8, 5, 0.5, 1.0, 2.0)


def test_an_answer_counts_its_tokens_and_its_time_from_entering_the_queue() -> None:
    event = complete("stop")
    outcome = decide_outcome(REQUEST, event, submitted_at_s=13.0, now=NOW)
    assert describe_finished(outcome, event) == Finished(None, 2, False, 30, 8, 5, 3.5, 4.0, 5.0)


def test_a_cut_answer_has_tokens_and_no_time_and_a_refused_prompt_has_neither() -> None:
    cut = complete("length")
    outcome = decide_outcome(REQUEST, cut, submitted_at_s=13.0, now=NOW)
    assert describe_finished(outcome, cut) == Finished(FailureCode.TRUNCATED, 2, False, 30, 8, 5)
    refused = Rejection(REQUEST.document_hash, FailureCode.PROMPT_TOO_LONG, "too long", 9_000)
    outcome = decide_outcome(REQUEST, refused, submitted_at_s=13.0, now=NOW)
    assert describe_finished(outcome, refused) == Finished(FailureCode.PROMPT_TOO_LONG, 2)


def test_nothing_is_told_unless_somebody_wants_it() -> None:
    events: list[Event] = []
    event = complete("stop")
    outcome = decide_outcome(REQUEST, event, submitted_at_s=13.0, now=NOW)
    failure = fail_unreadable(UnreadableRow(REQUEST.origin, b"2" * 16, "broken"), NOW)
    for is_wanted in (False, True):
        finished = FinishedDocuments(events.append, is_wanted=is_wanted)
        finished.note(outcome, event, is_asked_again=False)
        finished.note_unasked([failure])
        finished.tell()
        finished.tell()
    [told] = events
    assert isinstance(told, DocumentsFinished)
    assert [one.code for one in told.documents] == [None, FailureCode.UNREADABLE_ROW]
    assert told.documents[1].attempts == 0
    assert "secret" not in repr(told)
