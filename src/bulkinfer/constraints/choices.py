"""Labels: texts of which an answer is exactly one."""

import unicodedata
from collections.abc import Sequence
from itertools import pairwise

from bulkinfer.constraints.fault import Fault

MAX_CHOICES = 1000
MAX_SCORED_CHOICES = 100
"""With probabilities: each token of each choice is asked for by itself."""
_SHOWN_CHARS = 40


def find_choices_fault(choices: Sequence[str]) -> Fault | None:
    """Why decoding could not tell these apart, or None.

    One that begins another is refused: at its end the model would have to choose between stopping and going on, and
    their probabilities could not be compared.
    """
    if len(choices) < 2:
        return Fault((), "at least 2 choices", "with one there is nothing to decide")
    if len(choices) > MAX_CHOICES:
        return Fault((), f"at most {MAX_CHOICES} choices")
    for number, choice in enumerate(choices):
        if not choice.strip():
            return Fault((number,), "text that is not only white space")
        if choice != choice.strip() or not choice.isprintable():
            return Fault((number,), "one line of text without white space around it")
    return _find_alike(choices)


def _find_alike(choices: Sequence[str]) -> Fault | None:
    # Sorted, a text stands right before those that begin with it.
    numbers = sorted(range(len(choices)), key=lambda number: (_normalise(choices[number]), number))
    for first, second in pairwise(numbers):
        shorter, longer = _normalise(choices[first]), _normalise(choices[second])
        names = f"{_show(choices[first])} (number {first + 1}) and {_show(choices[second])} (number {second + 1})"
        if shorter == longer:
            return Fault((second,), f"different choices: {names} are equal", "remove one")
        if longer.startswith(shorter):
            expected = f"choices of which none begins another: {names}"
            return Fault((second,), expected, "rename one, so that the answer tells which is meant before it ends")
    return None


def most_tokens(choices: Sequence[str]) -> int:
    """Tokens that the longest choice has at most, and one that ends the answer.

    A token stands for a byte at least. The tokenizer's own count would be too few: a model may spell a choice in other,
    shorter tokens, and be cut in the middle of it.
    """
    return max(len(choice.encode()) for choice in choices) + 1


def _normalise(choice: str) -> str:
    """The same letters can be written as different characters."""
    return unicodedata.normalize("NFC", choice.strip())


def _show(choice: str) -> str:
    return repr(choice if len(choice) <= _SHOWN_CHARS else f"{choice[: _SHOWN_CHARS - 3]}...")
