"""Single numbers of a run, and of two runs beside each other."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bulkinfer.charts import Unit, format_value
from bulkinfer.store import RunDetails

UNKNOWN, MINUS, TIMES = "\N{EN DASH}", "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True, slots=True)
class Measure:
    """One number; None where the run does not tell it."""

    label: str
    unit: Unit
    value: float | None
    is_exact: bool = False
    """A count, shown with all its digits."""
    is_latency: bool = False
    """A percentile of what documents took."""

    def describe(self) -> str:
        """The value with its unit."""
        return _show(self.value, self)


@dataclass(frozen=True, slots=True)
class Compared:
    """A line of the comparison, as text."""

    label: str
    now: str
    before: str
    difference: str
    """With its sign."""
    ratio: str
    """How many times the earlier value."""


def measure_run(details: RunDetails, elapsed_s: float | None = None) -> list[Measure]:
    """The numbers of a run; `elapsed_s`: how long it has lasted until now, if it lives."""
    return list(_iter_measures(details, duration_of(details) if elapsed_s is None else elapsed_s))


def duration_of(details: RunDetails) -> float | None:
    """Seconds from the start of a run to its end, or to the last that is known of it."""
    total_s = pick(details.run.summary, "seconds", "total")
    if total_s is not None:
        return total_s
    return details.moments[-1].elapsed_s if details.moments else None


def compare(now: list[Measure], before: list[Measure]) -> list[Compared]:
    """The same numbers of two runs, with difference and ratio."""
    return [_compare(one, other) for one, other in zip(now, before, strict=True)]


def pick(found: Any, *path: str) -> float | None:  # noqa: ANN401  # what JSON holds
    """A number somewhere in a summary, which may be of another version; None where it is not."""
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    return float(found) if is_number else None


def _iter_measures(details: RunDetails, elapsed_s: float | None) -> Iterator[Measure]:
    totals, summary = details.totals, details.run.summary
    last = details.moments[-1] if details.moments else None
    num_done = totals.num_succeeded + totals.num_failed
    prompt, cached, output = _tokens(details)
    latency = totals.latency
    yield Measure("documents answered", Unit.NUMBER, totals.num_succeeded, is_exact=True)
    yield Measure("documents failed", Unit.NUMBER, totals.num_failed, is_exact=True)
    yield Measure("share that failed", Unit.SHARE, totals.num_failed / num_done if num_done else None)
    yield Measure("duration", Unit.SECONDS, elapsed_s)
    yield Measure("loading the model", Unit.SECONDS, pick(summary, "seconds", "engine_start"))
    yield Measure("generating", Unit.SECONDS, pick(summary, "seconds", "generate"))
    yield Measure("documents/s over the whole run", Unit.NUMBER, _per_s(num_done, elapsed_s))
    yield Measure("documents/s while generating", Unit.NUMBER, pick(summary, "throughput", "documents_per_s"))
    yield Measure("prompt tokens/s while generating", Unit.NUMBER, pick(summary, "throughput", "prompt_tokens_per_s"))
    output_per_s = pick(summary, "throughput", "output_tokens_per_s")
    if totals.writes_answers:
        yield Measure("output tokens/s while generating", Unit.NUMBER, output_per_s)
    yield Measure("prompt tokens", Unit.NUMBER, prompt, is_exact=True)
    if totals.writes_answers:
        yield Measure("output tokens", Unit.NUMBER, output, is_exact=True)
    yield Measure("prompt tokens from the prefix cache", Unit.SHARE, cached / prompt if prompt else None)
    for name, found in (("queue", latency.queue), ("first token", latency.first_token), ("total", latency.total)):
        if name == "first token" and not totals.writes_answers:
            continue
        for share, value in (("p50", found.p50), ("p95", found.p95), ("p99", found.p99)):
            yield Measure(f"{name} time, {share}", Unit.SECONDS, value, is_latency=True)
    yield Measure("steps of the engine that were full", Unit.SHARE, pick(summary, "engine", "full_step_share"))
    usages = [moment.kv_cache_usage for moment in details.moments if moment.kv_cache_usage is not None]
    peak = pick(summary, "engine", "kv_cache_usage_peak")
    yield Measure("KV cache in use, at most", Unit.SHARE, max(usages, default=None) if peak is None else peak)
    for label, name in (("preemptions", "preemptions"), ("engine restarts", "restarts")):
        told = pick(summary, "engine", name)
        sampled = None if last is None else getattr(last, name)
        yield Measure(label, Unit.NUMBER, sampled if told is None else told, is_exact=True)
    for label, name in (("memory of the runner, at most", "runner"), ("memory of the engine, at most", "engine")):
        told = pick(summary, "peak_memory_bytes", name)
        seen = [found for moment in details.moments if (found := getattr(moment, f"{name}_memory_bytes")) is not None]
        yield Measure(label, Unit.BYTES, max(seen, default=None) if told is None else told)


def _tokens(details: RunDetails) -> tuple[float, float, float]:
    """Prompt, cached and output tokens: of all completions where that is known, else of the answers."""
    told = [pick(details.run.summary, "tokens", name) for name in ("prompt", "cached", "output")]
    if all(count is not None for count in told):
        return tuple(count or 0.0 for count in told)  # type: ignore[return-value]  # three of them
    if details.has_samples:
        last = details.moments[-1]
        return last.prompt_tokens, last.cached_tokens or 0, last.output_tokens
    return details.totals.prompt_tokens, details.totals.cached_tokens, details.totals.output_tokens


def _per_s(count: int, seconds: float | None) -> float | None:
    return count / seconds if seconds else None


def _compare(now: Measure, before: Measure) -> Compared:
    difference = ratio = UNKNOWN
    if now.value is not None and before.value is not None:
        change = now.value - before.value
        sign = "+" if change > 0 else MINUS if change < 0 else "±"
        difference = f"{sign}{_show(abs(change), now)}"
        if now.unit is Unit.SHARE:
            difference = f"{sign}{100 * abs(change):.3g} points"
        if before.value > 0:
            ratio = f"{TIMES}{now.value / before.value:.2f}"
    return Compared(now.label, now.describe(), before.describe(), difference, ratio)


def _show(value: float | None, measure: Measure) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if measure.is_exact else format_value(value, measure.unit)
