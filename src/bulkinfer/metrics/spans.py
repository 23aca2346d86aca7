"""A run as a trace: one span for it, and below it one for each load of an engine, each shard and each commit.

Not one for each document: those are in the database, with their times.
"""

import time

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.util.types import AttributeValue

from bulkinfer import __version__
from bulkinfer.events import (
    Cancelled,
    Committed,
    Draining,
    EngineGivenUp,
    EngineLost,
    EngineRestarting,
    EngineStarted,
    EngineStarting,
    Event,
    RunEnded,
    RunStarted,
    ShardTaken,
    Warned,
)
from bulkinfer.metrics.tally import RunLabels, read_exit_code
from bulkinfer.records import RunStatus


class RunSpans:
    """The trace of one run."""

    def __init__(self, resource: Resource, labels: RunLabels) -> None:
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("bulkinfer", __version__)
        self._run = self._tracer.start_span(
            "bulkinfer.run",
            kind=SpanKind.INTERNAL,
            attributes=describe_model(labels),
        )
        self._context = set_span_in_context(self._run)
        self._loads: dict[int, Span] = {}
        self._shard: Span | None = None
        self._has_ended = False

    def take(self, event: Event) -> None:
        """Take one event."""
        match event:
            case RunStarted():
                self._run.set_attribute("bulkinfer.run_id", str(event.run_id))
                self._run.set_attribute("bulkinfer.num_source_files", event.num_source_files)
                self._run.set_attribute("bulkinfer.input_size_bytes", event.input_size_bytes)
            case EngineStarting(restarts=restarts, replica=replica):
                self._loads[replica or 0] = self._begin(
                    "bulkinfer.engine_start", restarts=restarts, engine=replica or 0
                )
            case EngineStarted(replica=replica):
                self._end_load(replica or 0)
            case EngineLost(replica=replica):
                self._end_load(replica or 0, fault="engine_died")
                self._note("bulkinfer.engine_death", engine=replica or 0)
            case EngineRestarting(num_in_flight=num_in_flight, replica=replica):
                self._note("bulkinfer.engine_restart", engine=replica or 0, num_in_flight=num_in_flight)
            case EngineGivenUp(replica=replica):
                self._end_load(replica, fault="engine_given_up")
                self._note("bulkinfer.engine_given_up", engine=replica)
            case ShardTaken():
                self._end_shard()
                self._shard = self._begin(
                    "bulkinfer.shard",
                    number=event.number,
                    num_read=event.num_read,
                    num_requests=event.num_requests,
                    num_failures=event.num_failures,
                )
            case Committed():
                self._note_commit(event)
            case Draining(signal_number=signal_number, num_in_flight=num_in_flight):
                self._note("bulkinfer.draining", signal=signal_number or 0, num_in_flight=num_in_flight)
            case Cancelled(num_documents):
                self._note("bulkinfer.cancelled", num_documents=num_documents)
            case Warned():
                self._note("bulkinfer.warning")
            case RunEnded(status):
                self._has_ended = True
                self._run.set_attribute("bulkinfer.status", status.value)
                self._run.set_attribute("bulkinfer.exit_code", read_exit_code(event))
                self._run.set_status(StatusCode.OK if status is RunStatus.COMPLETED else StatusCode.ERROR)

    def close(self) -> None:
        """End what is open and send all. May take as long as the exporter's own limit."""
        self._end_shard()
        for engine in tuple(self._loads):
            self._end_load(engine, fault="run_ended")
        if not self._has_ended:
            self._run.set_status(StatusCode.ERROR, "bug")
        self._run.end()
        self._provider.shutdown()

    def _begin(self, name: str, *, start_ns: int | None = None, **numbers: float) -> Span:
        attributes: dict[str, AttributeValue] = {f"bulkinfer.{key}": number for key, number in numbers.items()}
        return self._tracer.start_span(name, self._context, attributes=attributes, start_time=start_ns)

    def _note(self, name: str, **numbers: int) -> None:
        self._run.add_event(name, {f"bulkinfer.{key}": number for key, number in numbers.items()})

    def _note_commit(self, commit: Committed) -> None:
        start_ns = time.time_ns() - int(commit.commit_s * 1e9)
        self._begin(
            "bulkinfer.commit",
            start_ns=start_ns,
            seq=commit.seq,
            num_results=commit.num_results,
            num_failures=commit.num_failures,
            database_bytes=commit.database_bytes,
        ).end()

    def _end_shard(self) -> None:
        """The next one follows it into the queue."""
        if self._shard is not None:
            self._shard.end()
            self._shard = None

    def _end_load(self, engine: int, *, fault: str = "") -> None:
        load = self._loads.pop(engine, None)
        if load is None:
            return
        if fault:
            load.set_status(StatusCode.ERROR, fault)
        load.end()


def describe_model(labels: RunLabels) -> dict[str, str]:
    """What the conventions for generative AI tell metrics and spans apart by, and our own labels."""
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": labels.engine_kind,
        "gen_ai.request.model": labels.model,
        "bulkinfer.job": labels.job_name,
        "bulkinfer.task_kind": labels.task_kind,
    }
