"""The charts of a report, each with the table of its numbers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bulkinfer.charts import (
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
    Unit,
    format_value,
)
from bulkinfer.records import Percentiles
from bulkinfer.report.measures import UNKNOWN
from bulkinfer.report.subject import Subject
from bulkinfer.report.timeline import Stretch, find_restarts, find_spans, line_of, split, steps_of
from bulkinfer.store import Histogram, Moment

TIME = Axis("time since the start of the run", Unit.SECONDS)
QUEUED = Axis("time since a document entered the queue", Unit.SECONDS)


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart and the numbers that it shows."""

    chart: Chart
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class _Line:
    """A series over time, by what it is of a stretch or a moment."""

    name: str
    of_stretch: Callable[[Stretch], float | None] | None = None
    of_moment: Callable[[Moment], float | None] | None = None


def draw_pictures(subject: Subject) -> list[Picture]:
    """All charts of a report; those that need samples only where the run has them."""
    return [*_over_time(subject), *_of_latency(subject), *_of_lengths(subject), _of_failures(subject)]


def _over_time(subject: Subject) -> Iterator[Picture]:
    yield _draw_rates(
        subject,
        "Documents per second",
        Axis("documents/s"),
        [
            _Line("answered", lambda s: s.rate(lambda m: m.succeeded)),
            _Line("failed", lambda s: s.rate(lambda m: m.failed)),
        ],
    )
    yield _draw_rates(
        subject,
        "Tokens per second",
        Axis("tokens/s"),
        [
            _Line("prompt", lambda s: s.rate(lambda m: m.prompt_tokens)),
            _Line("output", lambda s: s.rate(lambda m: m.output_tokens)),
        ][: 2 if subject.details.totals.writes_answers else 1],
    )
    if not subject.details.has_samples:
        return
    yield _draw_readings(
        subject,
        "Documents on their way",
        Axis("documents"),
        [
            _Line("waiting in the queue", of_moment=lambda m: m.queued),
            _Line("in flight", of_moment=lambda m: m.in_flight),
            _Line("active in the engine", of_moment=lambda m: m.active),
        ],
    )
    memory = [
        _Line("runner", of_moment=lambda m: m.runner_memory_bytes),
        _Line("engine, at most until then", of_moment=lambda m: m.engine_memory_bytes),
    ]
    if any(moment.gpu_memory_bytes for moment in subject.details.moments):
        memory.append(_Line("GPU, by whomever", of_moment=lambda m: m.gpu_memory_bytes))
    yield _draw_readings(subject, "Memory", Axis("memory in use", Unit.BYTES), memory)
    yield _draw_rates(
        subject,
        "KV cache and prefix cache",
        Axis("share", Unit.SHARE, ends_at=1.0),
        [
            _Line("KV cache in use", lambda s: s.after.kv_cache_usage),
            _Line(
                "prompt tokens from the cache", lambda s: s.share(lambda m: m.cached_tokens, lambda m: m.prompt_tokens)
            ),
        ],
    )
    yield _draw_readings(
        subject,
        "Preemptions and restarts",
        Axis("since the start"),
        [
            _Line("preemptions", of_moment=lambda m: m.preemptions),
            _Line("engine restarts", of_moment=lambda m: m.restarts),
        ],
    )


def _draw_rates(subject: Subject, title: str, y: Axis, lines: Sequence[_Line]) -> Picture:
    stretches = split(subject.details.moments)
    values = [[line.of_stretch(stretch) for stretch in stretches] for line in lines if line.of_stretch]
    series = [Series(line.name, steps_of(stretches, line.of_stretch), Look.STEPS) for line in lines if line.of_stretch]
    rows = [
        [format_value(stretch.begin_s, Unit.SECONDS), format_value(stretch.end_s, Unit.SECONDS)]
        + [_show(column[number], y.unit) for column in values]
        for number, stretch in enumerate(stretches)
    ]
    return Picture(_chart(subject, title, y, series), ["from", "to", *(line.name for line in lines)], rows)


