"""What people read of a sweep: rows that fit, marks, notes, two sweeps side by side, pictures of all of it."""

from dataclasses import replace
from typing import Any

from bulkinfer.charts import LineChart
from bulkinfer.records import Latency, Percentiles
from bulkinfer.sweep.capacity import recommend
from bulkinfer.sweep.load import Load
from bulkinfer.sweep.options import SweepOptions
from bulkinfer.sweep.plots import make_charts
from bulkinfer.sweep.point import Point
from bulkinfer.sweep.result import describe_options, describe_point, describe_recommendation, describe_series
from bulkinfer.sweep_view import describe_comparison, describe_sweep
from tests.sweep_support import make_load
from tests.unit.test_sweep_capacity import make_point


def make_found(points: list[Point], **options: Any) -> dict[str, Any]:  # noqa: ANN401 - of any type
    asked = SweepOptions(**options)
    load: Load = make_load()
    found, reason = recommend(points, headroom=0.2, target_p95_s=None, is_rejecting=False)
    return {
        "job": "tickets",
        "model": "some-model",
        "measured_at": "2026-01-01T00:00:00+00:00",
        "bulkinfer": "0.1.0",
        "options": describe_options(asked),
        "load": load.describe(),
        "engines": [{"start_s": 1.0}],
        "points": [describe_point(point) for point in points],
        "series": describe_series(points),
        "recommendation": describe_recommendation(found, reason),
        "notes": ["a note"],
    }


CLOSED = [make_point(1, 1.0, 1.0), make_point(4, 3.0, 1.5), make_point(8, 4.0, 2.5, refused={"queue_full": 7})]


def test_the_table_marks_the_knee_and_where_refusals_begin() -> None:
    lines = list(describe_sweep(make_found(CLOSED)))
    rows = [line for line in lines if line[1:7].strip().isdigit()]
    assert [row[0] for row in rows] == [" ", "*", "!"]
    assert all(len(row) <= 80 for row in rows)
    assert rows[2].endswith(" 7")
    assert "note: a note" in lines


def test_a_sweep_without_a_point_says_so() -> None:
    lines = list(describe_sweep(make_found([])))
    assert "no point was measured" in lines
    assert any(line.startswith("no recommendation: ") for line in lines)


def test_two_sweeps_are_laid_side_by_side_point_by_point() -> None:
    other = make_found([make_point(4, 6.0, 1.0), make_point(16, 9.0, 3.0)])
    lines = list(describe_comparison(make_found(CLOSED), other, ("this", "other.json")))
    [four] = [line for line in lines if line.strip().startswith("4 ")]
    assert four.split()[2:5] == ["3", "6", "-50"]
    assert [line.split()[0] for line in lines[3:7]] == ["1", "4", "8", "16"]
    assert any("limits: other.json" in line for line in lines)
    assert all(len(line) <= 80 for line in lines[2:])


def with_reserve(point: Point, reserve: float, batched_tokens: int | None = None) -> Point:
    return replace(point, settings=replace(point.settings, reserve=reserve, batched_tokens=batched_tokens))


def test_points_of_each_reserve_and_step_size_are_compared_with_their_like() -> None:
    points = [
        with_reserve(make_point(4, rate, 1.0), reserve, tokens)
        for rate, reserve, tokens in ((1.0, 0.0, 512), (2.0, 0.5, 512), (3.0, 0.0, 8192), (4.0, 0.5, 8192))
    ]
    lines = list(describe_comparison(make_found(points), make_found(points), ("this", "other.json")))
    assert lines[3:11:2] == [
        f"{tokens} tokens a step, reserve {reserve} %" for tokens in ("512", "8,192") for reserve in (0, 50)
    ]
    assert [line.split()[2:4] for line in lines[4:11:2]] == [[rate, rate] for rate in "1234"]


def test_sweeps_of_one_step_size_each_are_laid_side_by_side() -> None:
    ours, others = (make_found([make_point(4, 3.0, 1.0, batched_tokens=tokens)]) for tokens in (512, 8192))
    lines = list(describe_comparison(ours, others, ("this", "other.json")))
    assert lines[3].split()[:4] == ["4", "-", "3", "3"]


def test_sweeps_are_compared_by_the_p95_that_points_are_judged_by() -> None:
    found = make_found([make_point(4, 3.0, 1.25)])
    found["points"][0]["latency_s"]["total"]["p95"] = 9.0
    lines = list(describe_comparison(found, found, ("this", "other.json")))
    assert "1.25 s" in lines[3]


def test_the_parts_and_kinds_of_each_reserve_are_lines_of_their_own() -> None:
    latency = Latency(*[Percentiles(1.0, 2.0, 3.0)] * 3)
    points = [
        replace(with_reserve(point, reserve), latency=latency, latency_by_kind={"short": latency, "long": latency})
        for point in CLOSED[:2]
        for reserve in (0.0, 0.25)
    ]
    _, _, parts, kinds = make_charts(make_found(points))
    assert isinstance(parts, LineChart)
    assert isinstance(kinds, LineChart)
    assert len(parts.series) == 6
    assert [series.name for series in kinds.series] == [
        f"{kind}, reserve {reserve}%" for reserve in (0, 25) for kind in ("long", "short")
    ]


def test_the_chart_has_the_points_and_the_marks() -> None:
    chart = make_charts(make_found(CLOSED))[0]
    assert isinstance(chart, LineChart)
    assert [list(series.points) for series in chart.series] == [[(1.0, 1.0), (3.0, 1.5), (4.0, 2.5)]]
    assert list(chart.series[0].point_labels) == ["1", "4", "8"]
    assert [(mark.label, mark.x, mark.y) for mark in chart.marks] == [
        ("latency leaves the line", 3.0, 1.5),
        ("rejections begin", 4.0, 2.5),
    ]


def test_two_sweeps_are_drawn_over_each_other_only_where_the_axes_are_the_same() -> None:
    rates = [make_point(4, 1.0, 1.0, 1.0), make_point(4, 2.0, 1.2, 2.0)]
    capacity, throughput, *_ = make_charts(make_found(CLOSED), make_found(rates))
    assert isinstance(capacity, LineChart)
    assert isinstance(throughput, LineChart)
    assert [len(capacity.series), len(throughput.series)] == [2, 1]


def test_each_reserve_is_a_line_of_its_own() -> None:
    points = [
        replace(point, settings=replace(point.settings, reserve=reserve))
        for point in CLOSED[:2]
        for reserve in (0.0, 0.5)
    ]
    chart = make_charts(make_found(points))[0]
    assert isinstance(chart, LineChart)
    assert [series.name for series in chart.series] == ["reserve 0%", "reserve 50%"]
