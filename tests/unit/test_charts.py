"""The charts: what is told is in the drawing, in both looks, and nothing else is touched."""

import math
import re
import subprocess
import sys
from xml.etree import ElementTree as ET

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from bulkinfer.charts import (
    DARK,
    LIGHT,
    Axis,
    Bar,
    BarChart,
    Chart,
    HistogramChart,
    LineChart,
    Look,
    Mark,
    Series,
    Span,
    Theme,
    Unit,
    css_variables,
    draw_adaptive_svg,
    draw_page_png,
    draw_png,
    draw_svg,
    format_value,
)
from bulkinfer.charts.units import find_ticks

LINES = LineChart(
    title="Tokens",
    x=Axis("time", Unit.SECONDS),
    y=Axis("tokens/s"),
    series=[
        Series("prompt", [(0, 10), (60, 30), (120, None), (180, 20)]),
        Series("output", [(0, 5), (180, 6)], Look.LINE_WITH_POINTS, point_labels=("first", "last")),
    ],
    alt="Two lines.",
    marks=[Mark("knee", 60, 30), Mark("restart", 150)],
    spans=[Span("stall", 70, 90), Span("stall", 100, 110)],
)
HISTOGRAM = HistogramChart(
    title="Latency",
    x=Axis("latency", Unit.SECONDS, is_log=True),
    y=Axis("documents"),
    edges=[0.001, 0.01, 0.1, 1],
    counts=[3, 5, 1],
    alt="Mostly around 50 ms.",
    marks=[Mark("p50", 0.05)],
)
BARS = BarChart("Failures", Axis("documents"), [Bar("truncated", 12), Bar("prompt_too_long", 3)], "Two codes.")
CHARTS: list[Chart] = [LINES, HISTOGRAM, BARS]


def read_texts(svg: str) -> list[str]:
    """Every text in a drawing."""
    texts = ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(element.itertext()).rstrip("\u200b") for element in texts]


def test_a_drawing_says_what_the_chart_says() -> None:
    texts = read_texts(draw_svg(LINES))
    assert {"Tokens", "time", "tokens/s", "prompt", "output", "stall", "knee", "restart", "first", "last"} < set(texts)
    assert texts.count("stall") == 1, "spans of one label share one entry of the legend"
    assert {"1 min", "2 min", "3 min"} < set(texts), "ticks stand at whole minutes"
    assert {"Latency", "p50", "1 ms", "1 s"} < set(read_texts(draw_svg(HISTOGRAM)))
    assert {"truncated", "12", "prompt_too_long", "3"} < set(read_texts(draw_svg(BARS)))
    assert "Tokens" not in read_texts(draw_svg(LINES, has_title=False))


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: type(chart).__name__)
def test_an_svg_is_one_element_that_names_nothing_outside_itself(chart: Chart) -> None:
    for svg in (draw_svg(chart), draw_svg(chart, DARK), draw_adaptive_svg(chart)):
        element = ET.fromstring(svg)
        assert element.tag == "{http://www.w3.org/2000/svg}svg"
        assert element.get("role") == "img"
        assert element.get("aria-label") == f"{chart.title}. {chart.alt}"
        for node in element.iter():
            assert node.tag.rpartition("}")[2] not in {"script", "style", "image", "foreignObject", "a"}
            for name, value in node.attrib.items():
                if name.endswith("href"):
                    assert value.startswith("#")
                assert all(found.startswith("#") for found in re.findall(r"url\(([^)]*)\)", value))


def test_drawings_do_not_share_ids_and_are_the_same_every_time() -> None:
    ids = [re.findall(r' id="([^"]+)"', draw_adaptive_svg(chart)) for chart in CHARTS]
    assert ids[0]
    everything = [name for found in ids for name in found]
    assert len(everything) == len(set(everything))
    assert draw_svg(LINES) == draw_svg(LINES)
    assert draw_png(LINES) == draw_png(LINES)


def test_an_adaptive_drawing_takes_every_colour_from_the_page() -> None:
    for chart in CHARTS:
        colours = re.findall(r"(?:fill|stroke): (?!none)([^;\"]+)", draw_adaptive_svg(chart))
        assert colours
        assert all(re.fullmatch(r"var\(--chart-[a-z0-9-]+, #[0-9a-f]{6}\)", colour) for colour in colours), colours
    defined = set(re.findall(r"(--chart-[a-z0-9-]+):", css_variables(LIGHT)))
    assert defined == set(re.findall(r"(--chart-[a-z0-9-]+):", css_variables(DARK)))
    used = {name for chart in CHARTS for name in re.findall(r"var\((--[a-z0-9-]+)", draw_adaptive_svg(chart))}
    assert used <= defined
    assert {"--chart-series-0", "--chart-series-1", "--chart-text", "--chart-grid", "--chart-span"} <= used


