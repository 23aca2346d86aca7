"""The scheduler of the simulated engine: long prompts in parts, a KV cache that is too small, what a step costs."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkinfer.engines.simulated_cost import StepCost
from bulkinfer.engines.simulated_schedule import Schedule, Sequence

STEPS = StepCost(0.0, 1.0)
"""A second each."""


def schedule_of(
    *, slots: int = 4, kv: int = 1_000, step: int | None = None, cost: StepCost = STEPS, by_priority: bool = False
) -> Schedule:
    return Schedule(slots, kv, step, cost, by_priority)


def sequence(number: int, prompt: int, output: int, priority: int = 0) -> Sequence:
    return Sequence(bytes([number]), prompt, output, priority=priority)


def run(schedule: Schedule, sequences: Iterable[Sequence] = (), most_s: float = 1e9) -> list[tuple[int, int]]:
    """Run to the end; the first byte of each that finished, and the step in which it did."""
    for one in sequences:
        schedule.add(one)
    finished = []
    while schedule.num_active + schedule.num_waiting:
        stretch = schedule.begin()
        schedule.run(stretch, most_s)
        assert 0 <= schedule.num_kv_tokens_held <= schedule.num_kv_tokens
        finished += [(one.document_hash[0], schedule.num_steps) for one in stretch.finished]
    assert schedule.num_kv_tokens_held == 0
    return finished


def test_a_prompt_that_a_step_has_no_tokens_for_is_computed_in_parts() -> None:
    schedule = schedule_of(step=10)
    # 25 tokens take 3 steps, the second prompt the rest of the third and a token of the fourth.
    assert run(schedule, [sequence(1, 25, 1), sequence(2, 6, 2)]) == [(1, 3), (2, 5)]
    assert (schedule.num_computed_prompt_tokens, schedule.num_prompt_tokens, schedule.num_output_tokens) == (31, 31, 3)


def test_those_that_run_come_before_the_prompt_of_another() -> None:
    schedule = schedule_of(slots=2, step=4)
    schedule.add(sequence(1, 2, 9))
    schedule.run(schedule.begin(), 0)
    # One token of each step is of the first: the prompt of 9 takes three more.
    assert run(schedule, [sequence(2, 9, 1)]) == [(2, 4), (1, 9)]


def test_one_that_does_not_fit_into_the_cache_waits_and_holds_up_those_behind_it() -> None:
    schedule = schedule_of(kv=20)
    assert run(schedule, [sequence(1, 9, 2), sequence(2, 15, 1), sequence(3, 1, 1)]) == [(1, 2), (2, 3), (3, 3)]
    assert schedule.num_preemptions == 0


def test_a_full_cache_puts_the_last_back_and_it_is_computed_again() -> None:
    schedule = schedule_of(kv=20)
    # Two of 8 have 4 tokens of room: after two steps the second has to go, with two tokens of its answer.
    assert run(schedule, [sequence(1, 8, 5), sequence(2, 8, 5)]) == [(1, 5), (2, 8)]
    assert (schedule.num_preemptions, schedule.num_output_tokens, schedule.num_prompt_tokens) == (1, 10, 16)
    assert schedule.num_computed_prompt_tokens == 8 + 8 + 10


@pytest.mark.parametrize(("by_priority", "order"), [(False, [1, 2]), (True, [2, 1])])
def test_the_least_urgent_is_put_back_where_priorities_count(by_priority: bool, order: list[int]) -> None:
    schedule = schedule_of(kv=20, by_priority=by_priority)
    sequences = [sequence(1, 8, 5, 10 * by_priority), sequence(2, 8, 5)]
    assert [number for number, _ in run(schedule, sequences)] == order
    assert schedule.num_preemptions == 1


def test_one_alone_has_the_whole_cache() -> None:
    schedule = schedule_of(kv=20)
    assert run(schedule, [sequence(1, 10, 10)]) == [(1, 10)]
    assert schedule.num_preemptions == 0


def test_a_step_costs_what_is_computed_and_looked_back_at_in_it() -> None:
    cost = StepCost(0.5, 1.0, 10.0, 100.0)
    schedule = schedule_of(cost=cost)
    run(schedule, [sequence(1, 4, 3), sequence(2, 2, 1)])
    # Steps: 6 prompt tokens and two sequences; then one that looks back at 5 tokens, then at 6.
    assert schedule.busy_s == pytest.approx(3 * 1.0 + 6 * 0.5 + 4 * 10.0 + (5 + 6) * 100.0)
    assert (schedule.num_steps, schedule.num_context_tokens, schedule.num_output_tokens) == (3, 11, 4)


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20), st.integers(0, 2)), min_size=1, max_size=12),
    st.integers(1, 5),
    st.integers(50, 120),
    st.integers(5, 40) | st.none(),
    st.booleans(),
)
def test_long_strides_end_where_single_steps_do(
    shapes: list[tuple[int, int, int]], slots: int, kv: int, step: int | None, by_priority: bool
) -> None:
    def run_by(most_s: float) -> tuple[list[tuple[int, int]], list[float]]:
        cost = StepCost(0.5, 1.0, 0.25, 0.125)
        schedule = schedule_of(slots=slots, kv=kv, step=step, cost=cost, by_priority=by_priority)
        sequences = [sequence(number, *shape) for number, shape in enumerate(shapes)]
        finished = run(schedule, sequences, most_s)
        counts = [schedule.num_context_tokens, schedule.num_computed_prompt_tokens, schedule.num_preemptions]
        assert schedule.num_output_tokens == sum(output for _, output, _ in shapes)
        assert schedule.num_prompt_tokens == sum(prompt for prompt, _, _ in shapes)
        return finished, [schedule.busy_s, schedule.num_full_steps, *counts]

    finished, sums = run_by(1e9)
    one_by_one, sums_by_one = run_by(0.0)
    assert finished == one_by_one
    assert sums == pytest.approx(sums_by_one)
    assert sorted(number for number, _ in finished) == list(range(len(shapes)))


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=1, max_size=12), st.sets(st.integers(0, 11))
)
def test_what_is_dropped_leaves_nothing_behind(shapes: list[tuple[int, int]], dropped: set[int]) -> None:
    schedule = schedule_of(slots=3, kv=60, step=12)
    for number, shape in enumerate(shapes):
        schedule.add(sequence(number, *shape))
    schedule.run(schedule.begin(), 0)
    schedule.run(schedule.begin(), 0)
    num_before = schedule.num_active + schedule.num_waiting
    found = schedule.abort({bytes([number]) for number in dropped})
    assert schedule.num_active + schedule.num_waiting == num_before - len(found)
    assert schedule.num_aborted == len(found)
    assert {number for number, _ in run(schedule)}.isdisjoint(one[0] for one in found)
