"""A chart as SVG text or PNG bytes, several on one page.

In an SVG text stays text, in the reader's own sans-serif font: it can be found, read aloud and copied, and no font is
embedded or fetched. A PNG has DejaVu Sans, which comes with matplotlib.
"""

import io
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from html import escape
from textwrap import wrap
from typing import Any

from matplotlib import rc_context, rcParamsDefault
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bulkinfer.charts.axes import clean, draw_axes
from bulkinfer.charts.chart import Chart
from bulkinfer.charts.theme import LIGHT, VARIABLE_PREFIX, Theme

WIDTH_INCHES, HEIGHT_INCHES = 5.4, 3.1
"""So that a window of 400 pixels shows an SVG at about its own size, with text that can be read."""
_CHARS_PER_COLUMN = 68
"""Of the text above a page's charts, so that it does not leave the page."""
_LINE_POINTS = 9

_FONTS = ["DejaVu Sans", "sans-serif"]
_COLOR = re.compile(r"#[0-9a-f]{6}(?=[;\"' ])")
_STYLE = re.compile(r"(?:style|fill|stroke|stop-color)=\"[^\"]*\"")
_GROUP_ID = re.compile(r"<g id=\"[^\"]*\"")
_STYLE_SHEET = re.compile(r"<defs>\s*<style type=\"text/css\">[^<]*</style>\s*</defs>")
_VIEW_BOX = re.compile(r"viewBox=\"[^\"]+\"")
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


def draw_svg(chart: Chart, theme: Theme = LIGHT, *, has_title: bool = True) -> str:
    """One <svg> element without anything before it, to stand in a page or, as it is, in a file.

    Same chart, same text. Ids in it are its own: several drawings may stand in one page. It names nothing outside
    itself.
    """
    with _settings(salt=sha256(repr((chart, theme.name)).encode()).hexdigest()):
        figure = _make_figure(theme, WIDTH_INCHES, HEIGHT_INCHES, is_transparent=True)
        _draw(figure, chart, theme, has_title=has_title)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata=_NO_METADATA, facecolor="none")
    return _describe(text.getvalue(), chart)


def draw_adaptive_svg(chart: Chart, *, has_title: bool = False) -> str:
    """The same with each colour as a CSS variable: the page says with `css_variables` which theme it is."""
    roles = {color: role for role, color in LIGHT.roles().items()}

    def use_variable(found: re.Match[str]) -> str:
        color = found[0]
        return f"var({VARIABLE_PREFIX}{roles[color]}, {color})" if color in roles else color

    drawn = draw_svg(chart, LIGHT, has_title=has_title)
    return _STYLE.sub(lambda style: _COLOR.sub(use_variable, style[0]), drawn)


def draw_png(chart: Chart, theme: Theme = LIGHT, *, dots_per_inch: int = 150) -> bytes:
    """One chart with its title as a picture."""
    with _settings(salt=""):
        figure = _make_figure(theme, WIDTH_INCHES, HEIGHT_INCHES, is_transparent=False)
        _draw(figure, chart, theme, has_title=True)
        return _save_png(figure, dots_per_inch)


