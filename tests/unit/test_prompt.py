"""Templates: what they print, what is a fault of the document, and that none can run away."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bulkinfer.errors import JobError
from bulkinfer.job import find_nearest
from bulkinfer.prompt import DocumentFault, PromptTemplate
from bulkinfer.records import Document, FailureCode, JsonValue, Message, Origin


def document(**fields: JsonValue) -> Document:
    return Document(Origin("tickets.jsonl", 1, "T-1"), fields)


def render(template: str, **fields: JsonValue) -> str:
    messages = PromptTemplate.parse(None, template).render(document(**fields))
    assert isinstance(messages, tuple), messages
    (message,) = messages
    assert message.role == "user"
    return message.content


def fault_of(template: str, **fields: JsonValue) -> DocumentFault:
    fault = PromptTemplate.parse(None, template).render(document(**fields))
    assert isinstance(fault, DocumentFault), fault
    return fault


def test_system_and_user_are_rendered_in_this_order() -> None:
    template = PromptTemplate.parse("You speak {{ language }}.", "{{ subject }}\n\n{{ body }}\n")
    messages = template.render(document(language="Dutch", subject="Hi", body="Help <b>me</b> & you"))
    assert messages == (Message("system", "You speak Dutch."), Message("user", "Hi\n\nHelp <b>me</b> & you"))


def test_a_system_message_without_text_is_left_out() -> None:
    assert PromptTemplate.parse("{% if a %}Be brief.{% endif %}", "x").render(document()) == (Message("user", "x"),)


def test_fields_are_those_of_both_templates_without_what_they_define_themselves() -> None:
    template = PromptTemplate.parse(
        "{{ tone | default('kind') }}",
        "{% set a = b %}{% for t in tags if t.n %}{{ loop.index }}{{ t }}{{ a }}{% endfor %}{{ customer.name }}",
    )
    assert template.fields == {"tone", "b", "tags", "customer"}


@pytest.mark.parametrize(
    ("template", "fields", "expected"),
    [
        ("{{ a }}", {"a": 3}, "3"),
        ("{{ a }}", {"a": 0.1}, "0.1"),
        ("{{ a }}", {"a": 2**70}, "1180591620717411303424"),
        ("{{ a }}", {"a": True}, "True"),
        ("{{ a }}", {"a": {"x": [1, None, "é", True]}}, '{"x": [1, null, "é", true]}'),
        ("{{ a }}", {"a": []}, "[]"),
        ("{{ a | tojson }}", {"a": "x"}, '"x"'),
        ("{{ a | tojson(indent=1) }}", {"a": [1]}, "[\n 1\n]"),
        ("{{ a or 'none' }}{% if a %}!{% endif %}", {"a": None}, "none"),
        ("{{ a or 'none' }}{% if a %}!{% endif %}", {}, "none"),
        ("{{ a | default('-') }}", {"a": None}, "-"),
        ("{{ a | default('-') }}", {}, "-"),
        ("{{ a | default('-', true) }}", {"a": ""}, "-"),
        ("{{ a.b.c | default('-') }}", {}, "-"),
        ("{{ a.b.c | default('-') }}", {"a": {"b": None}}, "-"),
        ("{{ a is defined }} {{ a is none }}", {"a": None}, "True True"),
        ("{{ a is defined }}", {}, "False"),
        ("{{ a.b[1].c }}", {"a": {"b": [0, {"c": "x"}]}}, "x"),
        ("{{ a.items }}", {"a": {"items": 3}}, "3"),
        ("{% for x in a %}{{ x.upper() }}{{ loop.cycle('-', '+') }}{% endfor %}", {"a": ["p", "q"]}, "P-Q+"),
        ("{% for k, v in a.items() %}{{ k }}={{ v }};{% endfor %}", {"a": {"y": 1, "x": 2}}, "y=1;x=2;"),
        (
            "{% for t in a %}{{ loop.index }}/{{ loop.length }} {{ t }}, {% endfor %}",
            {"a": ["p", "q"]},
            "1/2 p, 2/2 q, ",
        ),
        ("{% for t in a %}{{ t }}{% else %}nothing{% endfor %}", {"a": []}, "nothing"),
        ("{{ a | join(', ') }}", {"a": ["x", 1]}, "x, 1"),
        ("{{ ', '.join(a) }}", {"a": ["x", "y"]}, "x, y"),
        ("{{ a | map(attribute='n.m') | join('+') }}", {"a": [{"n": {"m": "x"}}, {"n": {"m": "y"}}]}, "x+y"),
        ("{{ a | map('upper') | join }}", {"a": ["x", "y"]}, "XY"),
        (
            "{{ a | selectattr('n', 'equalto', 2) | map(attribute='t') | join }}",
            {"a": [{"n": 1, "t": "x"}, {"n": 2, "t": "y"}]},
            "y",
        ),
        ("{{ a | select | list }}{{ a | reject('none') | list }}", {"a": [0, None, 1]}, "[1][0, 1]"),
        (
            "{{ a | sort(reverse=true) | first }}{{ a | unique | length }}{{ a | sum }}{{ a | max }}",
            {"a": [2, 3, 2]},
            "3273",
        ),
        ("{{ a | truncate(9) }}", {"a": "one two three four"}, "one..."),
        ("{{ a | indent(2) }}", {"a": "x\ny"}, "x\n  y"),
        ("{{ a | replace('l', 'L') | title | trim }}", {"a": " hello "}, "Hello"),
        ("{{ a.upper()[:3] }}{{ a.split(',')[1] }}", {"a": "abc,def"}, "ABCdef"),
        ("{{ a ~ ': ' ~ b }}", {"a": "x", "b": [1]}, "x: [1]"),
        ("{{ '-' * 5 }}{{ a + 1 }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 'a' + 'b' }}", {"a": 1.5}, "-----2.533ab"),
        ("{{ 'yes' if 'x' in a and a | length > 1 else 'no' }}", {"a": "xyz"}, "yes"),
        ("{% set greeting %}Hi {{ a }}{% endset %}{{ greeting | upper }}", {"a": "you"}, "HI YOU"),
        ("{% with n = a | wordcount %}{{ n }}{% endwith %}", {"a": "a b c"}, "3"),
        ("${{ a }} {% raw %}{{ a }}{% endraw %}{# no #}", {"a": 5}, "$5 {{ a }}"),
    ],
)
def test_what_templates_print(template: str, fields: dict[str, JsonValue], expected: str) -> None:
    assert render(template, **fields) == expected


@pytest.mark.parametrize(
    ("template", "fields", "named"),
    [
        ("{{ body }}", {}, "the field body "),
        ("{{ body }}", {"body": None}, "the field body "),
        ("{{ a.b }}", {"a": {}}, "the field a.b "),
        ("{{ a.b }}", {"a": {"b": None}}, "the field a.b "),
        ("{{ a.b }}", {"a": "text"}, "the field a.b "),
        ("{{ a[0].b }}", {"a": []}, "the field a.0.b "),
        ("{{ body | upper }}", {"body": None}, "a value "),
        ("{{ body | upper }}", {}, "a value "),
        ("{{ 'x' ~ body }}", {"body": None}, "the field body "),
        ("{{ body == 'x' }}", {}, "the field body "),
        ("{{ body + 1 }}", {}, "the field body "),
        ("{% for x in body %}{{ x }}{% endfor %}", {"body": None}, "the field body "),
        ("{% for x in body %}{{ x }}{% endfor %}", {}, "the field body "),
        ("{{ a | join }}", {"a": ["x", None]}, "a value "),
    ],
)
def test_printing_what_is_absent_or_null_names_the_field(
    template: str, fields: dict[str, JsonValue], named: str
) -> None:
    fault = fault_of("first line\n" + template, **fields)
    assert fault.code == FailureCode.MISSING_FIELD
    assert fault.message.startswith(f"prompt.user, line 2: {named}is absent or null; ")


def test_a_field_named_by_the_document_itself_is_not_shown() -> None:
    assert "secret" not in fault_of("{{ a[b] }}{{ a[b] + 1 }}", a={}, b="secret").message
    assert "secret" not in fault_of("{{ a[b] + 1 }}", a={}, b="secret").message


def test_faults_of_the_system_template_say_so() -> None:
    fault = PromptTemplate.parse("{{ tone }}", "x").render(document())
    assert isinstance(fault, DocumentFault)
    assert fault.message.startswith("prompt.system, line 1: the field tone ")


@pytest.mark.parametrize("body", ["", " \n\t\u00a0"])
def test_a_user_message_without_text_is_an_empty_prompt(body: str) -> None:
    template = PromptTemplate.parse("Be brief.", "{{ body }}\n")
    fault = template.render(document(body=body))
    assert fault == DocumentFault(FailureCode.EMPTY_PROMPT, "prompt.user gives no text on this document")


DEEP: JsonValue = "x"
for _ in range(5000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("template", "fields", "error"),
    [
        ("{{ 1 / a }}", {"a": 0}, "ZeroDivisionError"),
        ("{{ a + 1 }}", {"a": "secret"}, "TypeError"),
        ("{{ a < 1 }}", {"a": "secret"}, "TypeError"),
        ("{{ a.upper }}", {"a": "secret"}, "TypeError"),
        ("{{ a | sum }}", {"a": ["secret"]}, "TypeError"),
        ("{{ a | map('secret') | list }}", {"a": ["secret"]}, "KeyError"),
        ("{{ a }}", {"a": DEEP}, "RecursionError"),
        ("{{ a }}", {"a": "\ud800"}, "UnicodeEncodeError"),
        ("{% for x, y in a %}{% endfor %}", {"a": ["secret"]}, "ValueError"),
        ("{{ '%1000000000d' % a }}", {"a": 1}, "TypeError"),
        ("{{ '{:1000000000d}'.format(a) }}", {"a": 1}, "SecurityError"),
        ("{{ 'x'.center(1000000000) }}", {}, "SecurityError"),
        ("{{ a.__class__ }}", {"a": "x"}, "SecurityError"),
        ("{{ s.__class__.__mro__ }}", {"s": "x"}, "SecurityError"),
        ("{{ a.items.__self__ }}", {"a": {}}, "SecurityError"),
    ],
)
def test_other_errors_give_class_and_line_and_no_text(template: str, fields: dict[str, JsonValue], error: str) -> None:
    fault = fault_of("\n\n" + template, **fields)
    line = "?" if error == "UnicodeEncodeError" else 3
    assert fault == DocumentFault(FailureCode.TEMPLATE_ERROR, f"prompt.user, line {line}: {error} on this document")


def test_attributes_of_python_objects_cannot_be_reached_by_any_way() -> None:
    assert render("{{ a | map(attribute='__class__') | list }}", a=["x"]) == "[null]"
    assert fault_of("{{ a['__class__'] }}", a="x").code == FailureCode.MISSING_FIELD
    assert render("{{ a.__class__ }}", a={"__class__": "a field like any other"}) == "a field like any other"


BIG = "x" * 5_000_000
MANY: JsonValue = list(range(100_000))


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("template", "fields"),
    [
        ("{{ 'a' * 1000000000 }}", {}),
        ("{{ [a] * 1000000000 }}", {"a": 1}),
        (
            "{% for x in a %}{% for y in a %}{% for z in a %}{% set q = z %}{% endfor %}{% endfor %}{% endfor %}",
            {"a": MANY},
        ),
        ("{% for x in a %}{{ b in b }}{% endfor %}", {"a": MANY, "b": BIG}),
        ("{% for x in a %}{{ b[1:] | length }}{% endfor %}", {"a": MANY, "b": BIG}),
        ("{% for x in a %}{{ b | upper | length }}{% endfor %}", {"a": MANY, "b": BIG}),
        ("{% for x in a %}{{ b.lower() | length }}{% endfor %}", {"a": MANY, "b": BIG}),
        ("{% for x in a %}{{ c | max }}{% endfor %}", {"a": MANY, "c": MANY}),
        ("{% for x in a %}{{ b }}{% endfor %}", {"a": MANY, "b": BIG}),
        ("{% set s %}{% for x in a %}{{ b }}{% endfor %}{% endset %}.", {"a": MANY, "b": BIG}),
        ("{% set s %}{% for x in a %}" + "static " * 10_000 + "{% endfor %}{% endset %}.", {"a": MANY}),
        ("{% set b = a ~ a %}" + "{% set b = b ~ b %}" * 40 + "{{ b }}", {"a": "x"}),
        ("{% set b = a + a %}" + "{% set b = b + b %}" * 40 + "{{ b }}", {"a": "x"}),
        ("{% set b = [a, a] %}" + "{% set b = [b, b] %}" * 40 + "{{ b }}", {"a": "x"}),
        ("{% set b = [a, a] %}" + "{% set b = [b, b] %}" * 40 + "{{ b | tojson | length }}", {"a": "x"}),
        ("{% set b = a | replace('', a) %}" + "{% set b = b | replace('', b) %}" * 20 + "{{ b }}", {"a": "xxxxx"}),
        ("{{ a | join(b) }}", {"a": MANY, "b": BIG}),
        ("{{ b.join(a) }}", {"a": MANY, "b": BIG}),
        ("{{ a | indent(1000000000) }}", {"a": "\n" * 1_000_000}),
        ("{{ a | map('default', b) | map('upper') | list | length }}", {"a": [None] * 100_000, "b": BIG}),
        ("{{ b }}" * 14, {"b": BIG}),
    ],
)
def test_no_template_runs_away(template: str, fields: dict[str, JsonValue]) -> None:
    started = time.monotonic()
    fault = fault_of(template, **fields)
    assert time.monotonic() - started < 10
    assert fault.code == FailureCode.TEMPLATE_ERROR
    assert "too much work" in fault.message or "longer than" in fault.message


def test_integers_cannot_grow_without_end() -> None:
    fault = fault_of("{% set x = a * a %}" + "{% set x = x * x %}" * 40 + "{{ x }}", a=7)
    assert fault.message == "prompt.user, line 1: OverflowError on this document"


def test_a_document_of_20_megabytes_renders() -> None:
    assert len(render("{{ body | trim }}", body=" " + "é" * 20_000_000)) == 20_000_000


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ body", "prompt.user, line 1: the template does not parse: unexpected end of template"),
        ("a\n{% if body %}", "prompt.user, line 2: the template does not parse: Unexpected end of template"),
        ("a\nb {{ body | uper }}", "line 2: the template does not parse: unknown filter 'uper'; did you mean upper?"),
        ("{{ body | random }}", "unknown filter 'random'; known are abs, "),
        ("{{ body is strange }}", "unknown test 'strange'"),
        ("{% for x in range(3) %}{% endfor %}", "functions are not available in prompts"),
        ("{{ 10 ** 9 }}", "pow is not available in prompts"),
        ("{% macro f() %}{{ f() }}{% endmacro %}", "macro is not available in prompts"),
        ("{% include 'x' %}", "include is not available in prompts"),
        ("{% for x in a recursive %}{{ loop(x) }}{% endfor %}", "recursive loops are not available"),
        ("{{ self }}", "the name 'self' is Jinja's own"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "prompt.user: the template does not parse: RecursionError"),
        ("{{ " + "9" * 5000 + " }}", "prompt.user: the template does not parse: ValueError"),
        ("{{ " + "not " * 100 + "a }}", "nested too deeply"),
        ("{% for x in a %}" * 30 + "{% endfor %}" * 30, "nested too deeply"),
    ],
)
def test_templates_that_do_not_parse(template: str, message: str) -> None:
    with pytest.raises(JobError) as raised:
        PromptTemplate.parse(None, template)
    assert message in str(raised.value)


def test_a_system_template_that_does_not_parse_says_which_it_is() -> None:
    with pytest.raises(JobError, match=r"^prompt\.system, line 1: "):
        PromptTemplate.parse("{{", "x")


VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
EXPRESSIONS = st.sampled_from([
    "a", "b", "a.b", "a[b]", "a[0]", "a[1:]", "a[b:]", "a ~ b", "a + b", "a * b", "a - b", "a / b", "a // b", "a % b",
    "-a", "a == b", "a < b", "a in b", "a is mapping", "a if b else a", "not a", "a and b", "'x'", "3", "[a, b]",
    "{'k': a}", "a.items()", "a.get(b)", "a.split(b)", "a.join(b)", "a.replace(b, b)", "a.find(b)", "a is odd",
])  # fmt: skip
FILTERS = st.sampled_from([
    "abs", "capitalize", "count", "dictsort", "escape", "first", "float", "indent", "int", "items", "join", "last",
    "length", "list", "lower", "max", "min", "reject", "reverse", "round", "select", "sort", "string", "sum", "title",
    "tojson", "trim", "truncate", "unique", "upper", "urlencode", "wordcount", "default(b)", "join(b)", "tojson(b)",
    "replace(b, b)", "indent(b)", "truncate(b)", "round(b)", "sum(b)", "map(b)", "map('upper')", "map(attribute=b)",
    "selectattr(b)", "rejectattr(b)", "select('eq', b)", "default(b, b)", "sort(b)",
])  # fmt: skip


@settings(deadline=None)
@given(
    st.lists(st.tuples(EXPRESSIONS, st.lists(FILTERS, max_size=3), st.booleans()), min_size=1, max_size=3),
    st.fixed_dictionaries({}, optional={"a": VALUES, "b": VALUES}),
)
def test_rendering_never_raises(parts: list[tuple[str, list[str], bool]], fields: dict[str, JsonValue]) -> None:
    texts = []
    for expression, filters, is_loop in parts:
        value = "|".join([f"({expression})", *filters])
        texts.append(f"{{% for x in {value} %}}{{{{ x }}}}{{% endfor %}}" if is_loop else f"{{{{ {value} }}}}")
    rendered = PromptTemplate.parse(None, "".join(texts)).render(Document(Origin("s", 1, "s:1"), fields))
    assert isinstance(rendered, tuple | DocumentFault)


@settings(deadline=None)
@given(st.text())
def test_parsing_raises_nothing_but_job_errors(template: str) -> None:
    try:
        PromptTemplate.parse(template, template)
    except JobError as error:
        assert str(error).startswith("prompt.")  # noqa: PT017 - most texts parse


@pytest.mark.parametrize(
    ("name", "nearest"), [("subjct", "subject"), ("Body", "body"), ("ticketid", "ticket_id"), ("qqq", None)]
)
def test_nearest_field(name: str, nearest: str | None) -> None:
    assert find_nearest(name, ["body", "subject", "ticket_id"]) == nearest
