"""Templates that try to get out of the sandbox, or to take all the time and memory: none does either."""

import pytest

from bulkinfer.errors import JobError
from bulkinfer.prompt import DocumentFault, PromptTemplate
from bulkinfer.records import Document, FailureCode, JsonValue, Message, Origin

SECRET = "zqsecretdocument"
LONG = "x" * 5_000_000
LIST: JsonValue = list(range(200_000))
OBJECTS: JsonValue = [{"a": "x"}] * 100_000
FIELDS: dict[str, JsonValue] = {
    "s": SECRET,
    "d": {"k": SECRET},
    "long": LONG,
    "list": LIST,
    "objects": OBJECTS,
    "digits": 10**4000,
    "big_float": 1e308,
}
LIMIT_S = 60
"""Against a rendering that never ends. The slowest takes seconds, on a busy machine."""

NOT_PROMPTS = [
    "{{ cycler('a') }}",
    "{{ joiner() }}",
    "{{ namespace(a=1) }}",
    "{{ lipsum() }}",
    "{{ range(1000000000) }}",
    "{{ dict(a=1) }}",
    "{{ caller() }}",
    "{{ d|attr('__class__') }}",
    "{{ '%s'|format(s) }}",
    "{{ d.items.__call__()() }}",
    '{{ "".__class__ }}',
    "{{ ''.__class__.__mro__[1] }}",
    "{{ [].__class__ }}",
    "{{ (1 + 1).__class__ }}",
    "{{ (s ~ 'a').__class__ }}",
    "{{ 1 if ''._x else 2 }}",
    "{{ s.__add__(s) }}",
    "{{ ([d.items]|first)() }}",
    "{{ s['upper']() }}",
    "{{ s is callable }}",
    "{{ s|xmlattr }}",
    "{{ s|pprint }}",
    "{{ s|center(1000000000) }}",
    "{{ s|wordwrap(1) }}",
    "{{ list|batch(2) }}",
    "{{ list|groupby('a') }}",
    "{{ 10 ** 10 }}",
    "{% import 'os' as os %}",
    "{% from 'os' import path %}",
    "{% extends 'x' %}",
    "{% include '/etc/passwd' %}",
    "{% block a %}{% endblock %}",
    "{% macro a() %}{% endmacro %}",
    "{% call a() %}{% endcall %}",
    "{% filter upper %}a{% endfilter %}",
    "{% do 1 %}",
    "{% break %}",
    "{% autoescape true %}{% endautoescape %}",
    "{% set d.b = 1 %}",
    "{% debug %}",
]

REACHING = [
    f"{{{{ {name} }}}}"
    for name in (
        "__builtins__",
        "varargs",
        "kwargs",
        "context",
        "environment",
        "resolve",
        "undefined",
        "missing",
        "escape",
        "blocks",
        "l_0_s",
        "t_1",
        "loop",
        "cycler.__init__.__globals__",
        "s.__class__",
        "s.upper.__self__",
        "s.upper['__self__']",
        "s['__class__']",
        "d['__init__']",
        "d.items.__func__",
        "d.items.__globals__",
        "d.pop('k')",
        "d.update({})",
        "d.fromkeys(s)",
        "list.append(1)",
        "s.format()",
        "'{0.__class__}'.format(s)",
        "'{0.__class__}'.format_map(d)",
        "'%s' % d",
        "s.encode()",
        "s.translate(d)",
        "s.maketrans(d)",
        "s.expandtabs(1000000000)",
        "s.ljust(1000000000)",
        "s.zfill(1000000000)",
        "d.items",
        "[d.items]",
        "[d.items] | tojson",
        "d.items ~ 1",
    )
] + [
    "{% for x in [1] %}{{ loop.__class__ }}{% endfor %}",
    "{% for x in [1] %}{{ loop._iterable }}{% endfor %}",
    "{% for x in [1] %}{{ loop.cycle.__func__ }}{% endfor %}",
    "{% for x in [1] %}{{ loop }}{% endfor %}",
]

