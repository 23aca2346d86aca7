"""What monitoring is told of a run: metrics for Prometheus and OpenTelemetry, and traces.

catalogue   every metric: its names, its unit, what it means
tally       a run's events, counted
exposition  the counts as Prometheus reads them, in a text file
port        the same on a port
ticker      a thread that does something now and then
otlp        the counts as OpenTelemetry sends them
spans       a run as a trace
sink        the event sink of all of them; no fault of theirs stops a run

It knows neither the engine nor the store: events are all that it sees, and they hold no text of documents.
"""

from bulkinfer.metrics.sink import MetricsOptions, RunMetrics, open_metrics
from bulkinfer.metrics.tally import RunLabels

__all__ = ["MetricsOptions", "RunLabels", "RunMetrics", "open_metrics"]
