"""What batch work may have of an engine of which a share is kept free."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkinfer.engines.reserve import Reserve


@pytest.mark.parametrize(
    ("share", "whole", "allowed"),
    [(0.0, 64, 64), (0.25, 64, 48), (0.25, 5, 3), (0.5, 1, 1), (0.99, 64, 1), (0.9, 10, 1), (0.1, 10, 9)],
)
def test_a_share_of_what_there_is_is_kept_free(share: float, whole: int, allowed: int) -> None:
    assert Reserve(share).max_sequences(whole) == allowed
    assert Reserve(share).max_kv_tokens(whole) == allowed


def admits(num_batch_sequences: int, num_batch_kv_tokens: int, num_tokens: int) -> bool:
    """8 sequences and 1,000 tokens, of which a quarter is kept free."""
    return Reserve(0.25).admits(
        num_tokens,
        num_sequences=8,
        num_kv_tokens=1_000,
        num_batch_sequences=num_batch_sequences,
        num_batch_kv_tokens=num_batch_kv_tokens,
    )


def test_a_batch_request_needs_a_sequence_and_room_of_what_is_not_reserved() -> None:
    assert admits(5, 650, 100)
    assert not admits(6, 0, 1)
    assert not admits(5, 651, 100)


def test_one_batch_request_alone_is_admitted_however_large_it_is() -> None:
    assert admits(0, 0, 900)


@given(st.lists(st.integers(1, 600), max_size=40), st.integers(1, 16), st.floats(0, 0.99))
def test_whatever_comes_the_reserve_stays_free(tokens: list[int], num_sequences: int, share: float) -> None:
    reserve, held = Reserve(share), list[int]()
    for number in tokens:
        if reserve.admits(
            number,
            num_sequences=num_sequences,
            num_kv_tokens=1_000,
            num_batch_sequences=len(held),
            num_batch_kv_tokens=sum(held),
        ):
            held.append(number)
    assert len(held) <= reserve.max_sequences(num_sequences)
    assert len(held) <= 1 or sum(held) <= reserve.max_kv_tokens(1_000)


def test_it_is_told_as_it_is_written() -> None:
    assert (str(Reserve(0.25)), str(Reserve(0.125))) == ("25%", "12.5%")
