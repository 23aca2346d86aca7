"""Printing, joining and looping in a template, each paid from the rendering's budget.

Null counts as absent throughout. Where an absent field is used, an UndefinedError is raised whose message is the
field's name alone, as far as the template has it.
"""

import json

from jinja2 import Undefined, pass_context
from jinja2.exceptions import UndefinedError
from jinja2.runtime import Context

from bulkinfer.prompt.budget import Budget, Value

BUDGET = "$budget"
"""No template can name this variable, or the next."""
PRINTED = "$printed"


class Printed:
    """The text that the document brought to the last print."""

    __slots__ = ("text",)

    def __init__(self) -> None:
        self.text: str | None = None


def to_text(budget: Budget, value: object, field: str | None) -> str:
    """A value as it is printed: text as it is, numbers as Python has them, lists and mappings as JSON."""
    match value:
        case str():
            budget.pay(len(value))
            return str(value)
        case None | Undefined():
            raise UndefinedError(field)
        case bool() | int() | float():
            budget.pay(2 * value.bit_length() if isinstance(value, int) else 0)  # the digits take quadratic time
            return str(value)
        case list() | tuple() | dict():
            budget.pay_for(value)
            return json.dumps(value, ensure_ascii=False)
    raise TypeError("neither text, number, list nor mapping")


@pass_context
def print_value(context: Context, value: object, field: str | None, is_own: bool) -> str:  # noqa: FBT001 - by Jinja
    """What stands behind every `{{ ... }}`. `is_own`: the template's text, whatever the document."""
    text = to_text(budget_of(context), value, field)
    if not is_own and not isinstance(value, int | float):
        printed: Printed | None = context.parent.get(PRINTED)
        if printed is not None:
            printed.text = text
    return text


@pass_context
def concat(context: Context, values: list[object], fields: list[str | None]) -> str:
    """What stands behind `a ~ b`."""
    budget = budget_of(context)
    return "".join([to_text(budget, value, field) for value, field in zip(values, fields, strict=True)])


@pass_context
def pay_for(context: Context, value: Value) -> Value:
    """The value itself, paid for: what stands round the sides of comparisons, and round keys."""
    budget_of(context).pay_for(value)
    return value


@pass_context
def pay_for_loop(context: Context, value: Value, units: int, field: str | None) -> Value:
    """The list of a loop, each of its steps paid with `units`."""
    values = listed(value, field)
    budget_of(context).pay(units * len(values))
    return values


def listed(value: object, field: str | None = None) -> Value:
    """A value that can be looped over and has a length."""
    if value is None or isinstance(value, Undefined):
        raise UndefinedError(field)
    if isinstance(value, dict | list | tuple | str):
        return value
    raise TypeError("neither list, mapping nor text")


def budget_of(context: Context) -> Budget:
    """The budget of the rendering that is going on."""
    budget: Budget = context.parent[BUDGET]
    return budget
