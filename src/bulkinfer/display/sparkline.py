"""Counts over time as one row of blocks."""

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style

_BLOCKS = "▁▂▃▄▅▆▇█"
_DIGITS = "12345678"
"""For terminals that have no blocks."""
_CAPTION_WIDTH = len(" 59 min")


class Sparkline:
    """The latest counts that fit, as heights from nothing to the largest of them; a stretch with nothing is a dot.

    `stretch_s`: how long each took; behind them stands how long all took that are shown, unless `is_captioned` is off.
    """

    def __init__(self, counts: Sequence[int], stretch_s: float, *, is_captioned: bool = True) -> None:
        self._counts = counts
        self._stretch_s = stretch_s
        self._is_captioned = is_captioned

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """One line, no wider than there is room."""
        room = options.max_width - _CAPTION_WIDTH
        shown = self._counts[-room:] if room > 0 else ()
        yield Segment(draw_sparkline(shown, is_ascii=options.ascii_only), Style.parse("cyan"))
        if shown and self._is_captioned:
            yield Segment(_describe_span(len(shown) * self._stretch_s), Style.parse("dim"))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """It can be cut to anything."""
        return Measurement(1, max(1, min(len(self._counts) + _CAPTION_WIDTH, options.max_width)))


def draw_sparkline(counts: Sequence[int], *, is_ascii: bool = False) -> str:
    """One character for each count."""
    levels = _DIGITS if is_ascii else _BLOCKS
    most = max(counts, default=0)
    return "".join(levels[-(-count * len(levels) // most) - 1] if count > 0 else "." for count in counts)


def _describe_span(seconds: float) -> str:
    return f" {seconds:.0f} s" if seconds < 60 else f" {seconds / 60:.0f} min"
