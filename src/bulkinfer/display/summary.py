"""What a run did, as a table."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bulkinfer.display.console import visible
from bulkinfer.display.figures import format_bytes, format_s
from bulkinfer.engines.telling import describe_replicas, describe_settings


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
    if selection := summary.get("selection"):
        changed = f"; changed: {', '.join(selection['changed'])}" if selection["changed"] else ""
        task = "a new task" if selection["is_new_task"] else "into the same task"
        yield "", f"only {selection['only']}{changed}; {task}", ""
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
            f"{format_s(seconds['generate'])} {'generating' if tokens['output'] else 'at work'}"
        ),
        "",
    )
    output = f", {tokens['output']:,} output" if tokens["output"] else ""
    yield "tokens", f"{tokens['prompt']:,} prompt ({tokens['cached']:,} from the prefix cache){output}", ""
    output = f" and {rates['output_tokens_per_s']:,.0f} output" if tokens["output"] else ""
    yield (
        "speed",
        f"{rates['documents_per_s']:,.1f} documents/s, {rates['prompt_tokens_per_s']:,.0f} prompt{output} tokens/s",
        "",
    )
    for name, label in (("queue", "queue time"), ("first_token", "first token"), ("total", "total time")):
        if tokens["output"] or name != "first_token":  # a vector or a score has none
            yield label, _describe_percentiles(summary.get("latency_s", {}).get(name, {})), ""
    yield (
        "engine",
        (
            f"{engine['peak_active']} of {engine['max_concurrency']} sequences, "
            f"KV cache {100 * engine['kv_cache_usage_peak']:.0f} %, "
            f"{engine['preemptions']} preemptions, {engine['restarts']} restarts{describe_fullness(engine)}"
        ),
        "",
    )
    for number, line in enumerate(describe_settings(engine.get("settings", {}))):
        yield "" if number else "settings", line, ""
    yield from describe_replicas(engine.get("replicas", ()))
    yield "memory", f"at most {format_bytes(memory['runner'])} runner, {format_bytes(memory['engine'])} engine", ""


def describe_fullness(engine: Mapping[str, Any]) -> str:
    share = engine.get("full_step_share")
    return f", {100 * share:.0f} % of steps full" if isinstance(share, int | float) else ""


def _describe_percentiles(percentiles: Mapping[str, float | None]) -> str:
    known = [(name, value) for name, value in percentiles.items() if value is not None]
    return ", ".join(f"{name} {format_s(value)}" for name, value in known) or "no answer in this run"
