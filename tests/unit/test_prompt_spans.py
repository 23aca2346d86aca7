"""Which stretches of a prompt the document brought: what may be cut, and what never is."""

import pytest

from bulkinfer.prompt import DocumentFault, Marked, PromptTemplate
from bulkinfer.records import Document, FailureCode, JsonValue, Origin, Span


def mark(user: str, fields: dict[str, JsonValue], system: str | None = None) -> Marked:
    rendered = PromptTemplate.parse(system, user).render_marked(Document(Origin("a.jsonl", 1, "a"), fields))
    assert isinstance(rendered, Marked), rendered
    return rendered


@pytest.mark.parametrize(
    ("template", "fields", "expected"),
    [
        ("Subject: {{ subject }}\n{{ body }}\nEnd.", {"subject": "Hi", "body": "there"}, ["Hi", "there"]),
        ("{{ body | trim | upper }}", {"body": " a b "}, ["A B"]),
        ("{{ body }}{{ body }}", {"body": "x"}, ["x", "x"]),
        ("{% for m in all %}{{ loop.index }}. {{ m.t }}\n{% endfor %}", {"all": [{"t": "a"}, {"t": "b"}]}, ["a", "b"]),
        ("{{ meta }}", {"meta": {"é": 1}}, ['{"é": 1}']),
        ("{{ 'To: ' ~ name }}", {"name": "Ada"}, ["To: Ada"]),
        ("{{ n }} {{ share }} {{ flag }}", {"n": 3, "share": 0.5, "flag": True}, []),
        ("x{{ body }}{{ more | default('') }}", {"body": ""}, []),
        ("Only text.", {}, []),
        ("{{ 'Be brief.' }} {{ 'a' if urgent else 'b' }}", {"urgent": "yes"}, []),
        ("{% set rules %}Be {{ 'brief' }}.{% endset %}{{ rules }} {{ body }}", {"body": "x"}, ["x"]),
        ("{% set a = 'one' %}{% set b = a ~ ', two' %}{{ b }}", {}, []),
        ("{% set all %}Title: {{ title }}{% endset %}{{ all }}", {"title": "T"}, ["Title: T"]),
        ("{% set a = b %}{% set b = title %}{{ a or 'x' }}{{ b }}", {"title": "T", "b": "B"}, ["B", "T"]),
        ("{% if t %}{% set u = t %}{% else %}{% set u = 'none' %}{% endif %}{{ t }}", {"t": "T"}, ["T"]),
    ],
)
def test_spans_are_what_fields_print(template: str, fields: dict[str, JsonValue], expected: list[str]) -> None:
    marked = mark(template, fields)
    (message,) = marked.messages
    assert [message.content[span.start : span.end] for span in marked.spans] == expected
    assert all(span.message == 0 and span.start < span.end for span in marked.spans)


def test_spans_name_the_message_that_they_are_in() -> None:
    marked = mark("{{ body }}", {"body": "text", "name": "Ada"}, "For {{ name }}.")
    assert marked.spans == (Span(0, 4, 7), Span(1, 0, 4))
    without_system = mark("{{ body }}", {"body": "text"}, "{% if name %}For {{ name }}.{% endif %}")
    assert without_system.spans == (Span(0, 0, 4),)


def test_marking_changes_nothing_in_the_messages() -> None:
    template = PromptTemplate.parse(
        "{{ a }}", "{% set b %}{{ a }}!{% endset %}{% for x in c %}{{ x }}{{ b }}{% endfor %}"
    )
    document = Document(Origin("a.jsonl", 1, "a"), {"a": "é", "c": ["p", "q"]})
    marked = template.render_marked(document)
    assert isinstance(marked, Marked)
    assert marked.messages == template.render(document)


def test_a_fault_of_the_document_is_one_here_too() -> None:
    fault = PromptTemplate.parse(None, "{{ body }}").render_marked(Document(Origin("a.jsonl", 1, "a"), {}))
    assert isinstance(fault, DocumentFault)
    assert fault.code is FailureCode.MISSING_FIELD
