"""The event sink that counts a run, and whoever is told the counts: a port, a file, a collector of OpenTelemetry.

What is wrong with the command line is an error before the run. What goes wrong later is one warning, and the run goes
on.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

from bulkinfer.bugs import attempt
from bulkinfer.errors import BulkinferError, ExitCode, Interrupted, JobError, StoreLocked
from bulkinfer.events import Event, EventSink, MetricsServed, RunEnded, RunStarted, Warned
from bulkinfer.metrics.signals import Signal, find_signals, is_installed
from bulkinfer.metrics.tally import RunLabels, Tally, read_exit_code
from bulkinfer.metrics.ticker import Ticker
from bulkinfer.records import RunStatus

LOOPBACK = "127.0.0.1"
FILE_EVERY_S = 15.0
"""node_exporter is usually asked as often."""
LIVE_S = 4 * FILE_EVERY_S
"""A file that says `running` and was written within that time is another run's."""
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

    @property
    def tells_documents(self) -> bool:
        """Whether anybody is told numbers of single documents: a trace has none."""
        are_sent = Signal.METRICS in find_signals(os.environ) and is_installed()
        return self.port is not None or self.file is not None or are_sent


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
        self._is_of_live_run: Callable[[], bool] = lambda: False
        self._ticker: Ticker | None = None
        self._telemetry: Telemetry | None = None
        self._is_broken = False
        """The tally is: a port and a file that it ends with still tell how the run ended."""
        self._ended: RunEnded | None = None

    def __call__(self, event: Event) -> None:
        """Take one event of the run."""
        self._tell(event)
        if not self._is_broken:
            took = self.attempt("metrics", "they stand still from here", partial(self._tally.take, event))
            self._is_broken = not took
        match event:
            case RunStarted():
                self._begin_file()
                self.attempt("OpenTelemetry", "nothing is sent", partial(self._begin_telemetry, event))
            case RunEnded():
                self._ended = event
        if self._telemetry is not None and not self.attempt(
            "OpenTelemetry", "nothing more is sent", partial(self._telemetry.take, event)
        ):
            self._end_telemetry()
        self.tell_warnings()

    def attempt(self, about: str, then: str, step: Callable[[], None]) -> bool:
        """Whether a step of the metrics could be done: a fault of them is a warning, and never stops a run.

        It tells the kind of the error and not its text, which may quote a document.
        """
        error = attempt(step)
        if error is not None:
            self.warn(about, f"{about}: {type(error).__name__}; {then}, and the run goes on")
        return error is None

    def write_with(self, write: Callable[[], None], is_of_live_run: Callable[[], bool] = lambda: False) -> None:
        """Write the file from the run's beginning on: only then the database is its own, and so is the file."""
        self._write = write
        self._is_of_live_run = is_of_live_run

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
        self.attempt("metrics", "they do not tell its end", partial(self._note_end, error))
        self.attempt("--metrics-file", "its last numbers are not written", self._end_file)
        self._end_telemetry()
        self.tell_warnings()

    def _note_end(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, StoreLocked):  # there, the file is the other run's
            exit_code = error.exit_code if isinstance(error, BulkinferError) else ExitCode.BUG
            status = RunStatus.INTERRUPTED if isinstance(error, Interrupted) else RunStatus.FAILED
            self._tally.end(status, int(exit_code))
            if not self._is_of_live_run():
                self._begin_file()
        elif self._is_broken and self._ended is not None:
            self._tally.end(self._ended.status, read_exit_code(self._ended))

    def _end_file(self) -> None:
        if self._ticker is not None and not self._ticker.stop(END_LIMIT_S):
            self.warn("--metrics-file", "--metrics-file: the last numbers of this run could not be written")

    def _end_telemetry(self) -> None:
        telemetry, self._telemetry = self._telemetry, None
        if telemetry is not None:
            self.attempt("OpenTelemetry", "its last is not sent", partial(telemetry.close, END_LIMIT_S))

    def _begin_file(self) -> None:
        if self._write is not None and self._ticker is None:
            self._ticker = Ticker(
                self._write, FILE_EVERY_S, "metrics-file", self._tell_file_fault, is_first_at_once=True
            )

    def _tell_file_fault(self, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) else type(error).__name__
        self.warn("--metrics-file", f"--metrics-file cannot be written: {reason}; it is tried again, the run goes on")

    def _begin_telemetry(self, started: RunStarted) -> None:
        if not self._signals:
            return
        try:
            from bulkinfer.metrics.otlp import OtlpTelemetry  # noqa: PLC0415 - an extra, and slow to import
        except ImportError:
            self.warn(
                "OpenTelemetry",
                "OpenTelemetry is asked for by OTEL_EXPORTER_OTLP_*ENDPOINT and is not installed: nothing is sent. "
                "pip install 'bulkinfer[otel]'",
            )
            return
        self._telemetry = OtlpTelemetry(
            self._tally, started, self._signals, lambda text: self.warn("OpenTelemetry", text)
        )


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
    from bulkinfer.metrics.exposition import MetricsFile, create_registry  # noqa: PLC0415
    from bulkinfer.metrics.port import MetricsPort  # noqa: PLC0415

    tally = Tally(labels)
    registry = create_registry(tally)
    metrics = RunMetrics(tally, tell, os.environ)
    with ExitStack() as stack:
        if options.file is not None:
            file = MetricsFile(options.file, registry)
            metrics.write_with(file.write, partial(file.is_of_live_run, LIVE_S))
        if options.port is not None:
            port = MetricsPort(options.address or LOOPBACK, options.port, registry)
            closing = partial(port.close, END_LIMIT_S)
            stack.callback(metrics.tell_warnings)
            stack.callback(metrics.attempt, "--metrics-port", "it is left open", closing)
            tell(MetricsServed(port.url))
        try:
            yield metrics
        except BaseException as error:
            metrics.end(error)
            raise
        metrics.end(None)
