"""What the `format` of a text says, where jsonschema leaves it to other libraries or takes too much (RFC 3339, 3986).

None of these patterns can take long: no repetition in them meets another one over the same text.
"""

import re
from collections.abc import Callable, Mapping
from datetime import date
from functools import partial

_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:\.[0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"(?=[0-9])(?:[0-9]+H)?(?:[0-9]+M)?(?:[0-9]+S)?"
_DAYS = r"(?=[0-9])(?:[0-9]+Y)?(?:[0-9]+M)?(?:[0-9]+D)?"
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_IN_URI = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=:@/?\[\]]|%[0-9a-fA-F]{2})*"
_WORD = r"[a-zA-Z0-9!#$%&'*+\-/=?^_`{|}~]+"
_PATTERNS = {
    "date": re.compile(_DATE),
    "email": re.compile(rf"{_WORD}(?:\.{_WORD})*@(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9.]+\])"),
    "time": re.compile(_TIME),
    "date-time": re.compile(rf"{_DATE}[tT]{_TIME}"),
    "duration": re.compile(rf"P(?:[0-9]+W|{_DAYS}(?:T{_CLOCK})?|T{_CLOCK})"),
    "hostname": re.compile(rf"{_LABEL}(?:\.{_LABEL})*"),
    "uri": re.compile(rf"[a-zA-Z][a-zA-Z0-9+.\-]*:{_IN_URI}(?:#{_IN_URI})?"),
}
_MAX_HOSTNAME_CHARS = 253


def _fits(name: str, value: object) -> bool:
    """Anything but a text fits: a format says nothing of it."""
    if not isinstance(value, str):
        return True
    if _PATTERNS[name].fullmatch(value) is None:
        return False
    match name:
        case "date" | "date-time":
            return _is_of_calendar(value[:10])
        case "hostname":
            return len(value) <= _MAX_HOSTNAME_CHARS
    return True


def _is_of_calendar(day: str) -> bool:
    try:
        date.fromisoformat(day)
    except ValueError:
        return False
    return True


CHECKS: Mapping[str, Callable[[object], bool]] = {name: partial(_fits, name) for name in _PATTERNS}
"""By the name of the format."""
