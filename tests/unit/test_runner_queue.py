"""The queue of several engines: the order of the shards, and each group with one of them."""

from collections import Counter, deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkinfer.records import Message, Origin, Request
from bulkinfer.runner.queue import RequestQueue


def request(name: str, group: int | None = None) -> Request:
    """A request that is known by its name."""
    return Request(name.encode(), Origin("a.jsonl", 1, name), (Message("user", "x"),), 10, prefix_group=group)


def queue_of(num_replicas: int, *groups: int | None) -> RequestQueue:
    """Requests 0, 1, ... of these groups."""
    queue = RequestQueue(num_replicas)
    for number, group in enumerate(groups):
        queue.append(request(str(number), group))
    return queue


def take(queue: RequestQueue, replica: int, count: int) -> list[int]:
    """The numbers of what an engine gets; what it is shown is what it gets."""
    supply = queue.supply_of(replica)
    numbers = []
    for _ in range(count):
        shown = supply[0]
        taken = supply.popleft()
        assert shown is taken
        numbers.append(int(taken.document_hash))
    return numbers


@given(st.lists(st.none() | st.integers(0, 3)))
def test_one_engine_takes_all_in_order(groups: list[int | None]) -> None:
    queue = queue_of(1, *groups)
    assert take(queue, 0, len(groups)) == list(range(len(groups)))
    assert len(queue) == 0


def test_requests_without_a_group_go_to_whoever_asks_in_order() -> None:
    queue = queue_of(2, None, None, None, None)
    assert [take(queue, replica, 1) for replica in (0, 1, 1, 0)] == [[0], [1], [2], [3]]


def test_a_group_goes_to_the_engine_that_began_it_and_others_take_the_next() -> None:
    queue = queue_of(2, 7, 7, 7, 8, 8, None)
    assert take(queue, 0, 1) == [0]
    assert take(queue, 1, 1) == [3]
    assert take(queue, 0, 2) == [1, 2]
    assert take(queue, 1, 2) == [4, 5]


def test_a_group_that_comes_later_goes_to_its_owner() -> None:
    queue = queue_of(2, 7)
    assert take(queue, 0, 1) == [0]
    for number, group in ((1, 7), (2, 7), (3, None)):
        queue.append(request(str(number), group))
    assert take(queue, 1, 1) == [3]
    assert take(queue, 0, 2) == [1, 2]


def test_the_same_number_in_a_later_shard_is_another_group() -> None:
    queue = queue_of(2, 7, 7, 8, 7, 7)
    assert take(queue, 0, 1) == [0]
    assert take(queue, 1, 1) == [2]
    assert take(queue, 1, 2) == [3, 4]
    assert take(queue, 0, 1) == [1]


def test_an_engine_without_work_takes_over_half_of_the_largest_group() -> None:
    queue = queue_of(3, 1, 1, *[2] * 9)
    assert take(queue, 0, 1) == [0]
    assert take(queue, 1, 1) == [2]
    assert take(queue, 2, 4) == [7, 8, 9, 10]
    assert take(queue, 1, 4) == [3, 4, 5, 6]
    assert take(queue, 2, 1) == [1], "a last one is taken over too"
    assert len(queue) == 0


def test_what_a_lost_engine_had_begun_goes_to_others_first() -> None:
    queue = queue_of(3, 2, 2, 1, 1)
    assert take(queue, 0, 3) == [0, 1, 2]
    queue.release(0)
    assert take(queue, 1, 1) == [3]
    for number in (4, 5):
        queue.append(request(str(number), 1))
    queue.append(request("6"))
    assert take(queue, 2, 1) == [6], "the group has a new owner"
    assert take(queue, 1, 2) == [4, 5]


def test_a_group_whose_owner_is_lost_while_none_of_it_is_here_goes_to_anyone() -> None:
    queue = queue_of(3, 1)
    assert take(queue, 0, 1) == [0]
    queue.release(0)
    queue.append(request("1", 1))
    assert take(queue, 2, 1) == [1]


def test_an_empty_queue_has_nothing_for_anyone() -> None:
    queue = queue_of(2)
    supply = queue.supply_of(1)
    assert not supply
    with pytest.raises(IndexError):
        supply.popleft()


@given(
    st.lists(st.none() | st.integers(0, 5), max_size=60),
    st.lists(st.integers(0, 4), max_size=200),
    st.sets(st.integers(0, 4), max_size=4),
)
def test_each_request_is_taken_once_whoever_comes_when(
    groups: list[int | None], turns: list[int], lost: set[int]
) -> None:
    """Requests are added now and then, engines take in any order, some are lost, and one takes the rest."""
    queue = RequestQueue(5)
    left = deque(enumerate(groups))
    taken: list[int] = []
    last = next(replica for replica in range(5) if replica not in lost)
    for position, replica in enumerate(turns):
        for _ in range(position % 3):
            if left:
                number, group = left.popleft()
                queue.append(request(str(number), group))
        if position == 20:
            for one in lost:
                queue.release(one)
        if queue and not (position >= 20 and replica in lost):
            taken += take(queue, replica, 1)
    for number, group in left:
        queue.append(request(str(number), group))
    taken += take(queue, last, len(queue))
    assert Counter(taken) == Counter(range(len(groups)))
    assert len(queue) == 0


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_the_queue_knows_how_much_it_holds(num_replicas: int) -> None:
    queue = RequestQueue(num_replicas)
    url = "data:image/png;base64,AAAA"
    shown = (Message("system", "x"), Message("user", "x", (url, url)))
    for number in range(8):
        one = request(str(number), group=number // 4)
        queue.append(replace(one, messages=shown, num_image_chars=10**9) if number == 0 else one)
    assert queue.held_chars == 8 * 10 + 2 * len(url), "of image files only the keys"
    take(queue, num_replicas - 1, 1)
    assert queue.held_chars == 7 * 10
    take(queue, 0, 7)
    assert queue.held_chars == len(queue) == 0
