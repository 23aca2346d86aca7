"""The filters and methods that a template may use: Jinja's, as far as their cost can be bounded.

None that gives another text another time (`random`). Each pays from the budget of its rendering before it works.
"""

import json
import operator
from collections.abc import Callable, Mapping
from html import escape
from urllib.parse import quote

from jinja2 import Undefined, pass_context
from jinja2 import filters as jinja_filters
from jinja2.exceptions import UndefinedError
from jinja2.runtime import Context

from bulkinfer.prompt.budget import UNITS_PER_OBJECT, Budget, Value
from bulkinfer.prompt.methods import call_method, find_part, join_texts, replace_text
from bulkinfer.prompt.values import budget_of, listed, to_text

Filter = Callable[..., Value]


def _default(_: Budget, value: Value, default: Value = "", boolean: Value = None) -> Value:
    is_absent = value is None or isinstance(value, Undefined)
    return default if is_absent or (boolean and not value) else value


def _indent(budget: Budget, value: Value, width: int | str = 4, first: Value = None, blank: Value = None) -> str:
    text = to_text(budget, value, None)
    filler = " " * min(width, 1000) if isinstance(width, int) else width
    budget.pay((text.count("\n") + 1) * (len(filler) + UNITS_PER_OBJECT))
    return jinja_filters.do_indent(text, filler, bool(first), bool(blank))


def _truncate(
    budget: Budget,
    value: Value,
    length: int = 255,
    killwords: Value = None,
    end: str = "...",
    leeway: int = 5,
) -> str:
    text = to_text(budget, value, None)
    if len(text) <= length + leeway:
        return text
    budget.pay(len(end))
    kept = text[: max(length - len(end), 0)]
    return f"{kept if killwords else kept.rsplit(' ', 1)[0]}{end}"


def _tojson(budget: Budget, value: Value, indent: int | None = None) -> str:
    budget.pay_for(value)
    if value is None or isinstance(value, Undefined):
        raise UndefinedError(None)
    if indent is None:
        return json.dumps(value, ensure_ascii=False)
    # Each level adds its indent to each line below it, so this is paid by the text that comes of it.
    pieces = []
    for piece in json.JSONEncoder(ensure_ascii=False, indent=min(indent, 16)).iterencode(value):
        budget.pay(len(piece) + 2 * UNITS_PER_OBJECT)
        pieces.append(piece)
    return "".join(pieces)


def _sum(budget: Budget, value: Value, attribute: str | int | None = None, start: float = 0) -> Value:
    numbers = [find_part(budget, element, attribute) for element in _elements(budget, value)]
    if not all(isinstance(number, int | float) for number in (start, *numbers)):
        raise TypeError("sum takes numbers only")
    return sum(numbers, start)


def _map(
    budget: Budget, value: Value, name: str | None = None, *args: Value, attribute: Value = None, default: Value = None
) -> list[Value]:
    elements = _elements(budget, value)
    if name is not None:
        return [_FUNCTIONS[name](budget, element, *args) for element in elements]
    found = [find_part(budget, element, attribute) for element in elements]
    return [default if element is None else element for element in found]


def _select_by(budget: Budget, value: Value, attribute: str | int | None, test: tuple[Value, ...]) -> list[bool]:
    flags = []
    for element in _elements(budget, value):
        budget.pay_for(test)
        flags.append(_passes(find_part(budget, element, attribute), *test))
    return flags


def _select(budget: Budget, value: Value, *test: Value) -> list[Value]:
    return [e for e, is_in in zip(value, _select_by(budget, value, None, test), strict=True) if is_in]


def _reject(budget: Budget, value: Value, *test: Value) -> list[Value]:
    return [e for e, is_in in zip(value, _select_by(budget, value, None, test), strict=True) if not is_in]


def _selectattr(budget: Budget, value: Value, attribute: str | int, *test: Value) -> list[Value]:
    return [e for e, is_in in zip(value, _select_by(budget, value, attribute, test), strict=True) if is_in]


def _rejectattr(budget: Budget, value: Value, attribute: str | int, *test: Value) -> list[Value]:
    return [e for e, is_in in zip(value, _select_by(budget, value, attribute, test), strict=True) if not is_in]


def _passes(value: Value, test: str | None = None, *args: Value) -> bool:
    match test, args:
        case None, ():
            return bool(value)
        case "defined", ():
            return value is not None
        case "none" | "undefined", ():
            return value is None
        case "in", (container,):
            return value in container
        case _, (other,):
            return bool(_COMPARISONS[str(test)](value, other))
    raise TypeError("the test takes other arguments")


def _sort(
    budget: Budget, value: Value, reverse: Value = None, case_sensitive: Value = None, attribute: Value = None
) -> list[Value]:
    return sorted(
        _elements(budget, value),
        key=_sort_key(budget, attribute, case_sensitive=bool(case_sensitive)),
        reverse=bool(reverse),
    )


