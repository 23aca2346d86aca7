"""What `sweep` found, for people: a table of its points, and what follows from them. Renders nothing itself."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from bulkinfer.display import format_bytes, format_s
from bulkinfer.errors import JobError
from bulkinfer.sweep.page import iter_figures
from bulkinfer.sweep.plots import make_charts

_HEAD = ("", "seqs", "rate", "req/s", "tok/s", "queue", "first", "p50", "p95", "p99", "KV", "refused")
_WIDTHS = (1, 5, 5, 6, 5, 7, 7, 7, 7, 7, 5, 7)


def describe_sweep(found: Mapping[str, Any]) -> Iterator[str]:
    """What `sweep --json` prints; lines of at most 80 columns, apart from names, notes and reasons."""
    yield f"{found['job']}: {found['model']}"
    yield _describe_load(found)
    yield ""
    if found["points"]:
        yield _align(_HEAD)
        for place, point in enumerate(found["points"]):
            yield _align((_find_mark(found, place), *_describe_point(point)))
        yield "queue, first: p95 of queue time and first token; p50, p95, p99 of the whole time"
        yield "* then latency leaves the line; ! refusals begin; ~ more came than was served"
        yield from _describe_kinds(found)
        yield ""
    yield from _describe_engine(found)
    yield from _describe_cancels(found["points"])
    yield from (f"note: {note}" for note in found["notes"])
    yield from _describe_what_if(found.get("what_if"))
    yield from _describe_recommendation(found["recommendation"])


def describe_comparison(found: Mapping[str, Any], other: Mapping[str, Any], names: tuple[str, str]) -> Iterator[str]:
    """Two sweeps side by side, point by point; a change is from the second to the first."""
    yield ""
    yield f"compared: {names[0]} ({found['model']}) with {names[1]} ({other['model']})"
    names_of_key = _find_varied(found, other)
    others = {_key(point, names_of_key): point for point in other["points"]}
    ours = {_key(point, names_of_key): point for point in found["points"]}
    keys = sorted(ours | others, key=lambda key: tuple(value or 0 for value in key))
    above: tuple[Any, ...] = (None, None)
    yield f"{'at once':>7} {'rate':>5}   {'req/s':>7} {'other':>7} {'':>7}   {'p95':>7} {'other':>7} {'':>7}   refused"
    for key in keys:
        if key[:2] != above:
            yield _say_group(*key[:2])
            above = key[:2]
        yield _compare(key, ours.get(key), others.get(key))
    pairs = zip_longest(_describe_limits(found), _describe_limits(other), fillvalue="")
    yield ""
    yield f"{'limits: ' + names[0]:<39} {'limits: ' + names[1]}"
    yield from (f"{left:<39} {right}".rstrip() for left, right in pairs)


def check_comparable(found: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Refuse a saved sweep that lacks what is compared or drawn, before anything is measured. Raises JobError."""
    try:
        list(describe_comparison(found, found, ("", "")))
        list(iter_figures(found, found))
        make_charts(found, found)
        # Text would not sort among our numbers.
        keys = [point[name] or 0 for point in found["points"] for name in ("concurrency", "rate_per_s", "reserve")]
        sorted([*keys, 0])
    except (LookupError, TypeError, AttributeError, ValueError, AssertionError):
        raise JobError(f"{path}: the sweep in it is damaged or from another version; measure it again") from None
    return found


def _describe_load(found: Mapping[str, Any]) -> str:
    options = found["options"]
    mix = ", ".join(f"{100 * share:.0f} % {kind}" for kind, share in options["mix"].items())
    full = "refuses" if options["reject"] else "waits"
    cancel = f", {100 * options['cancel']:.0f} % cancelled" if options["cancel"] else ""
    return f"{mix}; {options['arrivals']}; a full queue of {options['queue_size']:,} {full}{cancel}"


def _describe_point(point: Mapping[str, Any]) -> Sequence[str]:
    latency, requests = point["latency_s"], point["requests"]
    total = latency["total"]
    return (
        f"{point['concurrency']:,}",
        _say_rate(point),
        f"{point['throughput']['requests_per_s']:.3g}",
        f"{point['throughput']['output_tokens_per_s']:.0f}",
        _say_s(latency["queue"]["p95"]),
        _say_s(latency["first_token"]["p95"]),
        _say_s(total["p50"]),
        _say_s(total["p95"]),
        _say_s(total["p99"]),
        f"{100 * point['engine']['kv_cache_usage_peak']:.0f} %",
        f"{requests['refused']:,}",
    )


def _describe_kinds(found: Mapping[str, Any]) -> Iterator[str]:
    """Short and long requests apart, where both were answered."""
    points = found["points"]
    kinds = sorted({kind for point in points for kind in point["latency_by_kind_s"]}, reverse=True)
    if len(kinds) < 2:
        return
    yield ""
    low = found["options"]["low"]
    names = [f"{kind}{' (low)' if kind in low else ''}" for kind in kinds]
    heads = " ".join(f"{name + ' p50':>18} {'p95':>7}" for name in names)
    yield f"   seqs  rate reserve {heads}"
    for point in points:
        shown = [point["latency_by_kind_s"].get(kind, {"total": {"p50": None, "p95": None}})["total"] for kind in kinds]
        cells = " ".join(f"{_say_s(total['p50']):>18} {_say_s(total['p95']):>7}" for total in shown)
        reserve = "-" if point["reserve"] is None else f"{100 * point['reserve']:g} %"
        yield f"{point['concurrency']:>7,} {_say_rate(point):>5} {reserve:>7} {cells}"


