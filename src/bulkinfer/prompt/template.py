"""The templates of a job, parsed once, rendered for each document."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from jinja2 import Template, meta
from jinja2.exceptions import TemplateError, TemplateSyntaxError, UndefinedError

from bulkinfer.errors import JobError
from bulkinfer.job import JobSpec
from bulkinfer.job.document import QUOTED
from bulkinfer.prompt.bound import count_prints
from bulkinfer.prompt.budget import MAX_OUTPUT_CHARS, Budget, TooExpensive
from bulkinfer.prompt.sandbox import Sandbox
from bulkinfer.prompt.syntax import check_tree, price_tree
from bulkinfer.prompt.values import BUDGET, PRINTED, Printed
from bulkinfer.records import Document, FailureCode, Message, Span

# What an allowed part of a template can raise on some value; RecursionError, a RuntimeError, on one nested deeply.
# NameError: a constant such as 1e400 is compiled to `inf`, which no template knows.
_FAULTS = (TemplateError, ArithmeticError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)
_Stretches = list[tuple[int, int]]
_JINJA_WORDS = frozenset(
    {"end of print statement", "end of statement block", "begin of statement block", "end of template", "name"}
    | {"for", "in", "if", "elif", "else", "endif", "endfor", "set", "endset", "with", "endwith", "raw", "endraw"}
)


@dataclass(frozen=True, slots=True)
class DocumentFault:
    """Why one document gives no prompt."""

    code: FailureCode
    message: str
    """Names template, line and field; never quotes the document."""


@dataclass(frozen=True, slots=True)
class Marked:
    """The messages for one document, and what in them the document brought."""

    messages: tuple[Message, ...]
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the templates."""

    role: str
    """Its key in `prompt`."""
    template: Template
    fields: frozenset[str]
    num_chars: int
    """Of its source."""
    num_bytes: int
    num_prints: int | None
    """See `count_prints`."""

    @property
    def name(self) -> str:
        return f"prompt.{self.role}"


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """The templates of one job. Several threads may render at the same time."""

    parts: tuple[_Part, ...]
    fields: frozenset[str]
    """The fields of a document that the templates use, whether they must be there or not."""

    @classmethod
    def parse(cls, system: str | None, user: str) -> "PromptTemplate":
        """Of a conversation. Raises JobError as `of` does."""
        return cls._parse_all({"user": user} if system is None else {"system": system, "user": user})

    @classmethod
    def of(cls, spec: JobSpec) -> "PromptTemplate":
        """Of a job. Raises JobError, naming template and line, for what does not parse and for what prompts do not
        have."""
        return cls._parse_all(spec.prompt.templates)

    @classmethod
    def _parse_all(cls, templates: Mapping[str, str]) -> "PromptTemplate":
        parts = tuple(_parse_part(role, source) for role, source in templates.items())
        return cls(parts, frozenset[str]().union(*(part.fields for part in parts)))

    @property
    def num_chars(self) -> int:
        """Characters of template text that each document gets a copy of. Text without fields is shared by all."""
        return sum(part.num_chars for part in self.parts if part.fields)

    def bound_bytes(self, fields_bytes: int) -> int | None:
        """The most bytes that the messages can have where each field printed adds at most `fields_bytes`.

        None where the templates set no bound.
        """
        prints = [part.num_prints for part in self.parts if part.num_prints is not None]
        if len(prints) < len(self.parts):
            return None
        return sum(part.num_bytes for part in self.parts) + sum(prints) * fields_bytes

    def render(self, document: Document) -> tuple[Message, ...] | DocumentFault:
        """What the model reads of one document, a message for each template. Never raises for a fault of the document.

        A system message without text is left out; any other must have some.
        """
        rendered = self.render_marked(document, notes_spans=False)
        return rendered.messages if isinstance(rendered, Marked) else rendered

    def render_marked(self, document: Document, *, notes_spans: bool = True) -> Marked | DocumentFault:
        """The same, and which stretches of it are the document's: printed numbers are not told, nor is what a template
        prints of its own. What a `{% set %}` block gathers is the document's as a whole if a field is in it.

        Without `notes_spans` there are none, and nothing is spent on them.
        """
        budget = Budget()
        printed = Printed() if notes_spans else None
        messages: list[Message] = []
        spans: list[Span] = []
        for part in self.parts:
            rendered = _render_part(part, document, budget, printed)
            if isinstance(rendered, DocumentFault):
                return rendered
            content, stretches = rendered
            if content and not content.isspace():
                spans += (Span(len(messages), start, end) for start, end in stretches)
                messages.append(Message(part.role, content))
        written = {message.role for message in messages}
        for part in self.parts:
            if part.role not in written and part.role != "system":
                return DocumentFault(FailureCode.EMPTY_PROMPT, f"{part.name} gives no text on this document")
        return Marked(tuple(messages), tuple(spans))


