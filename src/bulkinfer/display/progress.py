"""Where a run stands: as a view for a terminal, and in one line. Shows ids, counts and times; there is nothing else."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from bulkinfer.display.console import visible
from bulkinfer.display.figures import format_bytes, format_s
from bulkinfer.display.sparkline import Sparkline
from bulkinfer.events import ActiveDocument, EnginePhase, EngineProgress, Progress, RunPhase

SILENCE_TOLD_FROM_S = 10.0
"""A shorter time without a result is nothing to look at."""
MIN_ENGINE_LINES = 4
_OTHER_LINES = 20
"""As many lines as everything else may take."""
_BAR_WIDTH = 40
_ID_WIDTH = 60
_FULL_KV_CACHE = 0.95
"""From here on vLLM is about to preempt sequences."""

_PHASES = {
    RunPhase.READING: "reading the input",
    RunPhase.LOADING: "loading the model",
    RunPhase.RUNNING: "running",
    RunPhase.RESTARTING: "waiting to restart the engine",
    RunPhase.STOPPING: "stopping",
}
_ENGINE_PHASES = {
    EnginePhase.UNUSED: "not needed yet",
    EnginePhase.LOADING: "loading",
    EnginePhase.READY: "ready",
    EnginePhase.RESTARTING: "to restart",
    EnginePhase.GIVEN_UP: "given up",
}


def render_progress(progress: Progress, height: int = 24) -> RenderableType:
    """The live view: how far, the last minutes, what is full, what failed, what takes long.

    `height`: lines of the terminal; of many engines as many are shown as it has room for.
    """
    title = Text(_PHASES[progress.phase], style="bold")
    if told := describe_silence(progress.since_result_s):
        title.append(f"  {told}", style="yellow")
    parts = [
        Spinner("line", title) if progress.num_active == 0 else title,
        _render_bar(progress),
        _render_gauges(progress),
        _render_facts(progress, max(MIN_ENGINE_LINES, height - _OTHER_LINES)),
    ]
    return Group(*parts)


def describe_progress(progress: Progress) -> str:
    """The same in one line."""
    parts = [
        f"{_PHASES[progress.phase]}: {_describe_documents(progress)}",
        f"{progress.documents_per_s:,.1f} documents/s",
        f"tokens {_describe_token_rates(progress)}",
        f"{progress.num_failed:,} failed" + (f" ({_describe_failures(progress)})" if progress.num_failed else ""),
        *([_describe_ready(progress)] if progress.num_replicas > 1 else ()),
        f"{_describe_share(progress.num_in_flight, progress.window_capacity)} in flight",
        f"{progress.num_queued:,} queued",
        f"KV cache {100 * progress.kv_cache_usage:.0f} %",
    ]
    if told := describe_silence(progress.since_result_s):
        parts.append(told)
        parts += [f"slowest for {format_s(one.in_flight_s)}: {_describe_active(one)}" for one in progress.slowest[:1]]
    return ", ".join(parts)


def describe_facts(progress: Progress) -> list[str]:
    """What a block of plain lines tells besides the counts."""
    left = "" if progress.time_left_s is None else f", about {format_s(max(1.0, progress.time_left_s))} left"
    lines = [f"{progress.documents_per_s:,.1f} documents/s, tokens {_describe_token_rates(progress)}{left}"]
    if progress.num_failed:
        lines.append(f"failed: {_describe_failures(progress)}")
    if told := describe_silence(progress.since_result_s):
        lines.append(told)
    lines += [f"in flight for {format_s(one.in_flight_s)}: {_describe_active(one)}" for one in progress.slowest]
    return lines


def describe_silence(since_result_s: float | None) -> str:
    """That nothing came back for long, or nothing."""
    if since_result_s is None or since_result_s < SILENCE_TOLD_FROM_S:
        return ""
    return f"no result for {format_s(since_result_s)}"


def _render_bar(progress: Progress) -> RenderableType:
    text = _describe_documents(progress)
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(justify="right", min_width=len(text))
    num_done = progress.num_succeeded + progress.num_failed
    bar.add_row(ProgressBar(total=max(1.0, _expected(progress)), completed=num_done), text)
    return bar


def _render_gauges(progress: Progress) -> RenderableType:
    """What is measured over time, and what can be full: a figure and a picture of it."""
    trend = progress.trend
    tokens = [sum(counts) for counts in zip(trend.num_prompt_tokens, trend.num_output_tokens, strict=True)]
    queue = _describe_share(progress.num_queued, progress.queue_capacity)
    window = _describe_share(progress.num_in_flight, progress.window_capacity)
    cache = f"{100 * progress.kv_cache_usage:.0f} %"
    is_tight = progress.kv_cache_usage >= _FULL_KV_CACHE
    gauges = _grid()
    gauges.add_column(min_width=24, no_wrap=True)
    gauges.add_column()
    gauges.add_row("documents", f"{progress.documents_per_s:,.1f}/s", Sparkline(trend.num_documents, trend.stretch_s))
    gauges.add_row("tokens", _describe_token_rates(progress), Sparkline(tokens, trend.stretch_s, is_captioned=False))
    gauges.add_row("queue", queue, _gauge(progress.num_queued, progress.queue_capacity))
    gauges.add_row("window", f"{window} in flight", _gauge(progress.num_in_flight, progress.window_capacity))
    gauges.add_row("KV cache", cache, _gauge(progress.kv_cache_usage, 1.0, "red" if is_tight else "cyan"))
    return gauges


def _render_facts(progress: Progress, num_engine_lines: int) -> RenderableType:
    facts = _grid()
    facts.add_column()
    facts.add_row("work", _describe_tokens(progress))
    if progress.num_failed:
        facts.add_row("failed", Text(_describe_failures(progress), style="red"))
    if progress.slowest:
        facts.add_row("slowest", _render_slowest(progress.slowest))
    if len(progress.engines) > 1:
        facts.add_row("engines", _render_engines(progress, num_engine_lines))
    runner, engine = format_bytes(progress.runner_memory_bytes), format_bytes(progress.engine_memory_bytes)
    gpu = f", GPU {format_bytes(progress.gpu_memory_bytes)}" if progress.gpu_memory_bytes else ""
    facts.add_row("memory", f"runner {runner}, engine {engine}{gpu}")
    return facts


def _render_engines(progress: Progress, num_lines: int) -> RenderableType:
    """Those that need a look first, in order otherwise; the rest is a count."""
    wanted = sorted(progress.engines, key=lambda engine: not _needs_a_look(engine))[:num_lines]
    wanted.sort(key=lambda engine: engine.replica)
    rows = [(_describe_engine(engine), "yellow" if _needs_a_look(engine) else "") for engine in wanted]
    num_more = len(progress.engines) - len(wanted)
    more = [Text(f"and {num_more:,} more")] if num_more else ()
    return Group(Text(_describe_ready(progress)), _align(rows, "<<>><"), *more)


def _describe_engine(engine: EngineProgress) -> Sequence[str]:
    is_ready = engine.phase is EnginePhase.READY
    notes = [
        describe_silence(engine.since_result_s)
        or (f"KV cache {100 * engine.kv_cache_usage:.0f} %" if is_ready else ""),
        f"{engine.num_restarts} restarts" if engine.num_restarts else "",
    ]
    return (
        f"engine {engine.replica}",
        _ENGINE_PHASES[engine.phase],
        f"{engine.num_documents:,} done",
        f"{engine.num_in_flight:,} in flight" if is_ready else "",
        ", ".join(filter(None, notes)),
    )


def _needs_a_look(engine: EngineProgress) -> bool:
    is_well = engine.phase in {EnginePhase.READY, EnginePhase.UNUSED}
    return not is_well or bool(describe_silence(engine.since_result_s))


def _render_slowest(slowest: Sequence[ActiveDocument]) -> RenderableType:
    rows = [((format_s(one.in_flight_s), _describe_active(one)), "") for one in slowest]
    return _align(rows, "><")


def _describe_active(one: ActiveDocument) -> str:
    """Its id, as far as there is room for one."""
    name = visible(one.document_id)
    again = f", attempt {one.attempt}" if one.attempt > 1 else ""
    return f"{name if len(name) <= _ID_WIDTH else name[:_ID_WIDTH] + '...'}{again}, {one.num_chars:,} characters"


def _align(rows: Sequence[tuple[Sequence[str], str]], sides: str) -> RenderableType:
    """Cells and style of each row; where there is no room, only the last column is cut."""
    lines = Table.grid(padding=(0, 2))
    for number, side in enumerate(sides):
        width = max(len(cells[number]) for cells, _ in rows)
        is_last = number == len(sides) - 1
        lines.add_column(justify="right" if side == ">" else "left", no_wrap=True, min_width=0 if is_last else width)
    for cells, style in rows:
        lines.add_row(*(Text(cell, style=style, overflow="ellipsis") for cell in cells))
    return lines


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True, min_width=9)
    return grid


def _gauge(count: float, capacity: float, style: str = "cyan") -> RenderableType:
    return ProgressBar(
        total=max(1.0, capacity), completed=count, width=_BAR_WIDTH, complete_style=style, finished_style=style
    )


def _expected(progress: Progress) -> float:
    """Documents to do in all; while there is input unread, by the share of it that is read."""
    return progress.num_to_do / progress.share_read if progress.share_read > 0 else float(progress.num_to_do)


def _describe_documents(progress: Progress) -> str:
    num_done = progress.num_succeeded + progress.num_failed
    expected = _expected(progress)
    share = f" {100 * num_done / expected:.0f} %" if expected else ""
    time_left = "" if progress.time_left_s is None else f" about {format_s(max(1.0, progress.time_left_s))} left"
    return f"{num_done:,}/{'' if progress.is_read_to_end else '~'}{expected:,.0f}{share}{time_left}"


def _describe_token_rates(progress: Progress) -> str:
    writes_none = progress.num_succeeded > 0 and progress.output_tokens == progress.output_tokens_per_s == 0
    output = "" if writes_none else f" + {progress.output_tokens_per_s:,.0f} out"
    return f"{progress.prompt_tokens_per_s:,.0f} in{output} /s"


def _describe_tokens(progress: Progress) -> str:
    done = progress.prompt_tokens + progress.output_tokens
    left = "" if progress.tokens_left is None else f", about {progress.tokens_left:,.0f} left"
    return f"{done:,} tokens done{left}; {progress.num_active:,} sequences active"


def _describe_ready(progress: Progress) -> str:
    return f"{progress.num_replicas_ready} of {progress.num_replicas} engines ready"


def _describe_share(count: int, capacity: int) -> str:
    return f"{count:,} of {capacity:,}" if capacity else f"{count:,}"


def _describe_failures(progress: Progress) -> str:
    return ", ".join(f"{count:,} {code.value}" for code, count in sorted(progress.failed_by_code.items()))
