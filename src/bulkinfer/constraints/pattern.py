"""Regular expressions that Python, which checks the answers, and the engine, which makes them, read alike.

What only one of them has is refused: looking around, references back, and anchors inside. Answers are checked by
`regex`, which reads patterns as `re` does and, unlike it, can be given a time limit.
"""

import re
import time
import warnings
from collections.abc import Iterator

# The parser behind `re`: nothing public tells what is in a pattern, and a grammar of our own would differ from it.
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

import regex

from bulkinfer.constraints.fault import Fault

MAX_PATTERN_CHARS = 10_000
_MAX_CHARS_PER_TOKEN = 256
"""No vocabulary has longer tokens."""
_FLAGS = re.IGNORECASE | re.DOTALL | re.VERBOSE | re.UNICODE
_BRACE = re.compile(r"(?:[^\\]|^)(?:\\\\)*\{(?![0-9]+(?:,[0-9]*)?\}|,[0-9]+\})(?![^\[]*\])")
"""A text to `re`, an error to other engines; `regex` takes {e} for so many errors. In a set it is a text to all."""
_REFUSED = {
    sre.ASSERT: "looking ahead or behind, (?=...) and (?<=...)",
    sre.ASSERT_NOT: "looking ahead or behind, (?!...) and (?<!...)",
    sre.GROUPREF: "references to a group, such as \\1",
    sre.GROUPREF_EXISTS: "conditions on a group, (?(1)...)",
    sre.ATOMIC_GROUP: "atomic groups, (?>...)",
    sre.POSSESSIVE_REPEAT: "possessive repetitions, such as a++",
}


def find_pattern_fault(pattern: str) -> Fault | None:
    """Why answers cannot be made to fit this regular expression, or None."""
    fault = _find_unreadable(pattern)
    if fault is not None:
        return fault
    tree = _parser.parse(pattern)
    if tree.state.flags & ~_FLAGS:
        return Fault((), "a regular expression with no other flags than i, s and x")
    nodes = list(_iter_nodes(tree))
    for node, _ in nodes:
        if node in _REFUSED:
            return Fault((), f"a regular expression without {_REFUSED[node]}", "the engine cannot decode by it")
    return _find_inner_anchor(tree, [node for node in nodes if node[0] is sre.AT])


def _find_unreadable(pattern: str) -> Fault | None:
    """What Python does not read, or reads in its own way."""
    if len(pattern) > MAX_PATTERN_CHARS:
        return Fault((), f"a regular expression of at most {MAX_PATTERN_CHARS:,} characters")
    if "\0" in pattern:
        return Fault((), "a regular expression without the character NUL")
    try:
        with warnings.catch_warnings(action="error", category=FutureWarning):
            re.compile(pattern)
            list(_iter_nodes(_parser.parse(pattern)))
    except FutureWarning:
        return Fault((), "a regular expression without sets in sets", "in a set, write \\[ for [ and \\- for -")
    except (re.error, OverflowError, RecursionError) as error:
        place = getattr(error, "pos", None)
        where = "" if place is None else f" at character {place + 1}"
        reason = error.msg if isinstance(error, re.error) else "it repeats or nests too much"
        return Fault((), f"a regular expression: {reason}{where}")
    if _BRACE.search(pattern):
        return Fault((), "a regular expression without a brace that repeats nothing", "write \\{ for a brace")
    return None


MATCH_LIMIT_S = 1.0
"""A repetition within a repetition can take years on a text that does not match."""


class MatchTooLong(Exception):
    """Whether a text matches could not be told in time."""


class Matcher:
    """Tells whether a text matches. A dot stands for any character but a line's end, for the engine too."""

    def __init__(self, pattern: str) -> None:
        self._pattern = regex.compile(pattern)

    def matches(self, text: str) -> bool:
        """Raises MatchTooLong."""
        try:
            return self._pattern.fullmatch(text, timeout=MATCH_LIMIT_S) is not None
        except TimeoutError:
            raise MatchTooLong from None

    def is_in(self, text: str, until_s: float) -> bool:
        """Whether a part of a text matches. Raises MatchTooLong where that cannot be told until then."""
        try:
            # Not 0, which would be no limit.
            return self._pattern.search(text, timeout=max(until_s - time.monotonic(), 1e-3)) is not None
        except TimeoutError:
            raise MatchTooLong from None


def cannot_fit(pattern: str, max_tokens: int) -> bool:
    """Whether even the shortest match of a pattern without fault is longer than so many tokens can be."""
    least, _ = _parser.parse(pattern).getwidth()
    return int(least) > max_tokens * _MAX_CHARS_PER_TOKEN


def find_pattern_warning(pattern: str) -> str | None:
    """What is risky about a pattern without fault: a match of any length, which only the model ends."""
    _, most = _parser.parse(pattern).getwidth()
    if most < sre.MAXREPEAT:
        return None
    return "matches have no greatest length: what the model does not end is cut at max_tokens; {0,40} sets one"


def _find_inner_anchor(tree: Any, anchors: list[tuple[Any, Any]]) -> Fault | None:  # noqa: ANN401 - sre's own types
    """An answer is matched as a whole, so ^ at the beginning and $ at the end say nothing more."""
    nodes = list(tree)
    num_outer = int(bool(nodes) and nodes[0] == (sre.AT, sre.AT_BEGINNING))
    num_outer += int(bool(nodes) and nodes[-1] == (sre.AT, sre.AT_END))
    if len(anchors) == num_outer:
        return None
    return Fault((), "a regular expression without anchors inside, such as \\b and ^", "the whole answer has to match")


def _iter_nodes(value: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401 - sre's own types
    """All (operation, argument) of a parsed pattern, with those inside others."""
    if isinstance(value, _parser.SubPattern):
        for operation, argument in value:
            yield operation, argument
            yield from _iter_nodes(argument)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _iter_nodes(part)