def draw_page_png(
    charts: Sequence[Chart],
    theme: Theme = LIGHT,
    *,
    title: str = "",
    lines: Sequence[str] = (),
    num_columns: int = 3,
    dots_per_inch: int = 110,
) -> bytes:
    """All charts on one page, row by row, below a title and a few lines of text."""
    num_rows = max(1, -(-len(charts) // num_columns))
    width, height = num_columns * WIDTH_INCHES, num_rows * HEIGHT_INCHES
    with _settings(salt=""):
        lines = [part for line in lines for part in _wrap(_one_line(line), _CHARS_PER_COLUMN * num_columns, width)]
        head_inches = (0.5 if title else 0.15) + 0.2 * len(lines)
        figure = _make_figure(theme, width, height + head_inches, is_transparent=False)
        head, body = figure.subfigures(2, 1, height_ratios=[head_inches, height])
        head.set_facecolor(theme.background)
        _write_head(head, title, lines, theme, head_inches)
        places = body.subfigures(num_rows, num_columns, squeeze=False).flat
        body.set_facecolor(theme.background)
        for place in places:
            place.set_facecolor(theme.background)
        for place, chart in zip(body.subfigs, charts, strict=False):
            _draw(place, chart, theme, has_title=True)
        return _save_png(figure, dots_per_inch)


def _wrap(text: str, num_chars: int, inches: float) -> list[str]:
    """In parts that fit: of wide letters, fewer than of others."""
    figure = Figure()
    renderer = FigureCanvasAgg(figure).get_renderer()
    parts = wrap(text, num_chars)
    for share in (0.75, 0.5):
        extents = [figure.text(0, 0, part, fontsize=_LINE_POINTS).get_window_extent(renderer) for part in parts]
        if all(extent.width <= 0.97 * inches * figure.dpi for extent in extents):
            break
        parts = wrap(text, int(share * num_chars))
    return parts


def _write_head(head: Any, title: str, lines: Sequence[str], theme: Theme, inches: float) -> None:
    left = 0.12 / (WIDTH_INCHES * 3)
    if title:
        head.text(left, 1 - 0.12 / inches, _one_line(title), fontsize=15, weight="bold", color=theme.text, va="top")
    for number, line in enumerate(lines):
        y = 1 - ((0.45 if title else 0.1) + 0.2 * number) / inches
        head.text(left, y, line, fontsize=_LINE_POINTS, color=theme.muted, va="top")


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _draw(place: Any, chart: Chart, theme: Theme, *, has_title: bool) -> None:
    if has_title:
        place.suptitle(clean(chart.title), x=0.01, ha="left", fontsize=10.5, weight="bold", color=theme.text)
    draw_axes(place.subplots(), chart, theme)


def _make_figure(theme: Theme, width: float, height: float, *, is_transparent: bool) -> Any:
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.set_facecolor("none" if is_transparent else theme.background)
    FigureCanvasAgg(figure)
    return figure


def _save_png(figure: Any, dots_per_inch: int) -> bytes:
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=dots_per_inch, metadata={"Software": None})
    return picture.getvalue()


@contextmanager
def _settings(salt: str) -> Iterator[None]:
    """What matplotlib takes from its settings alone, for one drawing: the reader's own matplotlibrc has no say."""
    # Every setting but the backend: to touch it would import pyplot.
    known = {name: value for name, value in rcParamsDefault.items() if not name.startswith("backend")}
    ours = {
        "font.family": _FONTS,
        "svg.fonttype": "none",
        "svg.hashsalt": salt or None,
        "svg.id": None,
        "text.parse_math": False,
        "hatch.linewidth": 0.6,
    }
    logger = logging.getLogger("matplotlib.font_manager")
    with rc_context(known | ours), warnings.catch_warnings(), _quiet(logger):
        # Names come from users: what DejaVu Sans has no glyph for is a box in a picture, and not our reader's problem.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Fonts that are not there are not news."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _describe(svg: str, chart: Chart) -> str:
    """The element alone, with a role and a text for those who do not see it, as wide as the page lets it be.

    Out go matplotlib's ids, which are the same in every drawing, and its style sheet, which would be the page's.
    """
    start = svg.index("<svg")
    end = svg.index(">", start)
    view_box = _VIEW_BOX.search(svg, start, end)
    size = "" if view_box is None else view_box[0]
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{size} style="stroke-linejoin: round; stroke-linecap: butt" '
        f'role="img" aria-label="{escape(_one_line(f"{chart.title}. {chart.alt}"))}">'
    )
    body = _STYLE_SHEET.sub("", _GROUP_ID.sub("<g", svg[end + 1 :]))
    return head + body.strip()
