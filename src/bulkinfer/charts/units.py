"""Numbers, durations, sizes and shares as text, and where an axis has its ticks."""

import math
from collections.abc import Sequence
from enum import StrEnum


class Unit(StrEnum):
    """What a number counts."""

    NUMBER = "number"
    SECONDS = "seconds"
    BYTES = "bytes"
    SHARE = "share"
    """Of one: 0.25 is shown as 25%."""


_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))
_SIZES = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))
_TIMES = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))
_DAY_S = 86_400.0
_TIME_STEPS = (
    1.0,
    2.0,
    5.0,
    10.0,
    15.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    900.0,
    1_800.0,
    3_600.0,
    7_200.0,
    10_800.0,
    21_600.0,
    43_200.0,
    _DAY_S,
)


_FINE_LOG_TIMES = (
    *(factor * 10.0**power for power in range(-6, 1) for factor in (1, 2, 5)),
    *(10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_200.0, 1_800.0, 3_600.0, 7_200.0, 18_000.0, 36_000.0, _DAY_S),
)
_LOG_TIMES = (*(10.0**power for power in range(-6, 2)), 60.0, 600.0, 3_600.0, 36_000.0, _DAY_S, 10 * _DAY_S)


def format_value(value: float, unit: Unit) -> str:
    """A value in three digits or so, with its unit: 12,400 as 12.4k, 90 s as 1.5 min, 0.25 as 25%."""
    if not math.isfinite(value):
        return str(value)
    match unit:
        case Unit.NUMBER:
            return _format_number(value)
        case Unit.SECONDS:
            return _format_seconds(value)
        case Unit.BYTES:
            return _format_bytes(value)
        case Unit.SHARE:
            return f"{_trim(100 * value)}%"


def find_ticks(high: float, unit: Unit, num_most: int) -> Sequence[float] | None:
    """Where a linear axis from zero has its ticks; None: where any axis of plain numbers would."""
    if high <= 0:
        return None
    match unit:
        case Unit.SECONDS if high > _TIME_STEPS[0] * num_most:
            many_days = _DAY_S * _nice_step(high / _DAY_S, num_most)
            step = next((step for step in _TIME_STEPS if high / step <= num_most), many_days)
        case Unit.BYTES if high >= 1024:
            size = next(size for size, _ in _SIZES if high >= size)
            step = size * _nice_step(high / size, num_most)
        case _:
            return None
    return [step * number for number in range(math.floor(high / step) + 1)]


def find_log_ticks(low: float, high: float, unit: Unit, num_most: int) -> Sequence[float] | None:
    """Where a logarithmic axis has its ticks, if times of a minute or more are on it; None: where any other would.

    Powers of ten of seconds are no times that anybody says: 1.67 min, 16.7 min.
    """
    if unit is not Unit.SECONDS or high < 60:
        return None
    for times in (_FINE_LOG_TIMES, _LOG_TIMES):
        found = [time_s for time_s in times if low <= time_s <= high]
        if 2 <= len(found) <= num_most + 1:
            return found
    return None


def _nice_step(high: float, num_most: int) -> float:
    """1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(high / num_most))
    return next(factor * power for factor in (1, 2, 5, 10) if high / (factor * power) <= num_most)


def _format_number(value: float) -> str:
    for size, letter in _LARGE:
        if abs(value) >= size:
            return f"{_trim(value / min(size, 1e3) if letter == 'k' else value / size)}{letter}"
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    return _trim(value)


def _format_seconds(value: float) -> str:
    if value == 0:
        return "0 s"
    if abs(value) < 1e-3:
        return f"{_trim(value * 1e6)} µs"
    if abs(value) < 1:
        return f"{_trim(value * 1e3)} ms"
    for size, name in _TIMES:
        if abs(value) >= size:
            return f"{_trim(value / size)} {name}"
    return f"{_trim(value)} s"


def _format_bytes(value: float) -> str:
    for size, name in _SIZES:
        if abs(value) >= size:
            return f"{_trim(value / size)} {name}"
    return f"{_trim(value)} B"


def _trim(value: float) -> str:
    """Three digits, more before the point, without zeros at the end."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
