"""What is wrong with a job file, in words: place, key path, what was expected, what was found, what to do.

Pydantic's own texts are never shown; its error types are translated here. Texts of the prompt, and
values that came from the environment, are shown by their length only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from bulkinfer.errors import JobError
from bulkinfer.job.document import KeyPath, Place, Plain, shorten_key
from bulkinfer.job.nearest import find_nearest
from bulkinfer.job.section import NAME_PATTERN, PATH_PATTERN
from bulkinfer.job.spec import JobSpec
from bulkinfer.job.task_spec import TASKS

MAX_PROBLEMS = 10
MAX_SHOWN_CHARS = 40

_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "finite_number": "a finite number",
    "float_type": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_type": "a whole number",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "model_type": "a mapping of keys",
    "string_pattern_mismatch": "{pattern}",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "text that is not empty",
    "string_type": "text",
    "string_unicode": "text without half characters (lone surrogates)",
    "too_long": "at most {max_length} entries",
    "too_short": "at least {min_length} entry",
    "tuple_type": "text or a list of texts",
    "wrong_value": "{expected}",
}

_PATTERNS = {NAME_PATTERN: "letters, digits and . _ - only", PATH_PATTERN: "a path"}
_FREE_DEPTH = 3
"""Length of the path of one of the free arguments of `engine`."""


@dataclass(frozen=True, slots=True)
class Origins:
    """Where the values of a job come from; for messages only."""

    file: str
    """As the user named it."""
    places: Mapping[KeyPath, Place] = field(default_factory=dict)
    overridden: frozenset[KeyPath] = frozenset()
    """Paths that a `--set` gives, with all below them."""
    secret: frozenset[KeyPath] = frozenset()
    """Paths of texts that took something from the environment."""

    def name(self, path: KeyPath) -> str:
        """The beginning of a line about the value at `path`."""
        key = ".".join(shorten_key(str(part)) for part in path)
        ancestors = [path[:length] for length in range(len(path), -1, -1)]
        if any(ancestor in self.overridden for ancestor in ancestors):
            return f"--set {key}"
        place = next((self.places[ancestor] for ancestor in ancestors if ancestor in self.places), None)
        where = self.file if place is None else f"{self.file}:{place}"
        return f"{where}: {key}" if key else where

    def find_path(self, key: str) -> KeyPath:
        """The path that `name` shows as this key: names may have dots, and places in lists are numbers."""
        known = (path for path in (*self.places, *self.overridden) if ".".join(map(str, path)) == key)
        return next(known, tuple(key.split(".")))


def problems_error(problems: Sequence[str]) -> JobError:
    """One error for all problems: one a line, the first ten."""
    shown = list(problems[:MAX_PROBLEMS])
    if len(problems) > MAX_PROBLEMS:
        shown.append(f"... and {len(problems) - MAX_PROBLEMS} more problems")
    return JobError("\n".join(shown))


def explain_invalid(error: ValidationError, origins: Origins) -> JobError:
    """Put pydantic's errors into our words."""
    return problems_error([_explain(fault, origins) for fault in error.errors(include_url=False)])


def tell_expected(fault: ErrorDetails) -> str:
    """What a value has to be, in our words."""
    expected = _EXPECTED.get(fault["type"], fault["msg"]).format_map(fault.get("ctx", {}))
    return _PATTERNS.get(expected, expected)


def describe(value: Plain, *, is_private: bool) -> str:
    """Type and short form of a value; of a private text the length only."""
    match value:
        case bool():
            text = "true" if value else "false"
        case int():
            text = f"the whole number {_shorten(str(value))}" if abs(value) < 10**100 else "a very long whole number"
        case float():
            text = f"the number {value}"
        case str():
            text = f"a text of {len(value)} characters" if is_private or not value else f"the text {_shorten(value)!r}"
        case dict():
            text = f"a mapping of {len(value)}"
        case _:
            text = f"a list of {len(value)}"
    return text


def _explain(fault: ErrorDetails, origins: Origins) -> str:
    context = fault.get("ctx", {})
    path: KeyPath = context.get("path") or _clean_path(fault["loc"])
    name = origins.name(path)
    match fault["type"]:
        case "missing":
            reason = f": {context['advice']}" if context.get("advice") else ""
            return f"{name}: the key is missing; add it{reason}"
        case "extra_forbidden":
            return f"{name}: {_explain_unknown(fault['loc'])}"
        case kind:
            value = context.get("found", fault["input"])
            return (
                f"{name}: expected {tell_expected(fault)}{_found(value, path, origins)}{_advice(kind, value, context)}"
            )


def _explain_unknown(loc: tuple[str | int, ...]) -> str:
    """Why the last key of `loc` is wrong, and which one was meant."""
    known = _known_keys(loc[:-1])
    nearest = find_nearest(str(loc[-1]), known)
    return f"unknown key; did you mean {nearest}?" if nearest else f"unknown key; known are {', '.join(known)}"


def _known_keys(path: KeyPath) -> tuple[str, ...]:
    """The keys that the section at `path` may have; none where it is not a section of the job file."""
    if path[:1] == ("task",):
        return tuple(field.alias or name for name, field in TASKS[str(path[1])].model_fields.items())
    section: Plain = JobSpec
    for part in path:
        if isinstance(part, str):
            section = _find_section(section.model_fields[part].annotation) if section is not None else None
    return () if section is None else tuple(section.model_fields)


def _find_section(annotation: Plain) -> Plain:
    """The section that a key holds, or its list has as entries; None where it is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = map(_find_section, get_args(annotation))
    return next((section for section in found if section is not None), None)


def _clean_path(loc: tuple[str | int, ...]) -> KeyPath:
    """Pydantic adds branches of unions, below the free arguments of the engine too; nobody wrote those."""
    if loc[:1] == ("limits",):
        return loc[:2]
    if loc[:1] == ("task",):
        return (*loc[:1], *loc[2:])
    return loc[:_FREE_DEPTH] if loc[:2] in {("engine", "vllm"), ("engine", "simulated")} else loc


def _found(value: Plain, path: KeyPath, origins: Origins) -> str:
    if value is None:
        return ", found nothing (null)"
    is_private = path[:1] == ("prompt",) or path == ("model", "chat_template") or path in origins.secret
    return f", found {describe(value, is_private=is_private)}"


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 3]}..."


def _advice(kind: str, value: Plain, context: Mapping[str, Plain]) -> str:
    if advice := context.get("advice"):
        return f"; {advice}"
    match kind, value:
        case "string_type" | "literal_error", bool():
            return "; unquoted yes, no, on, off, true and false are not text: put it in quotes"
        case "string_type", int() | float():
            return "; put it in quotes"
        case (("int_type" | "float_type" | "bool_type"), str()):
            return "; write it without quotes" if value.strip() else ""
        case "model_type" | "dict_type", None:
            return "; remove the key, or give it keys"
    return ""
