"""One template of a job, parsed once, rendered for each document."""

import re
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from jinja2 import Template, meta
from jinja2.exceptions import TemplateError, TemplateSyntaxError, UndefinedError

from bulkinfer.errors import JobError
from bulkinfer.job.document import QUOTED
from bulkinfer.prompt.bound import count_prints
from bulkinfer.prompt.budget import MAX_OUTPUT_CHARS, Budget, TooExpensive
from bulkinfer.prompt.sandbox import Sandbox
from bulkinfer.prompt.syntax import check_tree, price_tree
from bulkinfer.prompt.values import BUDGET, PRINTED, Printed
from bulkinfer.records import Document, FailureCode

# What an allowed part of a template can raise on some value; RecursionError, a RuntimeError, on one nested deeply.
# NameError: a constant such as 1e400 is compiled to `inf`, which no template knows.
_FAULTS = (TemplateError, ArithmeticError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)
Stretches = list[tuple[int, int]]
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
class Part:
    """One template, and what is known of it."""

    name: str
    """As the job file has it, such as `prompt.user`."""
    role: str
    """Of the message that it makes; of a text that is no turn of a conversation, its key in `prompt`."""
    template: Template
    fields: frozenset[str]
    num_chars: int
    """Of its source."""
    num_bytes: int
    num_prints: int | None
    """See `count_prints`."""
    is_optional: bool
    """Whether it may have no text on a document."""


def parse_part(name: str, role: str, source: str) -> Part:
    """Raises JobError, naming template and line, for what does not parse and for what prompts do not have."""
    environment = Sandbox()
    tree = None
    try:
        tree = environment.parse(source)
        check_tree(tree)
        fields = frozenset(meta.find_undeclared_variables(tree))
        num_prints = count_prints(tree)
        code = environment.compile(price_tree(tree), name, name)
    except TemplateSyntaxError as error:
        fault = QUOTED.sub(_hide_quoted, str(error.message)) if tree is None else str(error.message)
        raise JobError(f"{name}, line {error.lineno}: the template does not parse: {fault[:200]}", name) from None
    except (RecursionError, SyntaxError, ValueError) as error:
        # Brackets nested beyond Python's limits, or a number of over 4,300 digits.
        raise JobError(f"{name}: the template does not parse: {type(error).__name__}; simplify it", name) from None
    template = Template.from_code(environment, code, environment.globals)
    num_bytes = len(source.encode(errors="replace"))
    return Part(name, role, template, fields, len(source), num_bytes, num_prints, is_optional=role == "system")


def render_part(
    part: Part, document: Document, budget: Budget, printed: Printed | None = None
) -> tuple[str, Stretches] | DocumentFault:
    """The text for one document, and where in it the document's stretches begin and end: none where nobody notes what
    is printed. Never raises for a fault of the document."""
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


def _hide_quoted(match: re.Match[str]) -> str:
    """Jinja quotes what it found, which may be text of the prompt; its own words and signs are kept."""
    quoted = match[0]
    is_known = quoted[1:-1] in _JINJA_WORDS or not any(map(str.isalnum, quoted))
    return quoted if is_known else "..."


def _concat_pieces(template: Template, variables: dict[str, Any], printed: Printed | None) -> tuple[str, Stretches]:
    pieces = []
    stretches: Stretches = []
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


def _line_of(error: BaseException, part: Part) -> int | str:
    """The line of the template where an error came from."""
    line: int | str = "?"
    traceback: TracebackType | None = error.__traceback__
    while traceback:
        if traceback.tb_frame.f_code.co_filename == part.name:
            line = part.template.get_corresponding_lineno(traceback.tb_lineno)
        traceback = traceback.tb_next
    return line
