"""The methods that a template may call, and what they share with filters of the same name."""

from collections.abc import Mapping

from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext

from bulkinfer.prompt.budget import UNITS_PER_OBJECT, Budget, Value
from bulkinfer.prompt.values import listed, to_text

METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(
        {
            "capitalize",
            "count",
            "endswith",
            "find",
            "isalpha",
            "isdigit",
            "isspace",
            "join",
            "lower",
            "lstrip",
            "replace",
        }
        | {"rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "title", "upper"}
    ),
    dict: frozenset(("get", "items", "keys", "values")),
    LoopContext: frozenset(("changed", "cycle")),
}


def call_method(budget: Budget, method: Value, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
    """Call one of METHODS. Raises SecurityError for anything else."""
    owner = getattr(method, "__self__", None)
    name = getattr(method, "__name__", "")
    if name not in METHODS.get(type(owner), ()):
        raise SecurityError("only methods of texts, mappings and loops can be called")
    budget.pay_for([*args, *kwargs.values()])
    if type(owner) is str:
        budget.pay(len(owner) * (8 if "split" in name else 1) + UNITS_PER_OBJECT)
        if "strip" in name and args and isinstance(args[0], str):  # each character is looked for in all of these
            budget.pay(len(owner) * len(args[0]))
    if name == "replace":
        return replace_text(budget, owner, *args, **kwargs)
    if name == "join":
        return join_texts(budget, args[0], str(owner))
    result = method(*args, **kwargs)
    if type(owner) is dict and name != "get":
        budget.pay(UNITS_PER_OBJECT * len(owner))
        return list(result)
    return result


def replace_text(budget: Budget, value: Value, old: str, new: str, count: int = -1) -> str:
    """`a | replace("b", "c")` and `a.replace("b", "c")`."""
    text = to_text(budget, value, None)
    budget.pay(len(text) + (text.count(old) + 1) * len(new))
    return text.replace(str(old), str(new), count)


def join_texts(budget: Budget, values: Value, separator: str = "", attribute: str | int | None = None) -> str:
    """`a | join(", ")` and `", ".join(a)`."""
    pieces = listed(values)
    budget.pay(len(pieces) * (UNITS_PER_OBJECT + len(separator)))
    return separator.join([to_text(budget, find_part(budget, piece, attribute), None) for piece in pieces])


def find_part(budget: Budget, value: Value, attribute: str | int | None) -> Value:
    """`a.b.0` of a value; None where there is none."""
    if attribute is None:
        return value
    path = to_text(budget, attribute, None)
    budget.pay(UNITS_PER_OBJECT // 4 * path.count("."))
    for part in path.split("."):
        try:
            value = value[int(part) if isinstance(value, list | tuple) else part]
        except (LookupError, TypeError, ValueError):
            return None
    return value
