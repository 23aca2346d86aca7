"""One chart on matplotlib's axes."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from bulkinfer.charts.chart import Axis, Bar, BarChart, Chart, HistogramChart, LineChart, Look, Mark, Series, Span
from bulkinfer.charts.theme import Theme
from bulkinfer.charts.units import Unit, find_log_ticks, find_ticks, format_value

_MAX_TICKS_X = 5
_MAX_TICKS_Y = 5
_MAX_NAME_CHARS = 40
_MIN_BARS = 6
"""Room for so many: a single bar does not fill the picture."""
_DASHES: tuple[Any, ...] = ("solid", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1)), (0, (8, 3)))
_MARKERS = ("o", "s", "^", "D", "v", "P")


def draw_axes(axes: Any, chart: Chart, theme: Theme) -> None:
    """Draw a chart; its title is not drawn here."""
    _style(axes, theme)
    match chart:
        case LineChart():
            _draw_lines(axes, chart, theme)
        case HistogramChart():
            _draw_histogram(axes, chart, theme)
        case BarChart():
            _draw_bars(axes, chart, theme)


def clean(text: str) -> str:
    """Text as it may stand in a picture: one line, not endless, nothing that XML cannot hold, and no formulas."""
    shown = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    return shown if len(shown) <= _MAX_NAME_CHARS else shown[: _MAX_NAME_CHARS - 1] + "…"


def _draw_lines(axes: Any, chart: LineChart, theme: Theme) -> None:
    entries: dict[str, Any] = {}
    for span in chart.spans:
        entries[clean(span.label)] = _draw_span(axes, span, theme)
    lines = {}
    for number, series in enumerate(chart.series):
        # A legend is a list of what is there: two series of one name have two entries.
        name = clean(series.name) + "\u200b" * number
        lines[name] = _draw_series(axes, series, theme, number if series.color is None else series.color)
    values = [y for series in chart.series for _, y in series.points if y is not None]
    positions = [x for series in chart.series for x, _ in series.points]
    _scale(axes.xaxis, chart.x, positions, _MAX_TICKS_X)
    _scale(axes.yaxis, chart.y, values, _MAX_TICKS_Y)
    _label(axes, chart.x, chart.y, theme)
    _draw_marks(axes, chart.marks, theme)
    entries = lines | entries
    if len(entries) > 1:
        _draw_legend(axes, entries, theme)
    if not values:
        axes.text(0.5, 0.5, "nothing was recorded", transform=axes.transAxes, ha="center", color=theme.muted)


def _draw_series(axes: Any, series: Series, theme: Theme, number: int) -> Any:
    color = theme.series[number % len(theme.series)]
    x = [x for x, _ in series.points]
    y = [math.nan if y is None else y for _, y in series.points]
    has_points = series.look in {Look.POINTS, Look.LINE_WITH_POINTS} or len(series.points) == 1
    (line,) = axes.plot(
        x,
        y,
        color=color,
        linewidth=1.6,
        linestyle="none" if series.look is Look.POINTS else _DASHES[number % len(_DASHES)],
        marker=_MARKERS[number % len(_MARKERS)] if has_points else "none",
        markersize=4.5,
        clip_on=not has_points,  # a point at the edge is a whole point
        drawstyle="steps-post" if series.look is Look.STEPS else "default",
    )
    for (x_at, y_at), label in zip(series.points, series.point_labels, strict=False):
        if y_at is not None:
            axes.annotate(clean(label), (x_at, y_at), (6, 6), textcoords="offset points", fontsize=7, color=theme.muted)
    return line


def _draw_span(axes: Any, span: Span, theme: Theme) -> Any:
    return axes.axvspan(span.start, span.end, facecolor=theme.span, alpha=0.25, linewidth=0, hatch=None)


def _draw_marks(axes: Any, marks: Sequence[Mark], theme: Theme) -> None:
    for number, mark in enumerate(marks):
        is_right = _find_share(axes, mark.x) > 0.7  # there the words go to the left: they would leave the picture
        words = {
            "textcoords": "offset points",
            "ha": "right" if is_right else "left",
            "fontsize": 7,
            "color": theme.text,
            # Lines of other marks and bars lie behind the words.
            "bbox": {"facecolor": theme.background, "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
            "zorder": 5,
        }
        if mark.y is None:
            axes.axvline(mark.x, color=theme.text, linewidth=0.9, linestyle=(0, (4, 3)))
            top = (mark.x, 1 - 0.09 * (number % 8))
            axes.annotate(
                clean(mark.label),
                top,
                (-3 if is_right else 3, -2),
                xycoords=axes.get_xaxis_transform(),
                va="top",
                **words,
            )
        else:
            axes.plot(
                [mark.x],
                [mark.y],
                marker="o",
                markersize=11,
                fillstyle="none",
                color=theme.text,
                linestyle="none",
                clip_on=False,
            )
            # Beside a curve that rises: above it on the left, below it on the right.
            axes.annotate(clean(mark.label), (mark.x, mark.y), (-8, 8) if is_right else (8, -11), **words)


def _find_share(axes: Any, x: float) -> float:
    """Where x lies between the left and the right end of the axes."""
    return float(axes.transAxes.inverted().transform(axes.transData.transform((x, 1.0)))[0])


def _draw_histogram(axes: Any, chart: HistogramChart, theme: Theme) -> None:
    if len(chart.counts) > 0:
        axes.stairs(
            chart.counts, chart.edges, fill=True, facecolor=theme.series[0], edgecolor=theme.series[0], alpha=0.85
        )
    _scale(axes.xaxis, chart.x, list(chart.edges), _MAX_TICKS_X)
    _scale(axes.yaxis, chart.y, list(chart.counts), _MAX_TICKS_Y)
    _label(axes, chart.x, chart.y, theme)
    _draw_marks(axes, chart.marks, theme)
    if len(chart.counts) == 0:
        axes.text(0.5, 0.5, "nothing was recorded", transform=axes.transAxes, ha="center", color=theme.muted)


def _draw_bars(axes: Any, chart: BarChart, theme: Theme) -> None:
    bars: Sequence[Bar] = chart.bars
    drawn = axes.barh(range(len(bars)), [bar.value for bar in bars], color=theme.series[0], height=0.65)
    axes.bar_label(
        drawn, labels=[format_value(bar.value, chart.x.unit) for bar in bars], padding=4, fontsize=8, color=theme.text
    )
    axes.set_yticks(range(len(bars)), [clean(bar.name) for bar in bars])
    axes.set_ylim(max(len(bars), _MIN_BARS) - 0.5, -0.5)
    axes.margins(x=0.18)
    axes.grid(visible=False, axis="y")
    _scale(axes.xaxis, chart.x, [bar.value for bar in bars], _MAX_TICKS_X)
    axes.set_xlabel(clean(chart.x.label), fontsize=8, color=theme.muted, loc="right")
    if not bars:
        axes.set_yticks([])
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color=theme.muted)


def _style(axes: Any, theme: Theme) -> None:
    axes.set_facecolor("none")
    axes.set_axisbelow(True)
    axes.grid(visible=True, color=theme.grid, linewidth=0.7)
    axes.tick_params(labelsize=8, colors=theme.muted, length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(theme.muted)


def _label(axes: Any, x: Axis, y: Axis, theme: Theme) -> None:
    """What y counts stands above it, where it is read first, and not sideways."""
    axes.set_xlabel(clean(x.label), fontsize=8, color=theme.muted, loc="right")
    axes.set_title(clean(y.label), fontsize=8, color=theme.muted, loc="left")


def _scale(axis: Any, told: Axis, values: Sequence[float], num_most: int) -> None:
    low, high = min(values, default=0.0), max(values, default=0.0)
    high = high if told.ends_at is None else max(high, told.ends_at)
    name = axis.axis_name
    set_limits = axis.axes.set_xlim if name == "x" else axis.axes.set_ylim
    if told.is_log and low > 0:
        (axis.axes.set_xscale if name == "x" else axis.axes.set_yscale)("log")
        axis.set_major_locator(LogLocator(numticks=num_most + 1))
        axis.set_minor_locator(NullLocator())
        times = find_log_ticks(low, high, told.unit, num_most)
        if times is not None:
            axis.set_major_locator(FixedLocator(list(times)))
        elif math.log10(high / low) < 2:  # few powers of ten are in sight
            axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=num_most + 4))
    else:
        if told.starts_at_zero and low >= 0:
            is_open = told.ends_at is None and name == "y"
            set_limits(0, (high or 1.0) * (1.08 if is_open else 1.0))
        ticks = find_ticks(high, told.unit, num_most) if told.starts_at_zero else None
        if ticks is None:
            is_count = told.unit is Unit.NUMBER and all(float(value).is_integer() for value in values)
            axis.set_major_locator(MaxNLocator(num_most, steps=[1, 2, 5, 10], min_n_ticks=2, integer=is_count))
        else:
            axis.set_ticks(ticks)
    axis.set_major_formatter(FuncFormatter(lambda value, _position: format_value(value, told.unit)))


def _draw_legend(axes: Any, entries: dict[str, Any], theme: Theme) -> None:
    legend = axes.get_figure(root=False).legend(
        list(entries.values()),
        list(entries),
        loc="outside lower left",
        ncols=2 if max(len(name) for name in entries) > 16 else 3,
        frameon=False,
        fontsize=8,
        labelcolor=theme.text,
        handlelength=2.4,
        columnspacing=1.4,
    )
    legend.set_in_layout(True)
