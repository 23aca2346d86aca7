"""Silences: how long nothing came while documents were asked."""

from unittest.mock import patch

import pytest

from bulkinfer.runner.silence import Listening, Silence


def listen(*steps: tuple[float, str]) -> Silence:
    """Note what happened at these seconds of a run that began at 1,000; return the longest silence."""
    with patch("bulkinfer.runner.silence.time.monotonic") as now:
        listening = Listening(1_000.0)
        for at_s, what in steps:
            now.return_value = 1_000 + at_s
            match what:
                case "asked":
                    listening.note_asked()
                case "outcome":
                    listening.note_outcome()
                case _:
                    listening.note_tick(is_idle=what == "idle")
        return listening.take_longest()


def test_a_silence_lasts_from_the_first_question_or_the_last_outcome() -> None:
    assert listen((2, "asked"), (5, "outcome")) == Silence(5, 3)
    assert listen((2, "asked"), (3, "asked"), (5, "outcome")) == Silence(5, 3), "asking more does not end it"
    assert listen(
        (2, "asked"), (5, "outcome"), (5.2, "tick"), (5.5, "outcome"), (5.7, "tick"), (9.5, "outcome")
    ) == Silence(9.5, 4)


def test_one_outcome_between_two_ticks_is_enough() -> None:
    found = listen((2, "asked"), (3, "tick"), (3.1, "outcome"), (3.2, "outcome"), (3.25, "tick"), (13.2, "outcome"))
    assert found.length_s == pytest.approx(10.1), "from the first of them"
    assert found.ended_s == pytest.approx(13.2)


def test_the_last_outcome_of_a_run_ends_a_silence_too() -> None:
    assert listen((0, "asked"), (59, "tick"), (60, "outcome")) == Silence(60, 60)


def test_while_nothing_is_asked_nobody_waits() -> None:
    assert listen((2, "asked"), (3, "outcome"), (3.1, "idle"), (60, "asked"), (61.5, "outcome")) == Silence(61.5, 1.5)
    assert listen((2, "idle"), (60, "outcome")) == Silence(0, 0)


def test_a_short_one_is_none_and_each_is_taken_once() -> None:
    assert listen((2, "asked"), (2.9, "outcome")) == Silence(0, 0)
    with patch("bulkinfer.runner.silence.time.monotonic", side_effect=[10.0, 15.0]):
        listening = Listening(0.0)
        listening.note_asked()
        listening.note_outcome()
    assert listening.take_longest() == Silence(15, 5)
    assert listening.take_longest() == Silence(0, 0)


def test_the_silence_in_which_a_run_ends_is_taken_once_and_only_if_something_was_asked() -> None:
    def end(*, is_idle: bool) -> tuple[Silence, float | None]:
        with patch("bulkinfer.runner.silence.time.monotonic") as now:
            now.return_value = 1_002
            listening = Listening(1_000.0)
            listening.note_asked()
            now.return_value = 1_060
            assert listening.open_s() == 58
            listening.note_end(is_idle=is_idle)
            listening.note_end(is_idle=is_idle)
            return listening.take_longest(), listening.open_s()

    assert end(is_idle=False) == (Silence(60, 58), None)
    assert end(is_idle=True) == (Silence(0, 0), None), "the last outcomes are on their way to the disk"
