"""What a collector of OpenTelemetry is sent: the tally as metrics, and the run as a trace. The extra `otel`.

Imported only when the environment asks for it. The exporters read their settings from OpenTelemetry's own variables.
"""

import logging
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import wait as wait_for_futures
from functools import partial

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import export
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from bulkinfer import __version__
from bulkinfer.events import Event, RunStarted
from bulkinfer.metrics.catalogue import Kind, Metric
from bulkinfer.metrics.signals import Signal
from bulkinfer.metrics.spans import RunSpans, describe_model
from bulkinfer.metrics.tally import Point, Reading, RunLabels, Tally
from bulkinfer.metrics.ticker import Ticker
from bulkinfer.threads import run_in_thread

_MAX_COMPLAINT_CHARS = 200
DEFAULT_EVERY_S = 60.0
"""OpenTelemetry's own default for OTEL_METRIC_EXPORT_INTERVAL."""
_MOST_EVERY_S = 86_400.0
"""No thread can wait for any length of time."""


class OtlpTelemetry:
    """The metrics and the trace of one run, from its start to `close`. `warn` is told what keeps them from arriving."""

    def __init__(
        self, tally: Tally, started: RunStarted, signals: frozenset[Signal], warn: Callable[[str], None]
    ) -> None:
        self._tally = tally
        self._warn = warn
        self._complaints = _Complaints(warn)
        self._spans: RunSpans | None = None
        self._ticker: Ticker | None = None
        self._complaints.begin()
        try:
            self._begin(started, signals)
        except BaseException:  # a setting that the library cannot read
            self._complaints.end()
            raise

    def take(self, event: Event) -> None:
        """Take one event."""
        if self._spans is not None:
            self._spans.take(event)

    def close(self, limit_s: float) -> None:
        """Send what is left; a collector that does not answer is waited for so long at the most."""
        until_s = time.monotonic() + limit_s
        closing = None if self._spans is None else run_in_thread(self._spans.close, "otlp-traces")
        has_sent = self._ticker is None or self._ticker.stop(limit_s)
        if closing is not None:
            wait_for_futures([closing], timeout=max(0.0, until_s - time.monotonic()))
            has_sent = has_sent and closing.done() and closing.exception() is None
        self._complaints.end()
        if not has_sent:
            self._warn("OpenTelemetry: the last of this run could not be sent")

    def _begin(self, started: RunStarted, signals: frozenset[Signal]) -> None:
        self._resource = create_resource(started, self._tally.labels)
        if Signal.TRACES in signals:
            self._spans = RunSpans(self._resource, self._tally.labels)
        if Signal.METRICS in signals:
            self._exporter = OTLPMetricExporter()
            self._ticker = Ticker(self._send, read_interval_s(), "otlp-metrics", self._tell_fault)

    def _tell_fault(self, error: Exception) -> None:
        self._warn(f"OpenTelemetry: {type(error).__name__}; it is tried again, and the run goes on")

    def _send(self) -> None:
        points = create_metrics(self._tally.read(), self._tally.labels, self._tally.start_s, time.time())
        scope = export.ScopeMetrics(InstrumentationScope("bulkinfer", __version__), points, "")
        self._exporter.export(export.MetricsData([export.ResourceMetrics(self._resource, [scope], "")]))


def create_resource(started: RunStarted, labels: RunLabels) -> Resource:
    """Who sends: the run is in each metric and span by it. A name in the environment goes before ours."""
    attributes: dict[str, str] = {
        SERVICE_VERSION: __version__,
        SERVICE_INSTANCE_ID: str(started.run_id),
        "bulkinfer.run_id": str(started.run_id),
        "bulkinfer.job": labels.job_name,
        "bulkinfer.task_fingerprint": str(started.task_fingerprint),
    }
    if "OTEL_SERVICE_NAME" not in os.environ and "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        attributes[SERVICE_NAME] = "bulkinfer"
    return Resource.create(attributes)


