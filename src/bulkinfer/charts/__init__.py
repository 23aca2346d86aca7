"""Charts: what is shown is told with plain dataclasses; matplotlib, whose only door this is, draws it.

chart    what a chart shows: lines, a histogram, bars
theme    the colours of the light and the dark look
units    numbers, durations, sizes and shares as text, and where an axis has its ticks
axes     one chart on matplotlib's axes
drawing  a chart as SVG text or PNG bytes, several on one page

Nothing here touches matplotlib's state: no pyplot, and what has to be set is set for one drawing. matplotlib takes
half a second to import: whoever draws imports this room when there is something to draw.
"""

from bulkinfer.charts.chart import Axis, Bar, BarChart, Chart, HistogramChart, LineChart, Look, Mark, Series, Span
from bulkinfer.charts.drawing import draw_adaptive_svg, draw_page_png, draw_png, draw_svg
from bulkinfer.charts.theme import DARK, LIGHT, Theme, css_variables
from bulkinfer.charts.units import Unit, format_value

__all__ = [
    "DARK",
    "LIGHT",
    "Axis",
    "Bar",
    "BarChart",
    "Chart",
    "HistogramChart",
    "LineChart",
    "Look",
    "Mark",
    "Series",
    "Span",
    "Theme",
    "Unit",
    "css_variables",
    "draw_adaptive_svg",
    "draw_page_png",
    "draw_png",
    "draw_svg",
    "format_value",
]
