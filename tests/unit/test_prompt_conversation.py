"""Few-shot turns, conversations that rows bring, plain texts: the messages that come of them."""

from typing import Any

import pytest

from bulkinfer.job import JobSpec
from bulkinfer.prompt import DocumentFault, Marked, Prompt, PromptTemplate
from bulkinfer.records import Document, FailureCode, JsonValue, Message, Origin, Span

TURNS = [{"role": "user", "content": "{{ a }}?"}, {"role": "assistant", "content": "{{ b | default('no') }}"}]


def template(prompt: dict[str, Any], **sampling: object) -> PromptTemplate:
    """Of a job with this prompt."""
    return PromptTemplate.of(
        JobSpec.model_validate(
            {
                "name": "a-job",
                "input": {"path": "a.jsonl"},
                "model": {"path": "org/name"},
                "prompt": prompt,
                "sampling": {"max_tokens": 48, **sampling},
                "output": {"database": "a.duckdb"},
            }
        )
    )


def document(**fields: JsonValue) -> Document:
    return Document(Origin("s", 1, "s:1"), fields)


def said(messages: tuple[Message, ...] | DocumentFault) -> list[tuple[str, str]]:
    assert isinstance(messages, tuple)
    return [(message.role, message.content) for message in messages]


def test_turns_stand_between_the_system_and_the_user_message() -> None:
    found = template({"system": "Reckon.", "turns": TURNS, "user": "{{ c }}"})
    assert found.fields == {"a", "b", "c"}
    assert found.columns == frozenset()
    assert said(found.render(document(a="1", c="2"))) == [
        ("system", "Reckon."),
        ("user", "1?"),
        ("assistant", "no"),
        ("user", "2"),
    ]


def test_a_fault_names_its_turn() -> None:
    fault = template({"turns": TURNS, "user": "x"}).render(document())
    assert isinstance(fault, DocumentFault)
    assert fault.message.startswith("prompt.turns.0, line 1: the field a is absent or null")


def test_a_turn_without_text_is_left_out_and_the_last_message_must_have_some() -> None:
    found = template({"turns": [{"role": "user", "content": "{{ a or '' }}"}], "user": "{{ c }}"})
    assert said(found.render(document(c="2"))) == [("user", "2")]
    fault = found.render(document(a="x", c=" "))
    assert fault == DocumentFault(FailureCode.EMPTY_PROMPT, "prompt.user gives no text on this document")


def test_a_text_is_one_message() -> None:
    found = template({"text": "{{ a }} and"})
    assert found.render(document(a="1")) == (Message("text", "1 and"),)
    fault = template({"text": "{{ a }}"}).render(document(a=""))
    assert fault == DocumentFault(FailureCode.EMPTY_PROMPT, "prompt.text gives no text on this document")


CONVERSATION: list[JsonValue] = [
    {"role": "user", "content": "2 + 2"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "3 + 3"},
]
SAID = [("user", "2 + 2"), ("assistant", "4"), ("user", "3 + 3")]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (CONVERSATION, [("system", "Reckon."), *SAID]),
        ([{"role": "system", "content": "Own."}, *CONVERSATION], [("system", "Own."), *SAID]),
        ('[{"role": "user", "content": "x"}]', [("system", "Reckon."), ("user", "x")]),
        # A table has all keys in all rows.
        ([{"role": "user", "content": "x", "name": None}], [("system", "Reckon."), ("user", "x")]),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
            [("system", "Reckon."), ("user", "a\nb")],
        ),
    ],
)
def test_a_row_brings_its_conversation(value: JsonValue, expected: list[tuple[str, str]]) -> None:
    found = template({"system": "Reckon.", "messages": "talk"})
    assert found.fields == found.columns == {"talk"}
    assert said(found.render(document(talk=value))) == expected


def test_all_that_the_row_brings_may_be_cut_but_for_its_system_message() -> None:
    found = template({"system": "Reckon.", "messages": "talk"})
    marked = found.render_marked(document(talk=CONVERSATION))
    assert isinstance(marked, Marked)
    assert marked.spans == (Span(1, 0, 5), Span(2, 0, 1), Span(3, 0, 5))
    own = found.render_marked(document(talk=[{"role": "system", "content": "Own."}, *CONVERSATION]))
    assert isinstance(own, Marked)
    assert own.spans == marked.spans
    unmarked = found.render_marked(document(talk=CONVERSATION), notes_spans=False)
    assert isinstance(unmarked, Marked)
    assert unmarked.spans == ()


