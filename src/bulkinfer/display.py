"""Events and answers to people: a live view on a terminal, plain lines without one. Everything goes to stderr.

What comes from outside (ids, field values, paths) is text here, never Rich markup, and its control characters are
shown, not sent to the terminal.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from bulkinfer.engines.telling import describe_replicas, describe_settings
from bulkinfer.events import (
    Counting,
    Draining,
    EngineGivenUp,
    EngineRestarting,
    EngineStarted,
    EngineStarting,
    Event,
    Progress,
    Reading,
    RunEnded,
    RunStarted,
    Warned,
)
from bulkinfer.records import RunStatus

PLAIN_LINE_EVERY_S = 5.0
"""Without a terminal: one line so often. A log of a night stays readable."""


class RunDisplay:
    """Shows one run. Use as a context manager, and give it to the run as its event sink."""

    def __init__(self, *, is_quiet: bool = False, stream: TextIO | None = None) -> None:
        self._console = _open_console(stream or sys.stderr)
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
                self._say(f"{event.job}: {event.num_source_files:,} input file(s), {size}; database {event.database}")
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


def render_summary(summary: Mapping[str, Any]) -> RenderableType:
    """What a run did, as a table; `summary` as `run --json` prints it."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for label, text, style in _summary_lines(summary):
        table.add_row(label, Text(visible(text), style=style))
    return table


