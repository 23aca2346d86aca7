"""Widths of bins: few, round, and wide enough for the longest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkinfer.store.histograms import MAX_LINEAR_BINS, choose_width


@pytest.mark.parametrize(
    ("most", "finest", "width"),
    [(10, 1, 1), (39, 1, 1), (40, 1, 2), (800, 1, 50), (2_048, 1, 100), (8.0, 1e-4, 0.5), (0.5, 1e-4, 0.02)],
)
def test_a_width_is_round(most: float, finest: float, width: float) -> None:
    assert choose_width(most, finest) == pytest.approx(width)


@given(st.floats(1e-3, 1e9), st.sampled_from([1.0, 1e-4]))
def test_all_values_lie_in_few_bins(most: float, finest: float) -> None:
    width = choose_width(most, finest)
    assert width >= finest * 0.999
    assert most < (MAX_LINEAR_BINS + 1) * width