LIST = "a list of messages, each with role and content"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("secret", LIST),
        ("{}", LIST),
        ("[]", LIST),
        (3, LIST),
        ([], LIST),
        ({"role": "user", "content": "secret"}, LIST),
        (["secret"], "message 1 to be a mapping of role and content"),
        ([*CONVERSATION, 3], "message 4 to be a mapping of role and content"),
        ([{"role": "user", "content": "secret", "name": "n"}], "message 1 to have role and content alone"),
        ([{"role": "secret", "content": "x"}], "the role of message 1 to be one of system, user, assistant"),
        ([{"role": ["user"], "content": "x"}], "the role of message 1 to be one of system, user, assistant"),
        ([{"content": "x"}], "the role of message 1 to be one of system, user, assistant"),
        ([{"role": "user"}], "the content of message 1 to be text"),
        ([{"role": "user", "content": None}], "the content of message 1 to be text"),
        ([{"role": "user", "content": 3}], "the content of message 1 to be text"),
        ([{"role": "user", "content": []}], "the content of message 1 to be text"),
        ([{"role": "user", "content": [{"type": "audio", "text": "x"}]}], "the content of message 1 to be text"),
        ([{"role": "user", "content": "half \ud800"}], "the content of message 1 to be text"),
        (
            [{"role": "user", "content": "x"}, {"role": "system", "content": "x"}],
            "message 2 not to be a system message: it comes first, once",
        ),
        (CONVERSATION[:2], "the last message to be the user's, and not the assistant's"),
        ([{"role": "system", "content": "x"}], "the last message to be the user's, and not the system's"),
    ],
)
def test_what_is_no_conversation_is_the_rows_fault(value: JsonValue, expected: str) -> None:
    fault = template({"messages": "talk"}).render(document(talk=value))
    message = f"prompt.messages: the field talk: expected {expected}"
    assert fault == DocumentFault(FailureCode.INVALID_FIELD, message)


@pytest.mark.parametrize("fields", [{}, {"talk": None}])
def test_a_row_without_a_conversation_misses_it(fields: dict[str, JsonValue]) -> None:
    fault = template({"messages": "talk"}).render(document(**fields))
    assert isinstance(fault, DocumentFault)
    assert (fault.code, "the field talk is absent or null" in fault.message) == ("missing_field", True)


def test_a_conversation_that_ends_with_nothing_is_an_empty_prompt() -> None:
    fault = template({"messages": "talk"}).render(document(talk=[{"role": "user", "content": " "}]))
    assert isinstance(fault, DocumentFault)
    assert fault.code is FailureCode.EMPTY_PROMPT


def test_only_a_system_and_a_user_message_or_a_text_have_a_bound() -> None:
    assert template({"system": "s", "user": "{{ a }}"}).bound_bytes(1) == 9
    assert template({"text": "{{ a }}"}).bound_bytes(1) == 8
    assert template({"user": "{{ a }}", "turns": [TURNS[0]] * 2}).bound_bytes(1) is None
    assert template({"messages": "talk"}).bound_bytes(1) is None
    assert template({"user": "{{ a }}"}, columns={"max_tokens": "most"}).bound_bytes(1) is None


def test_a_row_may_bring_sampling_parameters() -> None:
    found = template({"user": "{{ a }}"}, columns={"temperature": "warmth", "stop": "ends"})
    assert found.fields == {"a", "warmth", "ends"}
    assert found.columns == {"warmth", "ends"}
    assert found.prepare(document(a="x")) == Prompt((Message("user", "x"),), {})
    prompt = found.prepare(document(a="x", warmth=0.5, ends=["."]))
    assert prompt == Prompt((Message("user", "x"),), {"temperature": 0.5, "stop": ["."]})
    fault = found.prepare(document(a="secret", warmth="secret"))
    expected = "sampling.columns.temperature: the field warmth: expected a number"
    assert fault == DocumentFault(FailureCode.INVALID_FIELD, expected)
    assert isinstance(found.prepare(document(warmth=0.5)), DocumentFault), "the prompt's own faults are told too"