def test_a_png_has_the_background_of_its_theme_and_its_lines() -> None:
    import io

    for theme in (LIGHT, DARK):
        for picture in (draw_png(LINES, theme), draw_page_png(CHARTS, theme, title="Page", lines=["one", "two"])):
            pixels = imread(io.BytesIO(picture), format="png")[..., :3]
            colours = {tuple(colour) for colour in np.round(pixels * 255).astype(int).reshape(-1, 3)}
            assert tuple(np.round(pixels[0, 0] * 255).astype(int)) == read_rgb(theme.background)
            assert read_rgb(theme.series[0]) in colours


def test_a_logarithmic_axis_of_minutes_has_times_that_people_say() -> None:
    def ticks(low: float, high: float) -> set[str]:
        chart = HistogramChart("t", Axis("x", Unit.SECONDS, is_log=True), Axis("y"), [low, high], [1], "")
        return {text for text in read_texts(draw_svg(chart)) if text.endswith((" s", " min", " h", " ms"))}

    assert ticks(25, 1_500) == {"30 s", "1 min", "2 min", "5 min", "10 min", "20 min"}
    assert ticks(0.5, 8_000) == {"1 s", "10 s", "1 min", "10 min", "1 h"}
    assert ticks(0.05, 8) == {"100 ms", "1 s", "10 s"}, "powers of ten where no minute is in sight"


def test_the_words_of_marks_lie_on_a_ground_of_their_own() -> None:
    """The percentiles of a narrow spread are close: the line of one would cross the words of another."""
    marks = [Mark("p50 55 s", 55.0), Mark("p95 1.06 min", 63.6), Mark("p99 1.16 min", 69.6)]
    chart = HistogramChart("t", Axis("x", Unit.SECONDS), Axis("y"), [50, 60, 70], [4, 2], "", marks)
    assert draw_adaptive_svg(chart).count("fill: var(--chart-background") == len(marks)


@pytest.mark.parametrize("line", ["W" * 400, "documents/s: 1,234.5, " * 30, "日" * 400], ids=lambda line: line[:3])
def test_lines_above_the_charts_do_not_leave_the_page(line: str) -> None:
    import io

    for num_columns in (2, 3):
        picture = draw_page_png([BARS], title="Page", lines=[line], num_columns=num_columns)
        pixels = imread(io.BytesIO(picture), format="png")[..., :3]
        assert (pixels[:150, -5:] == 1).all(), "nothing is at the right edge"
        assert (pixels[40:100, :600] < 1).any()


def test_matplotlibs_settings_are_left_alone_and_the_users_own_do_not_count() -> None:
    plain = draw_svg(LINES)
    with mpl.rc_context({"axes.facecolor": "#ff0000", "lines.linewidth": 9, "font.size": 30}):
        before = dict(mpl.rcParams)
        assert draw_svg(LINES) == plain
        assert dict(mpl.rcParams) == before


