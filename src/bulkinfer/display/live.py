"""One run while it goes on."""

import sys
import time
from types import TracebackType
from typing import TextIO

from rich.console import RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from bulkinfer.display.console import is_for_a_view, open_console, visible
from bulkinfer.display.figures import format_bytes
from bulkinfer.display.progress import describe_progress, render_progress
from bulkinfer.display.summary import render_summary
from bulkinfer.events import (
    Counting,
    Draining,
    EngineRestarting,
    EngineStarted,
    EngineStarting,
    Event,
    MetricsServed,
    Progress,
    Reading,
    RunEnded,
    RunStarted,
    Warned,
)

PLAIN_LINE_EVERY_S = 5.0
"""Without a terminal: one line so often. A log of a night stays readable."""


class RunDisplay:
    """Shows one run. Use as a context manager, and give it to the run as its event sink."""

    def __init__(self, *, is_quiet: bool = False, stream: TextIO | None = None) -> None:
        self._console = open_console(stream or sys.stderr)
        self._is_live = is_for_a_view(self._console) and not is_quiet
        self._is_quiet = is_quiet
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._told_s = 0.0

    def __enter__(self) -> "RunDisplay":
        if self._is_live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        """Take one event of the run."""
        match event:
            case RunStarted():
                size = format_bytes(event.input_size_bytes)
                what = f"{event.num_source_files:,} input file(s), {size}"
                self._say(f"{event.job}: {what}; run {event.run_id}; database {event.database}")
            case MetricsServed():
                self._say(f"metrics at {event.url}")
            case Warned():
                self._say(f"warning: {event.message}")
            case EngineStarting(model=model, replica=replica):
                self._say(("restarting the engine: " if event.restarts else "") + f"loading {model}", replica)
            case EngineStarted(replica=replica):
                self._say(f"engine ready after {event.start_s:.1f} s", replica)
            case EngineRestarting(replica=replica):
                self._say(
                    f"{event.reason}; {event.num_in_flight} documents go back into the queue, "
                    f"next start in {event.wait_s:.0f} s",
                    replica,
                )
            case Draining():
                self._say(
                    ("too many failures, " if event.signal_number is None else "")
                    + f"stopping: {event.num_in_flight} documents in flight may finish for up to {event.grace_s:.0f} s"
                    + ("" if event.signal_number is None else "; a second signal gives them up")
                )
            case Progress():
                self._show(render_progress(event, self._console.height), describe_progress(event))
            case Reading() | Counting():
                self._show(Spinner("line", event.describe()), event.describe())
            case RunEnded():
                self._live.stop()
                if not self._is_quiet:
                    self._console.print(render_summary(event.summary), soft_wrap=not self._is_live)

    def _say(self, line: str, replica: int | None = None) -> None:
        if not self._is_quiet:
            name = "" if replica is None else f"engine {replica}: "
            self._console.print(Text(visible(name + line)), soft_wrap=not self._is_live)

    def _show(self, view: RenderableType, line: str) -> None:
        if self._is_live:
            self._live.update(view, refresh=True)
        elif time.monotonic() - self._told_s >= PLAIN_LINE_EVERY_S:
            if self._told_s:
                self._say(f"{time.strftime('%H:%M:%S')} {line}")
            self._told_s = time.monotonic()