def _summary_lines(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Label, text and style of each line. What the engine did is left out when it was not asked."""
    documents = summary["documents"]
    yield "status", f"{summary['status']} (exit code {summary['exit_code']})", ""
    yield (
        "documents",
        "{succeeded:,} answered, {failed:,} failed, {already_done:,} done before".format_map(documents),
        "",
    )
    for code, count in documents["failed_by_code"].items():
        yield "", f"{count:,} {code}", "red"
    if documents["not_finished"]:
        yield "", f"{documents['not_finished']:,} known and not finished", ""
    failed_rows = documents.get("failed_rows", 0)
    yield (
        "input",
        f"{documents['read']:,} rows, {documents['duplicates']:,} of them equal to another"
        + (f"; {failed_rows:,} failed and have no answer" if failed_rows else ""),
        "",
    )
    if summary["engine"]["is_used"]:
        yield from _engine_lines(summary)
    else:
        yield "time", f"{format_s(summary['seconds']['total'])}; there was nothing to ask the model", ""
    yield "database", str(summary["database"]), ""


def _engine_lines(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    tokens, seconds, rates = summary["tokens"], summary["seconds"], summary["throughput"]
    engine, memory = summary["engine"], summary["peak_memory_bytes"]
    yield (
        "time",
        (
            f"{format_s(seconds['total'])}: {format_s(seconds['engine_start'])} loading the model, "
            f"{format_s(seconds['generate'])} generating"
        ),
        "",
    )
    yield (
        "tokens",
        f"{tokens['prompt']:,} prompt ({tokens['cached']:,} from the prefix cache), {tokens['output']:,} output",
        "",
    )
    yield (
        "speed",
        (
            f"{rates['documents_per_s']:,.1f} documents/s, {rates['prompt_tokens_per_s']:,.0f} prompt and "
            f"{rates['output_tokens_per_s']:,.0f} output tokens/s"
        ),
        "",
    )
    for name, label in (("queue", "queue time"), ("first_token", "first token"), ("total", "total time")):
        yield label, _describe_percentiles(summary.get("latency_s", {}).get(name, {})), ""
    yield (
        "engine",
        (
            f"{engine['peak_active']} of {engine['max_concurrency']} sequences, "
            f"KV cache {100 * engine['kv_cache_usage_peak']:.0f} %, "
            f"{engine['preemptions']} preemptions, {engine['restarts']} restarts{_fullness(engine)}"
        ),
        "",
    )
    for number, line in enumerate(describe_settings(engine.get("settings", {}))):
        yield "" if number else "settings", line, ""
    yield from describe_replicas(engine.get("replicas", ()))
    yield "memory", f"at most {format_bytes(memory['runner'])} runner, {format_bytes(memory['engine'])} engine", ""


def describe_status(found: Mapping[str, Any]) -> Iterator[str]:
    """What `status --json` prints, for people, as lines."""
    if found["status"] == RunStatus.RUNNING:
        yield from describe_running(found)
        return
    for past in found["runs"]:
        yield from describe_run(past)


def describe_running(status: Mapping[str, Any]) -> list[str]:
    """A live run, from its status file."""
    lines = [f"{status.get('job', '?')}: running, pid {status.get('pid', '?')} on {status.get('host', '?')}"]
    documents = status.get("documents", {})
    if documents and "queued" not in documents:
        lines += [f"  ending; {documents['succeeded']:,} answered, {documents['failed']:,} failed"]
    elif documents:
        documents, engine = status["documents"], status["engine"]
        lines += [
            f"  {documents['succeeded']:,} answered, {documents['failed']:,} failed of {documents['to_do']:,}",
            f"  {documents['read']:,} rows read{'' if documents['is_read_to_end'] else ', more to come'}",
            f"  {documents['queued']:,} queued, {documents['in_flight']:,} in flight, {engine['active']} active"
            + (f" in {len(engine['replicas'])} engines" if "replicas" in engine else ""),
            f"  KV cache {100 * engine['kv_cache_usage']:.0f} %, {engine['restarts']} restarts{_fullness(engine)}",
            f"  {format_s(status['elapsed_s'])} so far; last commit {status.get('updated_at', '')}",
        ]
    return lines


def describe_run(past: Mapping[str, Any]) -> list[str]:
    """The last run of a job, from the database."""
    ended = past["status"] or "ended without a word (killed, or the machine stopped): run it again to resume"
    failed = ", ".join(f"{count:,} {code}" for code, count in past["failed_by_code"].items())
    error = (past["summary"] or {}).get("error")
    return [
        f"{past['name']}: {ended}" + (f", exit code {past['exit_code']}" if past["exit_code"] is not None else ""),
        f"  {past['num_rows']:,} input rows, {past['num_answered']:,} answered"
        + (f"; failed: {failed}" if failed else ""),
        f"  started {past['started_at']}, ended {past['ended_at'] or '?'}, run {past['run_id']}",
        *([f"  error: {error}"] if error else []),
    ]


def print_error(message: str) -> None:
    """One error, to stderr."""
    text = Text.assemble(("error: ", "bold red"), "\n".join(visible(line) for line in message.splitlines()))
    _open_console(sys.stderr).print(text, soft_wrap=True)


def print_lines(lines: Iterable[str], *, stream: TextIO | None = None) -> None:
    """Plain lines for people."""
    console = _open_console(stream or sys.stderr)
    for line in lines:
        console.print(Text(visible(line)), soft_wrap=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, stream: TextIO | None = None) -> None:
    """Rows as a table: ruled on a terminal, cut to its width; whole and tab-separated without one."""
    console = _open_console(stream or sys.stdout)
    if not console.is_terminal:
        for cells in (columns, *rows):
            console.file.write("\t".join(visible(str(cell)) for cell in cells) + "\n")
        return
    table = Table()
    for column in columns:
        table.add_column(Text(visible(column)))
    for cells in rows:
        table.add_row(*(Text(visible(str(cell)), overflow="ellipsis") for cell in cells))
    console.print(table)


def _open_console(stream: TextIO) -> Console:
    """A console on a stream; a terminal that says it has no width (`COLUMNS=0`) gets the usual one."""
    console = Console(file=stream, highlight=False)
    if console.width < 1:
        console.width = 80
    return console


def visible(text: str) -> str:
    """Control characters as their escapes, so that no input can drive the terminal. A newline becomes a space."""
    return "".join(
        " " if character in "\n\t" else character if character.isprintable() else ascii(character)[1:-1]
        for character in text
    )


def format_bytes(count: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1023.95:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def format_s(seconds: float) -> str:
    """Seconds as people say them: '15 ms', '4.2 s', '3 min 10 s', '2 h 05 min'."""
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


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


def _fullness(engine: Mapping[str, Any]) -> str:
    return "" if (share := engine.get("full_step_share")) is None else f", {100 * share:.0f} % of steps full"


def _describe_failures(progress: Progress) -> str:
    return ", ".join(f"{count:,} {code.value}" for code, count in sorted(progress.failed_by_code.items()))


def _describe_percentiles(percentiles: Mapping[str, float | None]) -> str:
    known = [(name, value) for name, value in percentiles.items() if value is not None]
    return ", ".join(f"{name} {format_s(value)}" for name, value in known) or "no answer in this run"
