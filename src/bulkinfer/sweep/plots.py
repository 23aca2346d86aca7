"""A sweep as pictures: p95 against throughput, and what the p95 is made of. Two sweeps lie over each other."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bulkinfer.charts import Axis, Chart, LineChart, Look, Mark, Series, Unit

_PARTS = (("queue", "queue time"), ("first_token", "first token"), ("total", "whole time"))


def make_charts(found: Mapping[str, Any], other: Mapping[str, Any] | None = None) -> list[Chart]:
    """The charts of a sweep, or of two, the second for comparison."""
    sweeps = [("this", found)] + ([("other", other)] if other is not None else [])
    charts: list[Chart] = [_chart_capacity(sweeps), _chart_throughput(sweeps), _chart_parts(found)]
    if _has_kinds(found):
        charts.append(_chart_kinds(found))
    return charts


def _chart_capacity(sweeps: Sequence[tuple[str, Mapping[str, Any]]]) -> LineChart:
    """The picture of the experiment: up to the knee, more throughput for little latency; after it, the reverse."""
    lines, marks, told = [], [], []
    has_low = any(found["options"]["low"] for _, found in sweeps)
    for name, found in sweeps:
        points = found["points"]
        for series in found["series"]:
            places = [place for place in series["points"] if _find_p95(points[place]) is not None]
            lines.append(
                Series(
                    _name_series(name, found, points[series["points"][0]], has_others=len(sweeps) > 1),
                    [(_find_rate(points[place]), _find_p95(points[place])) for place in places],
                    Look.LINE_WITH_POINTS,
                    point_labels=[_name_load(points[place]) for place in places],
                )
            )
            places_to_mark = (
                ("latency leaves the line", series["knee"] if series["leaves_line_at"] is not None else None),
                ("rejections begin", series["rejections_begin_at"]),
            )
            for label, place in places_to_mark if found is sweeps[0][1] else ():
                if place is not None and _find_p95(points[place]) is not None:
                    marks.append(Mark(label, _find_rate(points[place]), _find_p95(points[place])))
            if series["leaves_line_at"] is not None:
                knee = points[series["knee"]]
                told.append(
                    f"latency leaves the line after {_name_load(knee)}: {_find_rate(knee):.3g} requests per"
                    f" second at a p95 of {_find_p95(knee):.3g} s"
                )
    return LineChart(
        "p95 of the whole time against throughput",
        Axis("requests answered per second"),
        Axis("p95 of the whole time" + (" at normal priority" if has_low else ""), Unit.SECONDS),
        lines,
        alt="; ".join(told) or "latency does not leave the line",
        marks=marks,
    )


def _chart_throughput(sweeps: Sequence[tuple[str, Mapping[str, Any]]]) -> LineChart:
    lines = []
    for name, found in sweeps:
        points = found["points"]
        if _is_open(found) != _is_open(sweeps[0][1]):
            continue  # another axis
        lines += [
            Series(
                _name_series(name, found, points[series["points"][0]], has_others=len(sweeps) > 1),
                [
                    (_find_load(points[place]), points[place]["throughput"]["requests_per_s"])
                    for place in series["points"]
                ],
                Look.LINE_WITH_POINTS,
            )
            for series in found["series"]
        ]
    rates = [y for line in lines for _, y in line.points if y is not None]
    return LineChart(
        "Throughput",
        _load_axis(sweeps[0][1]),
        Axis("requests answered per second"),
        lines,
        alt=f"at most {max(rates, default=0.0):.3g} requests per second",
    )


def _chart_parts(found: Mapping[str, Any]) -> LineChart:
    points = found["points"]
    lines = [
        Series(
            _name_part(shown, found, places),
            [(_find_load(points[place]), points[place]["latency_s"][name]["p95"]) for place in places],
            Look.LINE_WITH_POINTS,
        )
        for places in _iter_places(found)
        for name, shown in _PARTS
    ]
    return LineChart(
        "What the p95 is made of",
        _load_axis(found),
        Axis("p95", Unit.SECONDS),
        lines,
        alt="p95 of queue time, first token and whole time, by load",
    )


def _chart_kinds(found: Mapping[str, Any]) -> LineChart:
    points = found["points"]
    kinds = sorted({kind for point in points for kind in point["latency_by_kind_s"]})
    lines = [
        Series(
            _name_part(kind, found, places),
            [
                (_find_load(points[place]), points[place]["latency_by_kind_s"][kind]["total"]["p95"])
                for place in places
                if kind in points[place]["latency_by_kind_s"]
            ],
            Look.LINE_WITH_POINTS,
        )
        for places in _iter_places(found)
        for kind in kinds
    ]
    return LineChart(
        "Short and long requests",
        _load_axis(found),
        Axis("p95 of the whole time", Unit.SECONDS),
        lines,
        alt="p95 of the whole time by kind of request, by load",
    )


def _iter_places(found: Mapping[str, Any]) -> Iterator[Sequence[int]]:
    return (series["points"] for series in found["series"])


def _name_part(shown: str, found: Mapping[str, Any], places: Sequence[int]) -> str:
    if len(found["series"]) == 1:
        return shown
    return f"{shown}, {_name_series('', found, found['points'][places[0]], has_others=False)}"


def _has_kinds(found: Mapping[str, Any]) -> bool:
    return bool(found["series"]) and any(len(point["latency_by_kind_s"]) > 1 for point in found["points"])


def _load_axis(found: Mapping[str, Any]) -> Axis:
    return Axis("requests that come per second" if _is_open(found) else "requests in the engine at once")


def _is_open(found: Mapping[str, Any]) -> bool:
    return any(point["rate_per_s"] is not None for point in found["points"])


def _find_load(point: Mapping[str, Any]) -> float:
    return float(point["concurrency"] if point["rate_per_s"] is None else point["rate_per_s"])


def _find_rate(point: Mapping[str, Any]) -> float:
    return float(point["throughput"]["requests_per_s"])


def _find_p95(point: Mapping[str, Any]) -> float | None:
    found: float | None = point["p95_s"]
    return found


def _name_load(point: Mapping[str, Any]) -> str:
    rate = point["rate_per_s"]
    if rate is None:
        return f"{point['concurrency']}"
    return f"{rate:g}/s"


def _name_series(name: str, found: Mapping[str, Any], point: Mapping[str, Any], *, has_others: bool) -> str:
    parts = [name] if has_others else []
    if point["rate_per_s"] is not None:
        parts.append(f"{point['concurrency']} at once")
    if point["reserve"] is not None:
        parts.append(f"reserve {100 * point['reserve']:g}%")
    if len(found["engines"]) > 1:
        parts.append(f"{point['max_num_batched_tokens']} tokens a step")
    return ", ".join(parts) or "measured"