def test_no_window_system_and_no_pyplot_is_touched() -> None:
    code = (
        "import sys; from bulkinfer import charts;"
        "charts.draw_png(charts.BarChart('t', charts.Axis('n'), [charts.Bar('a', 1)], 'x'));"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


@pytest.mark.parametrize(
    "text",
    [
        "$x_1$ and $",
        "<script>alert(1)</script>",
        "_hidden",
        "\x00\x1b[31m\ud800",
        "日本語 \N{GRINNING FACE}",
        "a" * 9_999,
        "",
    ],
)
def test_names_of_users_are_shown_as_they_are_and_break_nothing(text: str) -> None:
    series = [Series(text, [(0, 1), (1, 2)], point_labels=(text, text)), Series(text, [(0, 3)])]
    chart = LineChart(text, Axis(text), Axis(text), series, text, [Mark(text, 0.5)], [Span(text, 0, 1)])
    texts = read_texts(draw_adaptive_svg(chart, has_title=True))
    if text.isprintable() and 0 < len(text) < 40:
        assert sum(shown == text for shown in texts) >= 7
    assert draw_page_png([chart, BarChart(text, Axis(text), [Bar(text, 1)], text)], title=text, lines=[text])


def test_what_has_no_values_says_so() -> None:
    empty: list[Chart] = [
        LineChart("t", Axis("x"), Axis("y"), [], ""),
        LineChart("t", Axis("x"), Axis("y"), [Series("s", [(0, None)])], ""),
        HistogramChart("t", Axis("x", is_log=True), Axis("y"), [], [], ""),
    ]
    for chart in empty:
        assert "nothing was recorded" in read_texts(draw_svg(chart))
        assert draw_png(chart)
    assert "none" in read_texts(draw_svg(BarChart("t", Axis("x"), [], "")))
    assert draw_page_png([])


@given(
    st.lists(st.tuples(st.floats(-1e12, 1e12), st.none() | st.floats(0, 1e15)), max_size=4),
    st.sampled_from(list(Unit)),
    st.booleans(),
)
def test_any_numbers_can_be_drawn(points: list[tuple[float, float | None]], unit: Unit, is_log: bool) -> None:
    chart = LineChart("t", Axis("x", unit), Axis("y", unit, is_log=is_log), [Series("s", points)], "")
    ET.fromstring(draw_svg(chart))


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, Unit.NUMBER, "0"), (0.1234, Unit.NUMBER, "0.123"), (1_234, Unit.NUMBER, "1,234"),
        (12_345, Unit.NUMBER, "12.3k"), (4_560_000, Unit.NUMBER, "4.56M"), (7.5e9, Unit.NUMBER, "7.5G"),
        (-1_234, Unit.NUMBER, "-1,234"), (0, Unit.SECONDS, "0 s"), (0.000_25, Unit.SECONDS, "250 µs"),
        (0.25, Unit.SECONDS, "250 ms"), (59, Unit.SECONDS, "59 s"), (90, Unit.SECONDS, "1.5 min"),
        (7_200, Unit.SECONDS, "2 h"), (864_000, Unit.SECONDS, "10 d"), (512, Unit.BYTES, "512 B"),
        (1536, Unit.BYTES, "1.5 KiB"), (2 * 1024**3, Unit.BYTES, "2 GiB"), (0.05, Unit.SHARE, "5%"),
        (1, Unit.SHARE, "100%"), (math.inf, Unit.SECONDS, "inf"),
    ],
)  # fmt: skip
def test_values_are_shown_short_with_their_unit(value: float, unit: Unit, text: str) -> None:
    assert format_value(value, unit) == text


@given(st.floats(1e-6, 1e12), st.sampled_from(list(Unit)), st.integers(2, 8))
def test_ticks_are_few_from_zero_and_within_the_axis(high: float, unit: Unit, num_most: int) -> None:
    ticks = find_ticks(high, unit, num_most)
    if ticks is None:
        return
    assert 2 <= len(ticks) <= num_most + 1
    assert ticks[0] == 0
    assert ticks[-1] <= high
    texts = [format_value(tick, unit) for tick in ticks]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_text_and_lines_stand_out_from_the_background(theme: Theme) -> None:
    assert measure_contrast(theme.text, theme.background) >= 7
    assert measure_contrast(theme.muted, theme.background) >= 4.5
    for color in theme.series:
        assert measure_contrast(color, theme.background) >= 3
    assert len(set(theme.roles().values())) == len(theme.roles())


# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009),
# severity 1.0, for linear RGB.
SIGHTS = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_the_first_three_lines_differ_for_any_colour_vision(theme: Theme, sight: str) -> None:
    """Further lines differ by their dashes and markers, too."""
    seen = [to_lab(np.clip(np.array(SIGHTS[sight]) @ to_linear(color), 0, 1)) for color in theme.series[:3]]
    for number, one in enumerate(seen):
        for other in seen[:number]:
            assert float(np.linalg.norm(one - other)) > 20


def read_rgb(color: str) -> tuple[int, ...]:
    """#rrggbb as three numbers."""
    return tuple(int(color[start : start + 2], 16) for start in (1, 3, 5))


def to_linear(color: str) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """The light of an sRGB colour."""
    share = np.array(read_rgb(color)) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def measure_contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2.1."""
    bright, dark = sorted((float(to_linear(color) @ [0.2126, 0.7152, 0.0722]) for color in (one, other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def to_lab(linear: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """CIE 1976 L*a*b* under D65."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    shares = to_xyz @ linear / np.array([0.9505, 1.0, 1.089])
    cubed = np.where(shares > 216 / 24389, np.cbrt(shares), (24389 / 27 * shares + 16) / 116)
    return np.array([116 * cubed[1] - 16, 500 * (cubed[0] - cubed[1]), 200 * (cubed[1] - cubed[2])])
