"""A collector of OpenTelemetry: takes what exporters send over HTTP, and lets a test look at it."""

import gzip
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """What has come, by signal, oldest first."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.traces: list[ExportTraceServiceRequest] = []
        self.answer = 200

    def take(self, path: str, body: bytes) -> None:
        """One request."""
        match path:
            case "/v1/metrics":
                self.metrics.append(ExportMetricsServiceRequest.FromString(body))
            case "/v1/traces":
                self.traces.append(ExportTraceServiceRequest.FromString(body))
            case _:
                raise AssertionError(path)

    def last_metrics(self) -> dict[str, Metric]:
        """By name, as they were sent last."""
        [resource] = self.metrics[-1].resource_metrics
        [scope] = resource.scope_metrics
        return {metric.name: metric for metric in scope.metrics}

    def spans(self) -> list[Span]:
        """All that came."""
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@contextmanager
def run_collector() -> Iterator[Collector]:
    """A collector on a free port of the loopback address."""

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(self.path, body)
            self.send_response(collector.answer)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing onto stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def attributes_of(pairs: Iterable[KeyValue]) -> dict[str, object]:
    """Attributes as a dict."""
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in pairs}
