"""One run while it goes on."""

import sys
import time
from types import TracebackType
from typing import TextIO

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from bulkinfer.display.console import open_console, visible
from bulkinfer.display.figures import format_bytes, format_s
from bulkinfer.display.summary import render_summary
from bulkinfer.events import (
    Counting,
    Draining,
    EngineGivenUp,
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
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal and not is_quiet
        self._is_quiet = is_quiet
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._state = "reading the input"
        self._ready: set[int | None] = set()
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
                self._note_engine(replica, is_ready=False, state=f"loading {model}")
                self._say(("restarting the engine: " if event.restarts else "") + f"loading {model}", replica)
            case EngineStarted(replica=replica):
                self._note_engine(replica, is_ready=True, state="running")
                self._say(f"engine ready after {event.start_s:.1f} s", replica)
            case EngineRestarting(replica=replica):
                self._note_engine(replica, is_ready=False, state="waiting to restart the engine")
                self._say(
                    f"{event.reason}; {event.num_in_flight} documents go back into the queue, "
                    f"next start in {event.wait_s:.0f} s",
                    replica,
                )
            case EngineGivenUp(replica=replica):
                self._note_engine(replica, is_ready=False, state="waiting for another engine")
            case Draining():
                self._state = "stopping"
                self._say(
                    ("too many failures, " if event.signal_number is None else "")
                    + f"stopping: {event.num_in_flight} documents in flight may finish for up to {event.grace_s:.0f} s"
                    + ("" if event.signal_number is None else "; a second signal gives them up")
                )
            case Progress():
                self._show(render_progress(event, self._state), describe_progress(event, self._state))
            case Reading() | Counting():
                self._show(Spinner("line", event.describe()), event.describe())
            case RunEnded():
                self._live.stop()
                if not self._is_quiet:
                    self._console.print(render_summary(event.summary), soft_wrap=not self._is_live)

    def _note_engine(self, replica: int | None, *, is_ready: bool, state: str) -> None:
        """The run is in the state that its best engine is in."""
        self._ready = self._ready | {replica} if is_ready else self._ready - {replica}
        self._state = "running" if self._ready else state

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


def render_progress(progress: Progress, state: str) -> RenderableType:
    """The live view: a bar and a few lines."""
    num_done = progress.num_succeeded + progress.num_failed
    expected = _expected(progress)
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="bold", no_wrap=True)
    lines.add_column()
    lines.add_row("tokens", _describe_tokens(progress))
    lines.add_row("engine", _describe_engine(progress))
    runner, engine = format_bytes(progress.runner_memory_bytes), format_bytes(progress.engine_memory_bytes)
    lines.add_row("memory", f"runner {runner}, engine {engine}")
    if progress.num_failed:
        lines.add_row("failed", Text(_describe_failures(progress), style="red"))
    title = Text(visible(state))
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(justify="right", min_width=len(_describe_documents(progress)))
    bar.add_row(ProgressBar(total=max(1.0, expected), completed=num_done), _describe_documents(progress))
    return Group(Spinner("line", title) if progress.num_active == 0 else title, bar, lines)


def describe_progress(progress: Progress, state: str) -> str:
    """The same in one line."""
    parts = [
        f"{state}: {_describe_documents(progress)}",
        f"{progress.num_failed:,} failed",
        _describe_tokens(progress),
        _describe_engine(progress),
    ]
    return ", ".join(parts)


def _expected(progress: Progress) -> float:
    """Documents to do in all; while there is input unread, by the share of it that is read."""
    return progress.num_to_do / progress.share_read if progress.share_read > 0 else float(progress.num_to_do)


def _describe_documents(progress: Progress) -> str:
    num_done = progress.num_succeeded + progress.num_failed
    expected = _expected(progress)
    share = f" {100 * num_done / expected:.0f} %" if expected else ""
    time_left = "" if progress.time_left_s is None else f" about {format_s(max(1.0, progress.time_left_s))} left"
    return f"{num_done:,}/{'' if progress.is_read_to_end else '~'}{expected:,.0f}{share}{time_left}"


def _describe_tokens(progress: Progress) -> str:
    done = progress.prompt_tokens + progress.output_tokens
    left = "" if progress.tokens_left is None else f", {progress.tokens_left:,.0f} left"
    rates = f"{progress.prompt_tokens_per_s:,.0f} in + {progress.output_tokens_per_s:,.0f} out /s"
    return f"{done:,} done{left}; {rates}"


def _describe_engine(progress: Progress) -> str:
    cache = f"KV cache {100 * progress.kv_cache_usage:.0f} %"
    several = f"{progress.num_replicas_ready} of {progress.num_replicas} ready, " if progress.num_replicas > 1 else ""
    return f"{several}{progress.num_active} active, {progress.num_queued:,} queued, {cache}"


def _describe_failures(progress: Progress) -> str:
    return ", ".join(f"{count:,} {code.value}" for code, count in sorted(progress.failed_by_code.items()))
