"""Retry policies."""

from itertools import count

import pytest

from bulkinfer.retry import restart_wait_s, retry_commit


class Unclear(Exception):
    pass


@pytest.mark.parametrize(("attempt", "wait_s"), [(1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (8, 60), (100_000, 60)])
def test_restarts_wait_longer_each_time_up_to_a_minute(attempt: int, wait_s: float) -> None:
    assert restart_wait_s(attempt) == wait_s


def test_a_commit_is_tried_three_times_and_then_its_own_error_is_raised() -> None:
    calls, waits = count(1), list[float]()

    def commit() -> None:
        raise Unclear(next(calls))

    with pytest.raises(Unclear, match="3"):
        retry_commit((0.5, 2.0), (Unclear,), sleep=waits.append)(commit)
    assert waits == pytest.approx([0.5, 2.0])


def test_a_commit_that_succeeds_at_the_second_try_returns_its_value() -> None:
    calls, waits = count(1), list[float]()

    def commit(rows: int) -> int:
        if next(calls) == 1:
            raise Unclear
        return rows

    assert retry_commit((0.5, 2.0), (Unclear,), sleep=waits.append)(commit, 5) == 5
    assert len(waits) == 1


def test_other_errors_are_not_retried() -> None:
    waits = list[float]()

    def commit() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        retry_commit((0.5, 2.0), (Unclear,), sleep=waits.append)(commit)
    assert waits == []
