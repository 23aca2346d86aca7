"""Percentiles and histograms of weighted numbers, and the share of text that neighbours have in common."""

import random
from itertools import pairwise, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkinfer.runner.spread import Bucket, Spread, shared_share


def spread_of(values: dict[int, float]) -> Spread:
    """A spread of values with weights."""
    spread = Spread()
    for value, weight in values.items():
        spread.add(value, weight)
    return spread


def test_percentiles_are_the_nearest_rank() -> None:
    spread = spread_of(dict.fromkeys(range(1, 101), 1.0))
    assert spread.percentiles((0.5, 0.95, 0.99, 1.0)) == [50, 95, 99, 100]
    assert (spread.weight, spread.total, spread.largest) == (100, 5050, 100)


def test_a_weight_counts_as_so_many_numbers() -> None:
    assert spread_of({10: 98.0, 500: 2.0}).percentiles((0.5, 0.98, 0.99)) == [10, 10, 500]


def test_nothing_has_no_percentiles_and_no_histogram() -> None:
    assert Spread().percentiles((0.5, 0.9)) == [0, 0]
    assert (Spread().histogram(), Spread().weight, Spread().total, Spread().largest) == ([], 0, 0, 0)


def test_buckets_are_round_and_what_is_beyond_the_99th_percentile_is_one() -> None:
    spread = spread_of({**dict.fromkeys(range(103, 200), 10.0), 5_000: 1.0})
    buckets = spread.histogram()
    assert buckets[0] == Bucket(100, 110, 70.0)
    assert buckets[-1] == Bucket(200, None, 1.0)
    assert [bucket.start for bucket in buckets] == [*range(100, 200, 10), 200]


@given(st.dictionaries(st.integers(0, 100_000), st.floats(0.01, 1000), min_size=1))
def test_a_histogram_holds_everything_once_in_few_buckets(values: dict[int, float]) -> None:
    buckets = spread_of(values).histogram()
    assert len(buckets) <= 13
    assert sum(bucket.weight for bucket in buckets) == pytest.approx(sum(values.values()))
    for bucket in buckets:
        expected = sum(
            weight
            for value, weight in values.items()
            if value >= bucket.start and (bucket.end is None or value < bucket.end)
        )
        assert bucket.weight == pytest.approx(expected)


def test_a_shared_beginning_counts_for_all_but_the_first() -> None:
    texts = ["system: be short. " + letter * 18 for letter in "abcd"]
    random.Random(1).shuffle(texts)
    assert shared_share(texts) == pytest.approx(3 * 18 / (4 * 36))
    assert shared_share(["one", "two"]) == pytest.approx(0)
    assert (shared_share([]), shared_share([""])) == (0.0, 0.0)


@given(st.lists(st.text(alphabet="ab", max_size=12), min_size=1))
def test_the_share_is_that_of_common_prefixes_of_neighbours(texts: list[str]) -> None:
    ordered = sorted(texts)
    num_shared = sum(
        len(list(takewhile(lambda both: both[0] == both[1], zip(*pair, strict=False)))) for pair in pairwise(ordered)
    )
    num_chars = sum(map(len, texts))
    assert shared_share(texts) == pytest.approx(num_shared / num_chars if num_chars else 0)
