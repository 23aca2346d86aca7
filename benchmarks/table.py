"""Figures as Markdown, put between two markers of a page that is otherwise written by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.figures import Row, Spread

HEADER = (
    "| queue | who | wall time, s | times bulkinfer's | generating, s | output tokens/s | bulkinfer's tokens/s "
    "times its | prompt from cache | steps full | peak memory, GiB | runs |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)

WITH_EQUAL = frozenset({"reference", "equal"})
"""Queues with equal documents, which bulkinfer does not compute again: output tokens/s are not comparable."""


def write_between(path: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- name: begin -->` and its end. Raises ValueError if a marker is missing."""
    page = path.read_text(encoding="utf-8")
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ValueError(f"{path}: expected one {begin} and one {end} after it")
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}", encoding="utf-8")


def render_rows(rows: Sequence[Row], titles: Mapping[str, str]) -> str:
    """The table of all peers on all queues. `titles` by peer."""
    return "\n".join([HEADER, *(_render_row(row, titles.get(row.peer, row.peer)) for row in rows)])


def render_goals(rows: Sequence[Row]) -> str:
    """What was aimed at, and what was reached; goals whose queue or peer was not run are left out."""
    found = {(row.queue, row.peer): row for row in rows}
    goals = []
    if batch := found.get(("reference", "run-batch")):
        goals.append(("reference: wall time of run-batch, times bulkinfer's", "4.5", batch.times_slower))
    if tuned := found.get(("reference", "llm-chat")):
        goals.append(("reference: wall time of the tuned script, times bulkinfer's", "above 1", tuned.times_slower))
    for row in rows:
        if row.peer == "llm-chat" and row.queue not in WITH_EQUAL:
            name = f"{row.queue}: bulkinfer's output tokens/s while generating, times the tuned script's"
            goals.append((name, "1.00", row.tokens_ratio))
    lines = [f"| {name} | {goal} | {format_spread(spread, 2)} |" for name, goal, spread in goals]
    return "\n".join(["| measure | goal | reached |", "|---|---|---|", *lines]) if lines else ""


def render_noise(noise: Mapping[str, Spread]) -> str:
    """One line for each queue on which a command was run against itself."""
    lines = [
        f"A command against itself on `{queue}`: {format_spread(spread, 3)} times its own wall time."
        for queue, spread in noise.items()
    ]
    return "\n".join(lines)


def render_gaps(gaps: Mapping[tuple[str, str], int], titles: Mapping[str, str], num_suites: int) -> str:
    """What a reader must know of rows that no one whole suite made."""
    lines = []
    if gaps:
        named = (f"{queue}, {titles.get(peer, peer)}: {num_runs}" for (queue, peer), num_runs in gaps.items())
        lines.append(f"Runs that are missing: {'; '.join(named)}.")
    if num_suites > 1:
        lines.append(f"These rows were made on {num_suites} occasions; ratios are taken within one.")
    return "\n".join(lines)


def render_differences(differences: Mapping[str, float]) -> str:
    """How many answers differ, by queue."""
    if not differences:
        return ""
    head = "Answers of bulkinfer that differ from those of `LLM.chat` (greedy, but other sequences beside them): "
    return head + ", ".join(f"{queue} {share:.1%}" for queue, share in differences.items()) + "."


def format_spread(spread: Spread | None, digits: int) -> str:
    """`median (low-high)`; only the median where all are one; a dash for nothing."""
    if spread is None:
        return "-"
    middle, low, high = (f"{number:.{digits}f}" for number in (spread.median, spread.low, spread.high))
    return middle if low == high else f"{middle} ({low}-{high})"


def _render_row(row: Row, title: str) -> str:
    gib = 1 << 30
    memory = Spread(*(number / gib for number in (row.peak_memory_bytes.median, *_ends(row.peak_memory_bytes))))
    cells = (
        row.queue,
        title,
        format_spread(row.wall_s, 1),
        format_spread(row.times_slower, 2),
        format_spread(row.generate_s, 1),
        format_spread(row.output_tokens_per_s, 0),
        format_spread(row.tokens_ratio, 2),
        "-" if row.cached_share is None else f"{row.cached_share:.0%}",
        format_spread(row.full_steps, 2),
        format_spread(memory, 1),
        str(row.num_runs) if row.num_runs >= row.num_planned else f"{row.num_runs} of {row.num_planned}",
    )
    return f"| {' | '.join(cells)} |"


def _ends(spread: Spread) -> tuple[float, float]:
    return spread.low, spread.high