def _find_mark(found: Mapping[str, Any], place: int) -> str:
    if any(series["rejections_begin_at"] == place for series in found["series"]):
        return "!"
    if found["points"][place]["is_overloaded"]:
        return "~"
    has_left = (series["knee"] == place and series["leaves_line_at"] is not None for series in found["series"])
    return "*" if any(has_left) else ""


def _describe_engine(found: Mapping[str, Any]) -> Iterator[str]:
    points = found["points"]
    if not points:
        yield "no point was measured"
        return
    memory_bytes = max(point["engine"]["memory_bytes"] for point in points)
    memory = f", at most {format_bytes(memory_bytes)} of memory" if memory_bytes else ""
    starts = ", ".join(format_s(engine["start_s"]) for engine in found["engines"])
    preemptions = sum(point["engine"]["preemptions"] for point in points)
    yield f"engine: started in {starts}{memory}, {preemptions:,} preemptions"


def _describe_cancels(points: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    running = sum(point["requests"]["cancelled_running"] for point in points)
    waiting = sum(point["requests"]["cancelled_waiting"] for point in points)
    if not running and not waiting:
        return
    rests = [point["engine"]["at_rest"] for point in points if point["engine"]["at_rest"]]
    is_free = all(rest["num_active"] == 0 and rest["num_free_kv_blocks"] == rest["num_kv_blocks"] for rest in rests)
    yield f"cancelled: {running:,} running, {waiting:,} waiting" + (
        "; at the end no sequence was left, all KV blocks were free" if rests and is_free else ""
    )
    cancellations = [one for point in points for one in point["cancellations"]]
    if cancellations:
        shown = max(cancellations, key=lambda one: one["before"]["num_active"])
        before, after = shown["before"], shown["after"]
        yield (
            f"  one of them: {before['num_active']} sequences -> {after['num_active']},"
            f" {before['num_free_kv_blocks']:,} free KV blocks -> {after['num_free_kv_blocks']:,}"
        )


def _describe_what_if(found: Mapping[str, Any] | None) -> Iterator[str]:
    if found is None:
        return
    yield ""
    yield "what if: simulated, with costs fitted to the points above"
    yield f"{_align(_HEAD[:-2])}  off: req/s, p95"
    for point in found["points"]:
        yield f"{_align(('', *_describe_point(point)[:-2]))}  {_say_error(point['error'])}"
    unseen = found["unseen"]
    if unseen is not None:
        yield f"{unseen['concurrency']:,} from the smaller ones alone: off by {_say_error(unseen['error'])}"


def _describe_recommendation(found: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    if found["limits"] is None:
        yield f"no recommendation: {found['reason']}"
        return
    yield from found["reasons"]
    yield ""
    yield from found["yaml"].splitlines()


def _compare(key: tuple[Any, ...], one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> str:
    rates = [None if point is None else point["throughput"]["requests_per_s"] for point in (one, other)]
    p95s = [None if point is None else point["p95_s"] for point in (one, other)]
    refused = ["-" if point is None else f"{point['requests']['refused']:,}" for point in (one, other)]
    shown = [f"{'-' if rate is None else f'{rate:.3g}':>7}" for rate in rates]
    seconds = [f"{_say_s(p95):>7}" for p95 in p95s]
    concurrency, rate_per_s = key[2:]
    rate = "-" if rate_per_s is None else f"{rate_per_s:g}"
    return (
        f"{concurrency:>7} {rate:>5}   {' '.join(shown)} {_change(*rates):>7}   {' '.join(seconds)} {_change(*p95s):>7}"
        f"   {refused[0]} / {refused[1]}"
    )


def _describe_limits(found: Mapping[str, Any]) -> list[str]:
    recommendation = found["recommendation"]
    if recommendation["limits"] is None:
        return ["none"]
    return [line.partition("  #")[0] for line in recommendation["yaml"].splitlines()]


def _find_varied(*sweeps: Mapping[str, Any]) -> set[str]:
    """What points of one sweep differ in, beside their load; what all of a sweep have alike may be what is compared."""
    names = ("max_num_batched_tokens", "reserve")
    return {name for name in names for found in sweeps if len({point[name] for point in found["points"]}) > 1}


def _key(point: Mapping[str, Any], varied: set[str]) -> tuple[int | None, float | None, int, float | None]:
    tokens, reserve = (point[name] if name in varied else None for name in ("max_num_batched_tokens", "reserve"))
    return tokens, reserve, point["concurrency"], point["rate_per_s"]


def _say_group(tokens: int | None, reserve: float | None) -> str:
    parts = [] if tokens is None else [f"{tokens:,} tokens a step"]
    if reserve is not None:
        parts.append(f"reserve {100 * reserve:g} %")
    return ", ".join(parts) or "the others"


def _change(one: float | None, other: float | None) -> str:
    return "" if one is None or not other else _say_change(one / other - 1)


def _say_error(error: Mapping[str, Any] | None) -> str:
    if error is None:
        return "not measured"
    return f"{_say_change(error['requests_per_s'])}, {_say_change(error['p95'])}"


def _say_change(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:+.0f} %"


def _say_rate(point: Mapping[str, Any]) -> str:
    return "-" if point["rate_per_s"] is None else f"{point['rate_per_s']:g}"


def _say_s(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{1000 * seconds:.0f} ms" if seconds < 0.0995 else f"{seconds:.3g} s"


def _align(cells: Sequence[str]) -> str:
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=False))
