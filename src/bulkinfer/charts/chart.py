"""What a chart shows. Nothing of how it is drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from bulkinfer.charts.units import Unit


class Look(StrEnum):
    """How a series is drawn."""

    LINE = "line"
    LINE_WITH_POINTS = "line_with_points"
    POINTS = "points"
    STEPS = "steps"
    """Each value holds until the next: for counts that change at once."""


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis counts."""

    label: str
    unit: Unit = Unit.NUMBER
    is_log: bool = False
    starts_at_zero: bool = True
    """A linear axis; a logarithmic one has no zero."""
    ends_at: float | None = None
    """Where the axis must reach; None: where the values end."""


@dataclass(frozen=True, slots=True)
class Series:
    """Points that belong together, with a name for the legend. A y of None is a gap in the line."""

    name: str
    points: Sequence[tuple[float, float | None]]
    look: Look = Look.LINE
    color: int | None = None
    """Which of the theme's colours; None: by its place in the chart. Each has a dash and a marker of its own, too."""
    point_labels: Sequence[str] = ()
    """A few words beside each point; as many as points, or none."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something at one place: a line across the chart at `x`, or a ring around the point (`x`, `y`)."""

    label: str
    x: float
    y: float | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the x axis that stands out. Spans of one label share one entry in the legend."""

    label: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over one x axis."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    alt: str
    """What the picture shows, for those who do not see it: one or two sentences with numbers."""
    marks: Sequence[Mark] = ()
    spans: Sequence[Span] = ()


@dataclass(frozen=True, slots=True)
class HistogramChart:
    """How often values lie between two edges: `counts[i]` from `edges[i]` to `edges[i + 1]`; marks at values."""

    title: str
    x: Axis
    y: Axis
    edges: Sequence[float]
    counts: Sequence[float]
    alt: str
    marks: Sequence[Mark] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, and what stands at its end."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class BarChart:
    """Horizontal bars, the first on top."""

    title: str
    x: Axis
    bars: Sequence[Bar]
    alt: str


Chart = LineChart | HistogramChart | BarChart
