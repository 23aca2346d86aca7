"""What `plan` found, for people: the lines of its table. Renders nothing itself and knows no library for it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bulkinfer.display import format_bytes, format_s

Line = tuple[str, str]
"""Label and text."""

_BAR_CHARS = 30
_SHOWN_SHARED_SHARE = 0.05


def describe_plan(found: Mapping[str, Any]) -> Iterator[str]:
    """What `plan --json` prints; lines of at most 80 columns, apart from paths, reasons and ids."""
    for label, text in _describe(found):
        yield f"{label:<11} {text}"


def _describe(found: Mapping[str, Any]) -> Iterator[Line]:
    documents = found["documents"]
    yield "job", found["job"]
    yield "input", "{read:,} rows, {distinct:,} different documents".format_map(documents)
    yield (
        "documents",
        "{to_do:,} to do, {answered:,} answered, {failed_before:,} failed before".format_map(documents),
    )
    yield from _describe_failures(found)
    if documents["to_ask"]:
        yield from _describe_tokens(found)
    yield from _describe_time(found["time"], documents["to_ask"])
    yield "database", found["database"]
    yield (
        "plan",
        f"{format_s(found['seconds']['total'])}, {format_bytes(found['peak_memory_bytes'])}; nothing was changed",
    )


def _describe_failures(found: Mapping[str, Any]) -> Iterator[Line]:
    unreadable = found["unreadable"]
    if unreadable["rows"]:
        yield "unreadable", f"{unreadable['rows']:,} rows, the first: {', '.join(unreadable['first'])}"
        for reason, num_rows in unreadable["by_reason"].items():
            yield "", f"{num_rows:,} {reason}"
        if unreadable["hint"]:
            yield "hint", unreadable["hint"]
    if found["overlong"]["cut"]:
        about = "" if found["overlong"]["is_exact"] else "about "
        yield "too long", "{}{cut:,}, cut by limits.overlong: {policy}".format(about, **found["overlong"])
        if found["overlong"]["parts"]:
            yield "", "about {parts:,} parts, and their answers joined".format(**found["overlong"])
    label = "will fail"
    for code, expected in found["expected_failures"].items():
        yield label, f"{'' if expected['is_exact'] else 'about '}{expected['documents']:,} {code}"
        label = ""
    if found["exceeds_max_failures"]:
        failed = found["failed_rows"]
        num_rows = f"{'' if failed['is_exact'] else 'about '}{failed['rows']:,}"
        yield "", f"{num_rows} rows without an answer: exit code 5 by max_failures"


def _describe_tokens(found: Mapping[str, Any]) -> Iterator[Line]:
    tokens, per_prompt = found["tokens"], found["tokens"]["per_prompt"]
    about = "" if tokens["is_exact"] else "about "
    at_most = f"at most {tokens['output_at_most']:,} output"
    if tokens["output_at_most"] == 0:  # the task writes no answers, or there is nothing to ask
        yield "tokens", f"{about}{tokens['prompt']:,} prompt"
    elif tokens["output_expected"] is None:
        yield "tokens", f"{about}{tokens['prompt']:,} prompt, {at_most}"
    else:
        yield "tokens", f"{about}{tokens['prompt']:,} prompt, about {tokens['output_expected']:,} output"
        yield "", at_most
    yield (
        "",
        "per prompt: mean {mean:,.0f}, p50 {p50:,}, p95 {p95:,}, p99 {p99:,}, max {max:,}".format_map(per_prompt),
    )
    yield from _describe_histogram(tokens["histogram"])
    if tokens["max_context_tokens_from"] == "model":
        yield "", f"context {tokens['max_context_tokens']:,}, the model's own: less where memory is short"
    elif tokens["max_context_tokens_from"] == "unknown":
        yield "", "context unknown: none counts as too long"
    if tokens["shared_prefix_share"] >= _SHOWN_SHARED_SHARE:
        yield "", f"about {100 * tokens['shared_prefix_share']:.0f} % of the prompt text are shared prefixes"
    yield "counted by", _describe_counting(found)


def _describe_histogram(histogram: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    most = max((bucket["documents"] for bucket in histogram), default=0)
    width = max((len(_name_bucket(bucket)) for bucket in histogram), default=0)
    for bucket in histogram:
        bar = "#" * -(-bucket["documents"] * _BAR_CHARS // max(1, most))
        yield "", f"{_name_bucket(bucket):>{width}} {bar:<{_BAR_CHARS}} {bucket['documents']:,}"


def _name_bucket(bucket: Mapping[str, Any]) -> str:
    if bucket["below"] is None:
        return f"{bucket['from']:,} or more"
    return (
        f"{bucket['from']:,}"
        if bucket["below"] - bucket["from"] == 1
        else f"{bucket['from']:,}-{bucket['below'] - 1:,}"
    )


def _describe_counting(found: Mapping[str, Any]) -> str:
    sample, counted_by = found["sample"], found["tokens"]["counted_by"]
    ways = {
        "tokenizer": "the model's tokenizer and template",
        "simulated": "the simulated engine",
        "characters": "characters, a rough guess",
    }
    of_what = "all of them" if sample["is_complete"] else f"a sample of {sample['documents']:,} documents"
    return f"{ways[counted_by]}, {of_what}"


def _describe_time(time: Mapping[str, Any], num_to_ask: int) -> Iterator[Line]:
    if num_to_ask == 0:
        yield "time", "nothing to ask the model"
    elif time["seconds"] is None:
        yield "time", f"unknown: {time['reason']}"
        yield "", f"`{time['advice']}` gives a base"
    else:
        start = f", and {format_s(time['engine_start'])} loading" if time["engine_start"] else ""
        yield "time", f"about {format_s(time['seconds'])}{_describe_range(time)}{start}"
        yield "", f"from {time['reason']}"
        if time["advice"]:
            yield "", f"rough; `{time['advice']}` gives a better base"


def _describe_range(time: Mapping[str, Any]) -> str:
    low, high = format_s(time["low"]), format_s(time["high"])
    return "" if low == high else f" ({low} to {high})"
