"""How the results of one run are spread over durations and lengths: counted by DuckDB, in little memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from bulkinfer.store.reports import Reports

BINS_PER_DECADE = 20
"""Of a logarithmic histogram: each bin reaches to 1.12 times where it begins."""
MAX_LINEAR_BINS = 40
LINEAR_RANGE = 20
"""Bins are of one width where the longest value is at most so many times the median, else of one ratio."""
SHORTEST_S = 1e-4
"""Anything shorter counts as this: a logarithm has no zero."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """`counts[i]` results from `edges[i]` to below `edges[i + 1]`. Without results, both are empty."""

    edges: Sequence[float] = ()
    counts: Sequence[int] = ()
    is_log: bool = False


def read_durations(reader: Reports, run_id: UUID, column: str) -> Histogram:
    """Of one of the columns `queue_s`, `first_token_s`, `total_s`. Raises StoreError."""
    return _read(reader, run_id, column, least=SHORTEST_S, finest=SHORTEST_S)


def read_lengths(reader: Reports, run_id: UUID, column: str) -> Histogram:
    """Of `prompt_tokens` or `output_tokens`. Raises StoreError."""
    return _read(reader, run_id, column, least=1, finest=1)


def choose_width(most: float, finest: float) -> float:
    """Of at most MAX_LINEAR_BINS bins from 0 beyond `most`: 1, 2 or 5 times a power of ten, at least `finest`."""
    least = max(finest, most / (MAX_LINEAR_BINS - 1))
    power = 10.0 ** math.floor(math.log10(least) + 1e-9)
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def _read(reader: Reports, run_id: UUID, column: str, *, least: float, finest: float) -> Histogram:
    statement = f"""
        select max({column})::double, approx_quantile({column}, 0.5)::double from results where run_id = $run::uuid
    """
    ((most, median),) = list(reader.select(statement, {"run": str(run_id)}))
    if most is None:
        return Histogram()
    if most > LINEAR_RANGE * max(median, least) or most <= least:
        bins = f"floor(log10(greatest({column}::double, {least})) * {BINS_PER_DECADE} + 1e-6)::integer"
        return _make_log_histogram(_count(reader, run_id, bins, column))
    width = choose_width(most, finest)
    return _make_linear_histogram(_count(reader, run_id, f"floor({column} / {width} + 1e-6)::integer", column), width)


def _count(reader: Reports, run_id: UUID, bins: str, column: str) -> dict[int, int]:
    statement = f"""
        select {bins} as bin, count(*) from results where run_id = $run::uuid and {column} is not null
        group by bin order by bin
    """
    return {number: count for number, count in reader.select(statement, {"run": str(run_id)}) if number is not None}


def _make_log_histogram(counted: dict[int, int]) -> Histogram:
    numbers = range(min(counted), max(counted) + 2)
    edges = [10 ** (number / BINS_PER_DECADE) for number in numbers]
    return Histogram(edges, [counted.get(number, 0) for number in numbers[:-1]], is_log=True)


def _make_linear_histogram(counted: dict[int, int], width: float) -> Histogram:
    numbers = range(max(counted) + 2)
    edges = [float(f"{number * width:.9g}") for number in numbers]
    return Histogram(edges, [counted.get(number, 0) for number in numbers[:-1]])
