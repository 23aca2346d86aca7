"""All documents in parts: what is looked up, together, and what need not be."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pytest

from bulkinfer.prompt.joining import JoinTemplate
from bulkinfer.records import FailureCode, Message, Origin, PartAnswer, Rejection, Request, Result, Span
from bulkinfer.runner.assemblies import Assemblies


class Stored:
    """What an earlier run has answered, and what was asked of it."""

    def __init__(self) -> None:
        self.parts: dict[bytes, PartAnswer] = {}
        self.look_ups: list[int] = []

    def find_parts(self, part_hashes: Sequence[bytes]) -> Mapping[bytes, PartAnswer]:
        self.look_ups.append(len(part_hashes))
        return {part_hash: self.parts[part_hash] for part_hash in part_hashes if part_hash in self.parts}


def begin(assemblies: Assemblies, body: str, name: str = "a", queued_at_s: float = 0.0) -> None:
    """A document whose parts are one letter each."""
    messages = (Message("user", f"{body}?"),)
    spans = (Span(0, 0, len(body)),)
    request = Request(
        name.encode(), Origin("a.jsonl", 1, name), messages, 9, spans=spans, fields={}, queued_at_s=queued_at_s
    )
    cuts = tuple((number, number + 1) for number in range(len(body)))
    assert assemblies.begin(request, Rejection(name.encode(), FailureCode.PROMPT_TOO_LONG, "", 900, 90, cuts, 80))


def create(stored: Stored, combine: str = "{{ parts | join('') }}") -> Assemblies:
    return Assemblies(JoinTemplate.parse(combine), stored.find_parts)


def answer(assemblies: Assemblies, request: Request, total_s: float = 1.0) -> None:
    """Every question is answered with its own text."""
    output = request.messages[-1].content.removesuffix("?")
    durations = total_s / 4, total_s / 2, total_s
    result = Result(request.document_hash, output, None, "stop", 1, 0, 1, *durations, 1, datetime.now(UTC))
    assemblies.settle(request, result, Rejection(b"", FailureCode.ENGINE_ERROR, ""))


def answer_all(assemblies: Assemblies) -> list[str]:
    """The texts that were asked."""
    asked = []
    while (request := assemblies.next_request()) is not None:
        asked.append(request.messages[-1].content)
        answer(assemblies, request)
    return asked


def outputs_of(assemblies: Assemblies) -> list[str]:
    return [one.outcome.output for one in assemblies.take_assembled() if isinstance(one.outcome, Result)]


def test_questions_of_many_documents_are_looked_up_at_once_and_joins_of_new_answers_never() -> None:
    stored = Stored()
    assemblies = create(stored)
    bodies = [chr(ord("a") + number) * 2 + "xyz" for number in range(20)]
    for body in bodies:
        begin(assemblies, body, body)
    asked = answer_all(assemblies)
    assert stored.look_ups == [20 + 3], "equal ones are one"
    assert len(asked) == 20 + 3 + 20
    assert outputs_of(assemblies) == bodies
    assert len(assemblies) == 0


@pytest.mark.parametrize("limit", ["MAX_LOOKED_UP", "MAX_CHARS_AHEAD"])
def test_no_more_prompts_are_made_ahead_than_the_limit(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(f"bulkinfer.runner.assemblies.{limit}", 4 if limit == "MAX_LOOKED_UP" else 8)
    stored = Stored()
    assemblies = create(stored)
    bodies = ["abcde", "fg", "hijkl"]
    for body in bodies:
        begin(assemblies, body, body)
    answer_all(assemblies)
    assert stored.look_ups == [4, 4, 4], "two characters each"
    assert outputs_of(assemblies) == bodies


def test_what_an_earlier_run_answered_is_not_asked_and_joins_of_it_are_looked_up() -> None:
    stored = Stored()
    first = create(stored)
    begin(first, "ab")
    answer_all(first)
    stored.parts = {part.part_hash: part for part in first.take_answered()}
    assert len(stored.parts) == 3
    stored.look_ups.clear()
    second = create(stored)
    begin(second, "ab")
    assert answer_all(second) == []
    assert stored.look_ups == [2, 1]
    assert outputs_of(second) == ["ab"]
    begin(second, "abc")
    assert answer_all(second) == ["c?", "abc"]
    assert stored.look_ups == [2, 1, 3]


def test_a_part_that_another_document_asked_for_earlier_counts_from_the_own_queue() -> None:
    assemblies = create(Stored())
    begin(assemblies, "ab", "early", queued_at_s=10.0)
    begin(assemblies, "ab", "late", queued_at_s=13.0)
    part_a, part_b = assemblies.next_request(), assemblies.next_request()
    assert part_a is not None
    assert part_b is not None
    answer(assemblies, part_a, total_s=2.0)
    answer(assemblies, part_b, total_s=4.0)
    join = assemblies.next_request()
    assert join is not None
    answer(assemblies, join, total_s=8.0)
    early, late = (one.outcome for one in assemblies.take_assembled())
    assert isinstance(early, Result)
    assert isinstance(late, Result)
    assert (early.queue_s, early.first_token_s, early.total_s) == (0.5, 4.0, 8.0)
    assert (late.queue_s, late.first_token_s, late.total_s) == (0.0, 1.0, 5.0)


def test_a_document_whose_answers_cannot_be_joined_ends_and_the_others_go_on() -> None:
    stored = Stored()
    assemblies = create(stored, "{% if parts | length == 3 %}{{ missing }}{% else %}{{ parts | join('') }}{% endif %}")
    for body in ("ab", "cde", "fg"):
        begin(assemblies, body, body)
    answer_all(assemblies)
    ended = [one.outcome for one in assemblies.take_assembled()]
    assert sorted(type(outcome).__name__ for outcome in ended) == ["Failure", "Result", "Result"]
    assert len(assemblies) == 0