def _draw_readings(subject: Subject, title: str, y: Axis, lines: Sequence[_Line]) -> Picture:
    moments = subject.details.moments
    # Steps: between two readings nothing is known but the first.
    series = [Series(line.name, line_of(moments, line.of_moment), Look.STEPS) for line in lines if line.of_moment]
    rows = [
        [format_value(moment.elapsed_s, Unit.SECONDS)]
        + [_show(line.of_moment(moment), y.unit) for line in lines if line.of_moment]
        for moment in moments
    ]
    return Picture(_chart(subject, title, y, series), ["at", *(line.name for line in lines)], rows)


def _chart(subject: Subject, title: str, y: Axis, series: Sequence[Series]) -> LineChart:
    spans, marks = find_spans(subject), find_restarts(subject.details.moments)
    return LineChart(title, TIME, y, series, _tell(series, y, spans, marks), marks, spans)


def _tell(series: Sequence[Series], y: Axis, spans: Sequence[Span], marks: Sequence[Mark]) -> str:
    """What the lines show, in words."""
    found = []
    for one in series:
        values = [value for _, value in one.points if value is not None]
        if values:
            low, high = format_value(min(values), y.unit), format_value(max(values), y.unit)
            found.append(f"{one.name} between {low} and {high}")
    words = "; ".join(found) or "nothing was recorded"
    return f"{words}. Marked: {len(spans)} of stalls, {len(marks)} of restarts."


def _of_latency(subject: Subject) -> Iterator[Picture]:
    latency, spread = subject.details.totals.latency, subject.spread
    for title, histogram, percentiles in (
        ("Time in the queue", spread.queue_s, latency.queue),
        ("Time to the first token", spread.first_token_s, latency.first_token),
        ("Time to the whole answer", spread.total_s, latency.total),
    ):
        if histogram is spread.first_token_s and not subject.details.totals.writes_answers:
            continue
        yield _draw_histogram(title, QUEUED, histogram, percentiles)


def _of_lengths(subject: Subject) -> Iterator[Picture]:
    yield _draw_histogram("Lengths of prompts", Axis("tokens of a prompt"), subject.spread.prompt_tokens)
    if subject.details.totals.writes_answers:
        yield _draw_histogram("Lengths of answers", Axis("tokens of an answer"), subject.spread.output_tokens)


def _draw_histogram(title: str, x: Axis, found: Histogram, percentiles: Percentiles | None = None) -> Picture:
    axis = Axis(x.label, x.unit, is_log=found.is_log)
    known = (
        [] if percentiles is None else [("p50", percentiles.p50), ("p95", percentiles.p95), ("p99", percentiles.p99)]
    )
    marks = [Mark(f"{name} {format_value(value, x.unit)}", value) for name, value in known if value is not None]
    shown = marks if not found.is_log else [mark for mark in marks if mark.x > 0]
    rows = [
        [format_value(low, x.unit), format_value(high, x.unit), f"{count:,}"]
        for low, high, count in (
            (*edges, count) for edges, count in zip(pairwise(found.edges), found.counts, strict=True)
        )
        if count
    ]
    alt = f"{sum(found.counts):,} answers"
    if rows:
        alt += f" between {rows[0][0]} and {rows[-1][1]}, most of them around {_find_peak(found, x.unit)}"
    if marks:
        alt += "; " + ", ".join(mark.label for mark in marks)
    chart = HistogramChart(title, axis, Axis("answers"), found.edges, found.counts, f"{alt}.", shown)
    return Picture(chart, ["from", "to below", "answers"], rows)


def _find_peak(found: Histogram, unit: Unit) -> str:
    most = max(range(len(found.counts)), key=lambda number: found.counts[number])
    return format_value((found.edges[most] + found.edges[most + 1]) / 2, unit)


def _of_failures(subject: Subject) -> Picture:
    failed = subject.details.totals.failed_by_code
    told = ", ".join(f"{count:,} {code}" for code, count in failed.items()) or "no document failed"
    bars = [Bar(code, count) for code, count in failed.items()]
    chart = BarChart("Failures by code", Axis("documents"), bars, f"{told}.")
    return Picture(chart, ["code", "documents"], [[code, f"{count:,}"] for code, count in failed.items()])


def _show(value: float | None, unit: Unit) -> str:
    return UNKNOWN if value is None else format_value(value, unit)