def read_interval_s() -> float:
    """Seconds between two exports, from OTEL_METRIC_EXPORT_INTERVAL (milliseconds); a day at most."""
    try:
        interval_s = float(os.environ["OTEL_METRIC_EXPORT_INTERVAL"]) / 1000
    except (KeyError, ValueError):
        return DEFAULT_EVERY_S
    return DEFAULT_EVERY_S if math.isnan(interval_s) else min(max(0.1, interval_s), _MOST_EVERY_S)


def create_metrics(readings: list[Reading], labels: RunLabels, start_s: float, now_s: float) -> list[export.Metric]:
    """The tally in OpenTelemetry's form: cumulative, by its names. Two of ours may be one of its."""
    gathered: dict[str, tuple[Metric, list[export.NumberDataPoint | export.HistogramDataPoint]]] = {}
    for reading in readings:
        create = partial(_create_point, reading.metric, labels, int(start_s * 1e9), int(now_s * 1e9))
        _, points = gathered.setdefault(reading.metric.otel_name, (reading.metric, []))
        points += map(create, reading.points)
    return [_create_metric(name, metric, points) for name, (metric, points) in gathered.items() if points]


def _create_metric(
    name: str, metric: Metric, points: list[export.NumberDataPoint | export.HistogramDataPoint]
) -> export.Metric:
    cumulative = export.AggregationTemporality.CUMULATIVE
    numbers = [point for point in points if isinstance(point, export.NumberDataPoint)]
    distributions = [point for point in points if isinstance(point, export.HistogramDataPoint)]
    data: export.DataT
    match metric.kind:
        case Kind.COUNTER:
            data = export.Sum(numbers, cumulative, is_monotonic=True)
        case Kind.GAUGE:
            data = export.Gauge(numbers)
        case Kind.HISTOGRAM:
            data = export.Histogram(distributions, cumulative)
    return export.Metric(name, metric.help, metric.unit, data)


def _create_point(
    metric: Metric, labels: RunLabels, start_ns: int, now_ns: int, point: Point
) -> export.NumberDataPoint | export.HistogramDataPoint:
    attributes = {**describe_model(labels), **dict(zip(metric.labels, point.labels, strict=True))}
    if metric.token_type:
        attributes["gen_ai.token.type"] = metric.token_type
    if metric.kind is Kind.COUNTER:
        return export.NumberDataPoint(attributes, start_ns, now_ns, int(point.value))
    if metric.kind is Kind.GAUGE:  # always of one type: receivers take a change of it for another metric
        return export.NumberDataPoint(attributes, start_ns, now_ns, float(point.value))
    return export.HistogramDataPoint(
        attributes,
        start_ns,
        now_ns,
        count=sum(point.counts),
        sum=point.value,
        bucket_counts=point.counts,
        explicit_bounds=metric.bounds,
        min=None,  # type: ignore[arg-type]  # not counted; the format has both as optional, and leaves them out
        max=None,  # type: ignore[arg-type]
    )


class _Complaints(logging.Handler):
    """What the exporters log: they raise nothing. The first of it is a warning; the rest would only repeat it."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)  # a warning tells of what is tried again
        self._warn = warn
        self._logger = logging.getLogger("opentelemetry")
        self._did_propagate = self._logger.propagate

    def begin(self) -> None:
        """From here on, instead of onto stderr."""
        self._did_propagate, self._logger.propagate = self._logger.propagate, False
        self._logger.addHandler(self)

    def end(self) -> None:
        """No longer."""
        self._logger.removeHandler(self)
        self._logger.propagate = self._did_propagate

    def emit(self, record: logging.LogRecord) -> None:
        """One complaint."""
        said = record.getMessage()
        short = said if len(said) <= _MAX_COMPLAINT_CHARS else f"{said[:_MAX_COMPLAINT_CHARS]}..."
        self._warn(f"OpenTelemetry: what is sent does not arrive, and the run goes on: {short}")