DOUBLED = "{% set x = 'a' %}" + "{% set x = (x, x) %}" * 30
"""Thirty small tuples that look like a billion elements to whoever walks them."""

COSTLY = [
    "{{ 1000000000 * 'a' }}",
    "{{ (1, 2) * 1000000000 }}",
    "{{ 'a' * digits }}",
    "{{ digits * digits }}",
    "{{ long | replace('', long) }}",
    "{{ ('\\n' * 1000) | indent(long) }}",
    "{{ long.strip('y' * 4000000 ~ 'x') }}",
    "{% for i in list %}{{ s.strip(long) }}{% endfor %}",
    "{{ objects | map(attribute=long) | list }}",
    "{{ objects | map(attribute='.' * 1000000) | list }}",
    "{{ objects | sum(attribute='.' * 1000000) }}",
    "{% for i in list %}{{ s | truncate(1, end=long, leeway=0) | length }}{% endfor %}",
    "{% for i in list %}{% set q = s | default(*list) %}{% endfor %}.",
    "{% for i in list %}{{ loop.cycle(*list) }}{% endfor %}",
    "{% set c = long ~ '' %}{% for i in list %}{{ loop.changed(long if i is odd else c) }}{% endfor %}",
    "{% set c = long ~ '' %}{% for i in list %}{% if {long: 1}[c] %}{% endif %}{% endfor %}.",
    "{% for i in list %}{{ d.get(long ~ '') is none }}{% endfor %}",
    "{% for i in list %}{% set q = digits ~ digits %}{% endfor %}.",
    DOUBLED + "{{ {x: 1} | length }}",
    DOUBLED + "{{ d[x] }}",
    DOUBLED + "{{ d.get(x) }}",
    DOUBLED + "{{ [x] | unique | length }}",
    DOUBLED + "{{ x == x }}",
]


def render(template: str) -> tuple[Message, ...] | DocumentFault:
    return PromptTemplate.parse(None, template).render(Document(Origin("s", 1, "s:1"), FIELDS))


def fault_of(template: str) -> DocumentFault:
    rendered = render(template)
    if not isinstance(rendered, DocumentFault):  # not asserted: pytest would print megabytes
        pytest.fail(f"it gave a prompt of {len(rendered[-1].content)} characters")
    return rendered


@pytest.mark.parametrize("template", NOT_PROMPTS)
def test_what_prompts_do_not_have_is_refused_with_the_job(template: str) -> None:
    with pytest.raises(JobError, match=r"^prompt\.user, line 1: the template does not parse: "):
        PromptTemplate.parse(None, template)


@pytest.mark.parametrize("template", REACHING)
def test_reaching_for_python_is_a_fault_of_the_document(template: str) -> None:
    fault = fault_of(template)
    assert fault.code in {FailureCode.TEMPLATE_ERROR, FailureCode.MISSING_FIELD}
    assert SECRET not in fault.message


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("template", COSTLY, ids=range(len(COSTLY)))
def test_what_would_cost_too_much_is_a_fault_of_the_document(template: str) -> None:
    fault = fault_of(template)
    assert fault.code is FailureCode.TEMPLATE_ERROR
    assert SECRET not in fault.message


def test_keys_and_paths_that_are_paid_for_still_work() -> None:
    assert render("{{ {'a': s}['a'] }}{{ d['k'] }}{{ [d] | map(attribute='k') | first }}") == (
        Message("user", 3 * SECRET),
    )
    assert render("{{ ' .x. '.strip(' .') }}{{ [[1, 2]] | map(attribute=1) | first }}") == (Message("user", "x2"),)


def test_a_key_of_a_field_may_begin_with_underscores() -> None:
    document = Document(Origin("s", 1, "s:1"), {"_id": "a", "doc": {"_id": "b", "__v": "c", "__class__": "d"}})
    template = PromptTemplate.parse(None, "{{ _id }}{{ doc._id }}{{ doc.__v }}{{ doc.__class__ }}")
    assert template.render(document) == (Message("user", "abcd"),)
