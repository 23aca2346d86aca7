"""The event sink that counts a run, and whoever is told the counts: a port, a file, a collector of OpenTelemetry.

What is wrong with the command line is an error before the run. What goes wrong later is one warning, and the run goes
on.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

from bulkinfer.errors import BulkinferError, ExitCode, Interrupted, JobError, StoreLocked
from bulkinfer.events import Event, EventSink, MetricsServed, RunStarted, Warned
from bulkinfer.metrics.signals import find_signals
from bulkinfer.metrics.tally import RunLabels, Tally
from bulkinfer.metrics.ticker import Ticker
from bulkinfer.records import RunStatus

LOOPBACK = "127.0.0.1"
FILE_EVERY_S = 15.0
"""node_exporter is usually asked as often."""
END_LIMIT_S = 10.0
"""How long the end of a run waits for the last file and the last export: a disk or a collector may hang."""


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """Where the metrics of a run go."""

    port: int | None = None
    """On `address`; 0: any free one."""
    address: str | None = None
    """None: the loopback address."""
    file: Path | None = None

    @property
    def are_wanted(self) -> bool:
        """Whether anybody is told the counts of a run; the environment may ask for it, too."""
        return self.port is not None or self.file is not None or bool(find_signals(os.environ))


class Telemetry(Protocol):
    """What is told of a run that has begun, besides the tally: OpenTelemetry's part, which may not be installed."""

    def take(self, event: Event) -> None:
        """Take one event."""

    def close(self, limit_s: float) -> None:
        """Send what is left, within the limit."""


class RunMetrics:
    """The sink. It hands each event on to `tell`, and counts it."""

    def __init__(self, tally: Tally, tell: EventSink, environment: Mapping[str, str]) -> None:
        self._tally = tally
        self._tell = tell
        self._signals = find_signals(environment)
        self._warnings: SimpleQueue[str] = SimpleQueue()
        """From whatever thread; told by the run's own, as the display has no other."""
        self._warned: set[str] = set()
        self._write: Callable[[], None] | None = None
        self._ticker: Ticker | None = None
        self._telemetry: Telemetry | None = None
        self._is_broken = False

    def __call__(self, event: Event) -> None:
        """Take one event of the run."""
        self._tell(event)
        if not self._is_broken:
            try:
                self._take(event)
            except Exception as error:  # noqa: BLE001 - a fault of the metrics never stops a run
                self._is_broken = True
                self.warn(
                    "metrics", f"metrics: {type(error).__name__}; they stand still from here, and the run goes on"
                )
        self.tell_warnings()

    def write_with(self, write: Callable[[], None]) -> None:
        """Write the file from the run's beginning on: only then the database is its own, and so is the file."""
        self._write = write

    def warn(self, about: str, message: str) -> None:
        """Once about each thing."""
        if about not in self._warned:
            self._warned.add(about)
            self._warnings.put(message)

    def tell_warnings(self) -> None:
        """Hand on what other threads had to say."""
        while not self._warnings.empty():
            self._tell(Warned(self._warnings.get()))

    def end(self, error: BaseException | None) -> None:
        """The last words. `error`: what ended the run before it could tell its end."""
        if error is not None and not isinstance(error, StoreLocked):  # there, the file is the other run's
            exit_code = error.exit_code if isinstance(error, BulkinferError) else ExitCode.BUG
            status = RunStatus.INTERRUPTED if isinstance(error, Interrupted) else RunStatus.FAILED
            self._tally.end(status, int(exit_code))
            self._begin_file()
        if self._ticker is not None and not self._ticker.stop(END_LIMIT_S):
            self.warn("file", "--metrics-file: the last numbers of this run could not be written")
        if self._telemetry is not None:
            self._telemetry.close(END_LIMIT_S)
        self.tell_warnings()

    def _take(self, event: Event) -> None:
        self._tally.take(event)
        if isinstance(event, RunStarted):
            self._begin_file()
            self._begin_telemetry(event)
        if self._telemetry is not None:
            self._telemetry.take(event)

    def _begin_file(self) -> None:
        if self._write is not None and self._ticker is None:
            self._ticker = Ticker(self._write_file, FILE_EVERY_S, "metrics-file", is_first_at_once=True)

    def _write_file(self) -> None:
        assert self._write is not None
        try:
            self._write()
        except OSError as error:
            self.warn("file", f"--metrics-file cannot be written: {error.strerror}; it is tried again, the run goes on")

    def _begin_telemetry(self, started: RunStarted) -> None:
        if not self._signals:
            return
        try:
            from bulkinfer.metrics.otlp import OtlpTelemetry  # noqa: PLC0415 - an extra, and slow to import
        except ImportError:
            self.warn(
                "otel",
                "OpenTelemetry is asked for by OTEL_EXPORTER_OTLP_*ENDPOINT and is not installed: nothing is sent. "
                "pip install 'bulkinfer[otel]'",
            )
            return
        self._telemetry = OtlpTelemetry(self._tally, started, self._signals, lambda text: self.warn("otel", text))


@contextmanager
def open_metrics(options: MetricsOptions, labels: RunLabels, tell: EventSink) -> Iterator[EventSink]:
    """The sink to give a run that is told to `tell`, for as long as the run lasts.

    Without anything that wants metrics, `tell` itself. Raises JobError when the port or the file cannot be had.
    """
    if options.address is not None and options.port is None:
        raise JobError("--metrics-address needs --metrics-port")
    if not options.are_wanted:
        yield tell
        return
    # The library waits until somebody wants it: a run without metrics starts sooner.
    from bulkinfer.metrics.exposition import MetricsFile, MetricsPort, create_registry  # noqa: PLC0415

    tally = Tally(labels)
    registry = create_registry(tally)
    metrics = RunMetrics(tally, tell, os.environ)
    with ExitStack() as stack:
        if options.file is not None:
            metrics.write_with(MetricsFile(options.file, registry).write)
        if options.port is not None:
            port = MetricsPort(options.address or LOOPBACK, options.port, registry)
            stack.callback(port.close)
            tell(MetricsServed(port.url))
        try:
            yield metrics
        except BaseException as error:
            metrics.end(error)
            raise
        metrics.end(None)
