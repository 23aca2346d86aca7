"""The bound on a prompt's length holds for every document, and templates that may lengthen have none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkinfer.fingerprint import write_canonical
from bulkinfer.prompt import DocumentFault, PromptTemplate
from bulkinfer.records import Document, JsonValue, Origin

PLAIN = [
    "{{ a }}",
    "x {{ a }}{{ a }} é",
    "{{ a ~ b ~ a }}",
    "{% if a == b %}{{ a }}{% elif b %}{{ b }}{% else %}none of them{% endif %}",
    "{{ a | default('nothing') | trim }} {{ b | default(a) }}",
    "{{ 'yes' if a is string else b }}",
    "{{ a.c | default(a) }}{{ a['c'] | default(7) }}",
]
LENGTHENING = [
    "{% for x in a %}{{ b }}{% endfor %}",
    "{{ a * 100 }}",
    "{{ a + a }}",
    "{{ a | replace('a', 'bbb') }}",
    "{{ a | upper }}",
    "{% set c = a ~ a %}{{ c }}",
    "{{ 1e15 }}",
]
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@pytest.mark.parametrize("user", PLAIN)
@given(a=VALUES, b=VALUES)
def test_no_prompt_is_longer_than_its_bound(user: str, a: JsonValue, b: JsonValue) -> None:
    template = PromptTemplate.parse("Für {{ b | default('x') }}", user)
    fields = {"a": a, "b": b}
    rendered = template.render(Document(Origin("f", 1, "f:1"), fields))
    factor = 1 if isinstance(a, str) and isinstance(b, str) else 2
    bound = template.bound_bytes(factor * len(write_canonical(fields)))
    assert bound is not None
    if not isinstance(rendered, DocumentFault):
        assert sum(len(message.content.encode()) for message in rendered) <= bound


@pytest.mark.parametrize("user", LENGTHENING)
def test_a_template_that_may_lengthen_has_no_bound(user: str) -> None:
    assert PromptTemplate.parse(None, user).bound_bytes(1) is None


def test_the_bound_of_a_simple_template_is_tight() -> None:
    assert PromptTemplate.parse("Sum up.", "{{ a }}").bound_bytes(100) == len("Sum up.") + len("{{ a }}") + 100
