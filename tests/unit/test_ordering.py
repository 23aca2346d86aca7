"""The order of a shard: every request once, shared beginnings together, the longest first."""

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bulkinfer.ordering import MIN_SHARED_CHARS, order_requests
from bulkinfer.records import Message, Origin, Request

SYSTEM = Message("system", "Answer in one word.")


def ask(number: int, text: str, system: Message = SYSTEM) -> Request:
    """A request whose hash is its number."""
    messages = (system, Message("user", text))
    return Request(number.to_bytes(16, "big"), Origin("in", number, f"d{number}"), messages, len(text))


def ask_all(*texts: str) -> list[Request]:
    """One request for each text, numbered from 0."""
    return [ask(number, text) for number, text in enumerate(texts)]


def numbers(requests: list[Request]) -> list[int]:
    """Which requests these are."""
    return [int.from_bytes(request.document_hash, "big") for request in requests]


def test_without_shared_prefixes_the_longest_goes_first_and_nothing_is_a_group() -> None:
    ordered = order_requests(ask_all("b" * 10, "c" * 300, "a" * 200))
    assert numbers(ordered) == [1, 2, 0]
    assert {request.prefix_group for request in ordered} == {None}


def test_a_shared_prefix_keeps_its_requests_together_where_the_longest_stands() -> None:
    manual, law = "m" * MIN_SHARED_CHARS, "l" * MIN_SHARED_CHARS
    ordered = order_requests(
        ask_all(manual + "a" * 500, "x" * 600, law + "b", law + "c" * 550, "y" * 300, manual + "d")
    )
    assert numbers(ordered) == [3, 2, 0, 5, 1, 4]
    assert [request.prefix_group for request in ordered] == [0, 0, 1, 1, None, None]


def test_one_character_less_than_a_block_is_no_group() -> None:
    short = "m" * (MIN_SHARED_CHARS - 1)
    ordered = order_requests(ask_all(short + "a", short + "b", "x"))
    assert {request.prefix_group for request in ordered} == {None}


def test_what_all_share_makes_no_group_but_what_some_share_beyond_it_does() -> None:
    form, one = "f" * 1000, "1" * MIN_SHARED_CHARS
    ordered = order_requests(ask_all(form + one + "a", form + "z" * 900, form + one + "b", form + "y"))
    assert numbers(ordered) == [1, 0, 2, 3]
    assert [request.prefix_group for request in ordered] == [None, 0, 0, None]


def test_groups_within_a_group_stay_next_to_each_other() -> None:
    book, first, second = "b" * 400, "1" * 200, "2" * 300
    ordered = order_requests(
        ask_all(book + first + "a", "o" * 650, book + second + "b", book + first + "c", book + second + "d" * 99, book)
    )
    # The book's own, then its chapters, the one with the longest request first.
    assert numbers(ordered) == [5, 4, 2, 0, 3, 1]
    assert [request.prefix_group for request in ordered] == [0, 1, 1, 2, 2, None]


def test_different_system_messages_are_prefixes_too() -> None:
    german, english = (Message("system", language * 200) for language in ("g", "e"))
    requests = [ask(0, "aa", german), ask(1, "b", english), ask(2, "c", german), ask(3, "dddd", english)]
    ordered = order_requests(requests)
    assert numbers(ordered) == [3, 1, 0, 2]
    assert [request.prefix_group for request in ordered] == [0, 0, 1, 1]


def test_texts_that_are_each_a_beginning_of_the_next_do_not_nest_without_end() -> None:
    ordered = order_requests(ask_all(*("x" * (200 * count) for count in range(1, 2001))))
    assert sorted(numbers(ordered)) == list(range(2000))


def test_nothing_and_one() -> None:
    assert order_requests([]) == []
    assert order_requests(ask_all("a")) == ask_all("a")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.text("xyz", max_size=5)), max_size=60))
def test_every_request_comes_once_unchanged_and_the_numbers_are_adjacent(parts: list[tuple[str, int, str]]) -> None:
    requests = ask_all(*(letter * (MIN_SHARED_CHARS * length) + rest for letter, length, rest in parts))
    ordered = order_requests(requests)
    assert sorted(numbers(ordered)) == list(range(len(requests)))
    assert {request.messages for request in ordered} == {request.messages for request in requests}
    groups = [request.prefix_group for request in ordered]
    borders = [after for before, after in pairwise([None, *groups]) if after not in {before, None}]
    assert borders == list(range(len(borders)))


def test_the_input_order_does_not_matter_for_which_requests_share_a_group() -> None:
    generator = random.Random(7)
    requests = ask_all(*(f"{number % 9} " * 100 + str(number) for number in range(200)))
    generator.shuffle(requests)
    ordered = order_requests(requests)
    by_group: dict[int | None, set[int]] = {}
    for request, number in zip(ordered, numbers(ordered), strict=True):
        by_group.setdefault(request.prefix_group, set()).add(number)
    assert sorted(map(sorted, by_group.values())) == [list(range(rest, 200, 9)) for rest in range(9)]
