"""What prompt tokens and output tokens cost, told apart."""

import pytest

from bulkinfer.runner.pace import Pace


def run(*intervals: tuple[float, int, int]) -> Pace:
    """A pace that has seen these seconds, prompt tokens and output tokens, one after the other."""
    pace = Pace()
    now_s, prompt, output = 100.0, 0, 0
    pace.note(now_s, prompt, output)
    for seconds, num_prompt, num_output in intervals:
        now_s, prompt, output = now_s + seconds, prompt + num_prompt, output + num_output
        pace.note(now_s, prompt, output)
    return pace


def test_nothing_is_known_before_anything_was_computed() -> None:
    assert run().seconds_for(1, 1) is None
    assert run((10, 0, 0)).seconds_for(1, 1) is None


def test_prompts_first_and_answers_later_are_told_apart() -> None:
    """1,000 prompt tokens or 100 output tokens a second: 5,000 output tokens are 50 seconds, not 5."""
    pace = run((10, 9_000, 100), (10, 5_000, 500), (10, 1_000, 900))
    assert pace.seconds_for(0, 5_000) == pytest.approx(50.0)
    assert pace.seconds_for(3_000, 200) == pytest.approx(5.0)


def test_one_proportion_all_the_time_gives_one_speed() -> None:
    assert run((10, 900, 100)).seconds_for(100, 100) == pytest.approx(2.0)
    assert run((10, 900, 100), (20, 1_800, 200)).seconds_for(100, 100) == pytest.approx(2.0)


def test_a_fit_that_makes_no_sense_gives_one_speed() -> None:
    """More prompt tokens in less time: no cost above nothing explains that."""
    assert run((10, 1_000, 100), (5, 2_000, 100)).seconds_for(320, 0) == pytest.approx(1.5)


def test_waits_do_not_count_and_short_intervals_are_joined() -> None:
    assert run((60, 0, 0), (10, 900, 100)).seconds_for(50, 50) == pytest.approx(1.0)
    assert run(*[(0.5, 45, 5)] * 20).seconds_for(50, 50) == pytest.approx(1.0)


def test_counters_that_go_back_are_left_out() -> None:
    """An engine died, and what ran in it is lost."""
    assert run((10, 900, 100), (10, -500, 0), (10, 900, 100)).seconds_for(50, 50) == pytest.approx(1.0)
