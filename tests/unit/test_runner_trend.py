"""The last minutes of a run: bounded, with stalls where they were, and nothing counted twice or lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkinfer.events import NO_TREND
from bulkinfer.runner.trend import MAX_STRETCH_S, NUM_STRETCHES, Counts, TrendKeeper


def note_each(keeper: TrendKeeper, seconds: float, per_s: int, *, since_s: float = 0.0, before: int = 0) -> int:
    """Four readings a second; documents until then."""
    total = before
    for tick in range(1, int(seconds * 4) + 1):
        total = before + per_s * tick // 4
        keeper.note(since_s + tick / 4, Counts(total, 10 * total, 2 * total))
    return total


def test_there_is_none_before_the_first_stretch_is_over() -> None:
    keeper = TrendKeeper()
    assert keeper.read() == NO_TREND
    keeper.note(100.0, Counts(0, 0, 0))
    keeper.note(100.75, Counts(5, 50, 10))
    assert keeper.read() == NO_TREND
    keeper.note(101.0, Counts(5, 50, 10))
    assert keeper.read().num_documents == (5,)


def test_each_stretch_has_what_was_done_in_it() -> None:
    keeper = TrendKeeper()
    keeper.note(0.0, Counts(100, 1_000, 200))
    note_each(keeper, 5, 8, before=100)
    trend = keeper.read()
    assert trend.stretch_s == 1.0
    assert trend.num_documents[1:] == (8, 8, 8, 8)
    assert trend.num_prompt_tokens[1:] == (80, 80, 80, 80)
    assert trend.num_output_tokens[1:] == (16, 16, 16, 16)


def test_a_stall_is_a_gap_whether_it_was_looked_at_or_not() -> None:
    keeper = TrendKeeper()
    for second, total in ((0, 0), (1, 4), (2, 8), (3, 8), (4, 8), (8, 8), (9, 12), (10, 16)):
        keeper.note(float(second), Counts(total, 0, 0))
    assert keeper.read().num_documents == (0, 4, 4, 0, 0, 0, 0, 0, 0, 4)


def test_what_was_lost_with_an_engine_is_not_taken_off() -> None:
    keeper = TrendKeeper()
    for second, tokens in enumerate((0, 100, 40, 90, 90)):
        keeper.note(float(second), Counts(second, tokens, tokens))
    assert keeper.read().num_output_tokens == (0, 100, 0, 50)


@pytest.mark.parametrize(("minutes", "expected_s"), [(0.5, 1.0), (1.5, 2.0), (3.5, 4.0), (7.0, 8.0), (60.0, 8.0)])
def test_a_long_run_has_longer_stretches_and_never_more_of_them(minutes: float, expected_s: float) -> None:
    keeper = TrendKeeper()
    keeper.note(0.0, Counts(0, 0, 0))
    note_each(keeper, minutes * 60, 4)
    trend = keeper.read()
    assert trend.stretch_s == expected_s
    assert len(trend.num_documents) <= NUM_STRETCHES
    assert set(trend.num_documents[1:]) == {4 * expected_s}
    shown_s = len(trend.num_documents) * trend.stretch_s
    assert shown_s >= min(minutes * 60 - expected_s, MAX_STRETCH_S * (NUM_STRETCHES - 1))


@given(st.lists(st.tuples(st.floats(0.0, 40.0), st.integers(0, 1_000)), max_size=200))
def test_nothing_is_counted_twice_and_while_all_is_kept_nothing_is_lost(steps: list[tuple[float, int]]) -> None:
    keeper = TrendKeeper()
    now_s, total = 0.0, 0
    keeper.note(now_s, Counts(0, 0, 0))
    for pause_s, count in steps:
        now_s, total = now_s + pause_s, total + count
        keeper.note(now_s, Counts(total, total, total))
    keeper.note(now_s + MAX_STRETCH_S, Counts(total, total, total))
    trend = keeper.read()
    assert sum(trend.num_documents) <= total
    if now_s < MAX_STRETCH_S * (NUM_STRETCHES - 2):
        assert sum(trend.num_documents) == total
