"""Jinja's environment without the parts that a prompt does not need, and with a price on those that it does.

Not a list of what is forbidden: a list of what is allowed. Jinja's own sandbox stands behind that.
"""

from collections.abc import Callable

from jinja2 import StrictUndefined, Undefined
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing

from bulkinfer.prompt.budget import UNITS_PER_OBJECT, Value
from bulkinfer.prompt.filters import FILTERS
from bulkinfer.prompt.methods import METHODS, call_method
from bulkinfer.prompt.values import budget_of, concat, pay_for, pay_for_loop, print_value

_MAX_INT_BITS = 4096

TESTS = frozenset(
    {
        "boolean",
        "defined",
        "divisibleby",
        "even",
        "false",
        "float",
        "integer",
        "iterable",
        "mapping",
        "none",
        "number",
        "odd",
    }
    | {"sequence", "string", "true", "undefined"}
)
_LOOP_ATTRIBUTES = frozenset(
    {"depth", "depth0", "first", "index", "index0", "last", "length", "nextitem", "previtem", "revindex", "revindex0"}
)
_INTERNAL: dict[str, Callable[..., Value]] = {
    "$print": print_value,
    "$concat": concat,
    "$pay": pay_for,
    "$loop": pay_for_loop,
}


class Sandbox(ImmutableSandboxedEnvironment):
    """Templates over plain JSON values: no globals, no attributes of objects, no calls but those of METHODS."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%"))

    def __init__(self) -> None:
        super().__init__(undefined=AbsentField, autoescape=False, optimized=False, cache_size=0)
        self.globals.clear()
        self.filters = {**FILTERS, **_INTERNAL}
        self.tests = {name: test for name, test in self.tests.items() if name in TESTS}

    def getattr(self, obj: Value, attribute: str) -> Value:
        """`a.b`: a key of a mapping, before a method of the same name."""
        if isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        if attribute in METHODS.get(type(obj), ()) or (type(obj) is LoopContext and attribute in _LOOP_ATTRIBUTES):
            return getattr(obj, attribute)
        if attribute.startswith("__"):
            raise SecurityError("no value has such an attribute")
        return self.getitem(obj, attribute)

    def getitem(self, obj: Value, argument: Value) -> Value:
        """`a[b]`: a key of a mapping, or a position in a list or text. Below an absent field everything is absent."""
        if obj is None or isinstance(obj, Undefined):
            return self.undefined(obj=obj, name=argument)
        if isinstance(obj, dict | list | tuple | str):
            try:
                return obj[argument]
            except (LookupError, TypeError):
                return self.undefined(obj=obj, name=argument)
        raise SecurityError("only lists, mappings and texts have parts")

    def call(__self, __context: Context, __obj: Value, *args: Value, **kwargs: Value) -> Value:  # noqa: N805 - as Jinja has it
        """`a.b(...)`."""
        # Inside a loop or block Jinja hands its variables on, for the functions that ask for them. None of ours does.
        named = {name: value for name, value in kwargs.items() if name not in {"_loop_vars", "_block_vars"}}
        return call_method(budget_of(__context), __obj, args, named)

    def call_binop(self, context: Context, operator: str, left: Value, right: Value) -> Value:
        """`a + b` and so on: of numbers, and `+` and `*` of texts and lists. Not `%` of texts, which is formatting."""
        budget_of(context).pay(_operator_units(operator, left, right))
        return super().call_binop(context, operator, left, right)


class AbsentField(StrictUndefined):
    """An absent field: false in a condition, as null is; anything else that is done with it is a fault."""

    __slots__ = ()

    def __bool__(self) -> bool:  # type: ignore[override]  # the base class never returns from it
        return False

    @property
    def _undefined_message(self) -> str:
        # What is absent below another field may be named by the document (`a[b]`): only names of the template are told.
        return str(self._undefined_name) if self._undefined_obj is missing else ""


def _operator_units(operator: str, left: Value, right: Value) -> int:
    match left, right:
        case (Undefined(), _) | (_, Undefined()):
            return 0
        case (int() | float(), int() | float()):
            return _number_units(left, right)
        case (str(), str()) if operator == "+":
            return len(left) + len(right)
        case (list(), list()) if operator == "+":
            return UNITS_PER_OBJECT * (len(left) + len(right))
        case (str() | list(), int()) if operator == "*":
            return UNITS_PER_OBJECT * len(left) * max(right, 0)
    raise TypeError("the operator does not fit its sides")


def _number_units(left: float, right: float) -> int:
    if any(isinstance(side, int) and side.bit_length() > _MAX_INT_BITS for side in (left, right)):
        raise OverflowError("an integer too long to reckon with")
    return 1
