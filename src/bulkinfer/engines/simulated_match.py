"""A text that matches a regular expression, for the simulated engine."""

import string
from collections.abc import Callable, Iterable
from random import Random
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

_MOST_REPEATS = 4
"""Beyond the least number."""
_LETTERS = string.ascii_lowercase + string.digits + string.ascii_uppercase + string.punctuation + " "
_CATEGORIES: dict[Any, Callable[[str], bool]] = {
    sre.CATEGORY_DIGIT: str.isdigit,
    sre.CATEGORY_NOT_DIGIT: lambda character: not character.isdigit(),
    sre.CATEGORY_WORD: lambda character: character.isalnum() or character == "_",
    sre.CATEGORY_NOT_WORD: lambda character: not (character.isalnum() or character == "_"),
    sre.CATEGORY_SPACE: str.isspace,
    sre.CATEGORY_NOT_SPACE: lambda character: not character.isspace(),
}


def write_match(pattern: str, draw: Random) -> str:
    """A match of a pattern that `constraints` allows."""
    return "".join(_write(_parser.parse(pattern), draw))


# Any: the parser's own types.
def _write(nodes: Iterable[tuple[Any, Any]], draw: Random) -> Iterable[str]:
    for operation, argument in nodes:
        if operation is sre.LITERAL:
            yield chr(argument)
        elif operation is sre.BRANCH:
            yield from _write(draw.choice(argument[1]), draw)
        elif operation is sre.SUBPATTERN:
            yield from _write(argument[3], draw)
        elif operation in {sre.MAX_REPEAT, sre.MIN_REPEAT}:
            least, most, inner = argument
            for _ in range(draw.randint(least, min(int(most), least + _MOST_REPEATS))):
                yield from _write(inner, draw)
        elif operation is not sre.AT:
            yield _choose(operation, argument, draw)


def _choose(operation: Any, argument: Any, draw: Random) -> str:  # noqa: ANN401
    """One character: of a class, or any."""
    if operation is sre.ANY:
        return draw.choice(_LETTERS)
    allowed = argument if operation is sre.IN else [(sre.NEGATE, None), (sre.LITERAL, argument)]
    is_negated = allowed[0][0] is sre.NEGATE
    # Letters first; what a class names itself, for those that have none of them.
    named = [chr(code) for kind, value in allowed for code in _list_codes(kind, value)]
    candidates = [one for one in _LETTERS + "\t\n" if any(_has(part, one) for part in allowed) != is_negated]
    return draw.choice(candidates or named or ["é"])


def _list_codes(kind: Any, value: Any) -> list[int]:  # noqa: ANN401
    if kind is sre.LITERAL:
        return [value]
    return list(value) if kind is sre.RANGE else []


def _has(part: tuple[Any, Any], character: str) -> bool:
    kind, value = part
    if kind is sre.LITERAL:
        return ord(character) == int(value)
    if kind is sre.RANGE:
        return int(value[0]) <= ord(character) <= int(value[1])
    return kind is sre.CATEGORY and bool(_CATEGORIES[value](character))
