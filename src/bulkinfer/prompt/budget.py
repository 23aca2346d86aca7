"""What one rendering may cost. Everything that a template can do is paid from here before or as it is done.

A unit is about one character copied or compared. A step of a loop, an element of a list or an object made costs more,
as it takes Python longer. All units together are a second or two, and bound the memory to as many characters.
"""

from typing import Any

from jinja2.exceptions import SecurityError

Value = Any
"""A JSON value, or what Jinja makes of one. No static type fits: templates are not typed."""

MAX_UNITS = 2**28
MAX_OUTPUT_CHARS = 64 * 2**20
UNITS_PER_OBJECT = 64


class TooExpensive(SecurityError):
    """The rendering would take more time, memory or output than a prompt can need."""


class Budget:
    """The units left to one rendering."""

    __slots__ = ("_units",)

    def __init__(self) -> None:
        self._units = MAX_UNITS

    def pay(self, units: int) -> None:
        """Raises TooExpensive when too little is left."""
        self._units -= units
        if self._units < 0:
            raise TooExpensive("the template does too much work on this document")

    def pay_for(self, value: object) -> None:
        """Pay for looking at all of a value once; at what is in it twice, twice, as it is printed twice."""
        if isinstance(value, str):
            self.pay(len(value))
        elif isinstance(value, list | tuple | dict):
            self._pay_for_nested(value)

    def _pay_for_nested(self, value: Value) -> None:
        stack: list[object] = [value]
        while stack:
            top = stack.pop()
            if isinstance(top, str):
                self.pay(len(top) + 8)
            elif isinstance(top, dict):
                self.pay(UNITS_PER_OBJECT * (len(top) + 1))
                stack += top.keys()
                stack += top.values()
            elif isinstance(top, list | tuple):
                self.pay(UNITS_PER_OBJECT * (len(top) + 1))
                stack += top
            elif isinstance(top, int):
                self.pay(top.bit_length())