def _parse_part(role: str, source: str) -> _Part:
    environment = Sandbox()
    name = f"prompt.{role}"
    tree = None
    try:
        tree = environment.parse(source)
        check_tree(tree)
        fields = frozenset(meta.find_undeclared_variables(tree))
        num_prints = count_prints(tree)
        code = environment.compile(price_tree(tree), name, name)
    except TemplateSyntaxError as error:
        fault = QUOTED.sub(_hide_quoted, str(error.message)) if tree is None else str(error.message)
        raise JobError(f"{name}, line {error.lineno}: the template does not parse: {fault[:200]}") from None
    except (RecursionError, SyntaxError, ValueError) as error:
        # Brackets nested beyond Python's limits, or a number of over 4,300 digits.
        raise JobError(f"{name}: the template does not parse: {type(error).__name__}; simplify it") from None
    template = Template.from_code(environment, code, environment.globals)
    return _Part(role, template, fields, len(source), len(source.encode(errors="replace")), num_prints)


def _hide_quoted(match: re.Match[str]) -> str:
    """Jinja quotes what it found, which may be text of the prompt; its own words and signs are kept."""
    quoted = match[0]
    is_known = quoted[1:-1] in _JINJA_WORDS or not any(map(str.isalnum, quoted))
    return quoted if is_known else "..."


def _render_part(
    part: _Part, document: Document, budget: Budget, printed: Printed | None
) -> tuple[str, _Stretches] | DocumentFault:
    fields = document.fields
    variables: dict[str, Any] = {name: fields[name] for name in part.fields if name in fields}
    variables[BUDGET] = budget
    variables[PRINTED] = printed
    try:
        return _concat_pieces(part.template, variables, printed)
    except UndefinedError as error:
        field = f"the field {error.message}" if error.message else "a value"
        advice = "give it a default, or mend the document"
        message = f"{part.name}, line {_line_of(error, part)}: {field} is absent or null; {advice}"
        return DocumentFault(FailureCode.MISSING_FIELD, message)
    except TooExpensive as error:
        return DocumentFault(FailureCode.TEMPLATE_ERROR, f"{part.name}, line {_line_of(error, part)}: {error.message}")
    except _FAULTS as error:
        message = f"{part.name}, line {_line_of(error, part)}: {type(error).__name__} on this document"
        return DocumentFault(FailureCode.TEMPLATE_ERROR, message)


def _concat_pieces(template: Template, variables: dict[str, Any], printed: Printed | None) -> tuple[str, _Stretches]:
    """The text, and where in it the document's stretches begin and end: none where nobody notes what is printed."""
    pieces = []
    stretches: _Stretches = []
    num_chars = 0
    for piece in template.root_render_func(template.new_context(variables, shared=True)):
        # Jinja yields each print by itself. What a block prints is gathered first, and comes with the block's print.
        if printed is not None and piece and piece is printed.text:
            stretches.append((num_chars, num_chars + len(piece)))
            printed.text = None
        num_chars += len(piece)
        if num_chars > MAX_OUTPUT_CHARS:
            raise TooExpensive(f"the message is longer than {MAX_OUTPUT_CHARS} characters")
        pieces.append(piece)
    content = "".join(pieces)
    if not content.isascii():
        # Half a character can neither be sent to the engine nor be tokenised.
        content.encode()
    return content, stretches


def _line_of(error: BaseException, part: _Part) -> int | str:
    """The line of the template where an error came from."""
    line: int | str = "?"
    traceback: TracebackType | None = error.__traceback__
    while traceback:
        if traceback.tb_frame.f_code.co_filename == part.name:
            line = part.template.get_corresponding_lineno(traceback.tb_lineno)
        traceback = traceback.tb_next
    return line