def _unique(budget: Budget, value: Value, case_sensitive: Value = None, attribute: Value = None) -> list[Value]:
    key = _sort_key(budget, attribute, case_sensitive=bool(case_sensitive))
    return list({key(element): element for element in reversed(_elements(budget, value))}.values())[::-1]


def _sort_key(budget: Budget, attribute: Value, *, case_sensitive: bool) -> Callable[[Value], Value]:
    def key(element: Value) -> Value:
        found = find_part(budget, element, attribute)
        return found.lower() if isinstance(found, str) and not case_sensitive else found

    return key


def _elements(budget: Budget, value: Value) -> list[Value]:
    budget.pay_for(value)
    values = listed(value)
    budget.pay(UNITS_PER_OBJECT * len(values))
    return list(values)


def _dictsort(budget: Budget, value: Value, reverse: Value = None) -> list[Value]:
    budget.pay_for(value)
    return sorted(value.items(), key=lambda entry: str(entry[0]).lower(), reverse=bool(reverse))


def _reverse(budget: Budget, value: Value) -> Value:
    return value[::-1] if isinstance(value, str) else _elements(budget, value)[::-1]


def _items(budget: Budget, value: Value) -> list[Value]:
    return list(call_method(budget, value.items, (), {}))


def _length(_: Budget, value: Value) -> int:
    return len(listed(value))


def _float(budget: Budget, value: Value, default: float = 0.0) -> float:
    budget.pay_for(value)
    return jinja_filters.do_float(value, default)


def _int(budget: Budget, value: Value, default: int = 0) -> int:
    budget.pay_for(value)
    return jinja_filters.do_int(value, default)


def _round(_: Budget, value: Value, precision: int = 0) -> float:
    return float(round(value, max(-300, min(precision, 300))))


def _abs(_: Budget, value: Value) -> Value:
    return abs(value)


def _of_text(function: Callable[..., Value]) -> Filter:
    """A filter that makes of a text something of about its length."""

    def apply(budget: Budget, value: Value, *args: Value) -> Value:
        text = to_text(budget, value, None)
        budget.pay(4 * len(text) + UNITS_PER_OBJECT)
        return function(text, *args)

    return apply


def _of_list(function: Callable[..., Value]) -> Filter:
    """A filter that makes one value of the elements of a list."""

    def apply(budget: Budget, value: Value, attribute: Value = None) -> Value:
        return function([find_part(budget, element, attribute) for element in _elements(budget, value)])

    return apply


def _paid(function: Callable[..., Value]) -> Filter:
    """The filter as Jinja calls it: with the context first, in place of the budget."""

    @pass_context
    def apply(context: Context, *args: Value, **kwargs: Value) -> Value:
        budget = budget_of(context)
        budget.pay(UNITS_PER_OBJECT * (len(args) + len(kwargs)))
        return function(budget, *args, **kwargs)

    return apply


_COMPARISONS: Mapping[str, Callable[[Value, Value], Value]] = {
    "eq": operator.eq,
    "equalto": operator.eq,
    "==": operator.eq,
    "ne": operator.ne,
    "!=": operator.ne,
    "lt": operator.lt,
    "<": operator.lt,
    "le": operator.le,
    "<=": operator.le,
    "gt": operator.gt,
    ">": operator.gt,
    "ge": operator.ge,
    ">=": operator.ge,
}
_FUNCTIONS: Mapping[str, Filter] = {
    "abs": _abs,
    "capitalize": _of_text(str.capitalize),
    "count": _length,
    "d": _default,
    "default": _default,
    "dictsort": _dictsort,
    "e": _of_text(escape),
    "escape": _of_text(escape),
    "first": _of_list(lambda values: values[0] if values else None),
    "float": _float,
    "indent": _indent,
    "int": _int,
    "items": _items,
    "join": join_texts,
    "last": _of_list(lambda values: values[-1] if values else None),
    "length": _length,
    "list": _elements,
    "lower": _of_text(str.lower),
    "map": _map,
    "max": _of_list(lambda values: max(values, default=None)),
    "min": _of_list(lambda values: min(values, default=None)),
    "reject": _reject,
    "rejectattr": _rejectattr,
    "replace": replace_text,
    "reverse": _reverse,
    "round": _round,
    "select": _select,
    "selectattr": _selectattr,
    "sort": _sort,
    "string": _of_text(str),
    "sum": _sum,
    "title": _of_text(jinja_filters.do_title),
    "tojson": _tojson,
    "trim": _of_text(str.strip),
    "truncate": _truncate,
    "unique": _unique,
    "upper": _of_text(str.upper),
    "urlencode": _of_text(lambda text: quote(text, safe="/")),
    "wordcount": _of_text(lambda text: len(text.split())),
}
FILTERS: Mapping[str, Filter] = {name: _paid(function) for name, function in _FUNCTIONS.items()}
