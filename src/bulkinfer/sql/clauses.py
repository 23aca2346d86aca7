"""A condition taken apart where it says AND, OR and NOT, and put together again from what is known of its clauses.

A clause that cannot be evaluated for a row may have been true, false or null. So `lang = 'en' and price::int > 3` does
not hold for a German row whose price is no number, and cannot be judged for an English one, whichever clause DuckDB
looks at first: what it says of a row does not depend on the order, nor on the rows beside it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Node = Mapping[str, Any]
"""Of a syntax tree as DuckDB serializes it."""
Flags = npt.NDArray[np.bool_]


class Joint(StrEnum):
    """How clauses are joined."""

    AND = "CONJUNCTION_AND"
    OR = "CONJUNCTION_OR"
    NOT = "OPERATOR_NOT"


@dataclass(frozen=True, slots=True)
class Join:
    """Takes so many of the clauses before it, which may be joined ones, and makes one of them."""

    joint: Joint
    num_clauses: int


@dataclass(frozen=True, slots=True)
class Clauses:
    """The clauses of a condition as SQL, each followed by the joins that it completes."""

    steps: tuple[str | Join, ...]


@dataclass(frozen=True, slots=True)
class Truth:
    """What a clause may be, for each of some rows; more than one of the three where it cannot be evaluated."""

    is_true: Flags
    is_false: Flags
    is_null: Flags

    @staticmethod
    def of(values: Sequence[bool | None], failed: Sequence[bool]) -> "Truth":
        """Of a clause that was evaluated; it may have been anything where that failed."""
        unclear = np.asarray(failed, np.bool_)
        return Truth(
            unclear | np.asarray([value is True for value in values], np.bool_),
            unclear | np.asarray([value is False for value in values], np.bool_),
            unclear | np.asarray([value is None for value in values], np.bool_),
        )

    def __invert__(self) -> "Truth":
        return Truth(self.is_false, self.is_true, self.is_null)

    def __and__(self, other: "Truth") -> "Truth":
        return Truth(
            self.is_true & other.is_true,
            self.is_false | other.is_false,
            (self.is_null & (other.is_null | other.is_true)) | (other.is_null & self.is_true),
        )

    def __or__(self, other: "Truth") -> "Truth":
        return ~(~self & ~other)


def take_apart(tree: Node, write: Callable[[Node], str | None]) -> Clauses | None:
    """The clauses of a condition, each as `write` has it; None where it cannot write one."""
    steps: list[str | Join] = []
    waiting: list[tuple[Node, bool]] = [(tree, False)]  # a stack: a condition may be nested deeper than Python calls
    while waiting:
        node, is_open = waiting.pop()
        joint = _find_joint(node)
        if joint is None:
            text = write(node)
            if text is None:
                return None
            steps.append(text)
        elif is_open:
            steps.append(Join(joint, len(node["children"])))
        else:
            waiting.append((node, True))
            waiting.extend((child, False) for child in reversed(node["children"]))
    return Clauses(tuple(steps))


def find_truth(clauses: Clauses, evaluate: Callable[[str], Truth]) -> Truth:
    """What the condition may be, by what its clauses may be."""
    known: list[Truth] = []
    for step in clauses.steps:
        if isinstance(step, str):
            known.append(evaluate(step))
            continue
        taken = [known.pop() for _ in range(step.num_clauses)]
        joined = taken[0]
        for truth in taken[1:]:
            joined = joined & truth if step.joint is Joint.AND else joined | truth
        known.append(~joined if step.joint is Joint.NOT else joined)
    (truth,) = known
    return truth


def _find_joint(node: Node) -> Joint | None:
    return next((joint for joint in Joint if node.get("type") == joint and node.get("children")), None)
