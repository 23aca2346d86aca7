"""The sample of a plan: uniform over different documents to do, the same every time, bounded."""

import hashlib
import random
from collections.abc import Sequence

import pytest

from bulkinfer.records import Document, Origin
from bulkinfer.runner.sample import Sample, key_of


def hash_of(number: int) -> bytes:
    """Of the document with a number."""
    return hashlib.sha256(str(number).encode()).digest()[:16]


def document(number: int) -> Document:
    """One that knows its number."""
    return Document(Origin("a", number + 1, f"a:{number}"), {"n": number})


def draw(
    numbers: Sequence[int], size: int, done: Sequence[int] = (), num_bytes: int = 1, max_bytes: int = 10**9
) -> set[int]:
    """The numbers of the documents that are drawn, offered as the survey offers them."""
    done_hashes = {hash_of(number) for number in done}
    sample = Sample(size, max_bytes, lambda hashes: frozenset(done_hashes & set(hashes)))
    for number in numbers:
        if key_of(hash_of(number)) < sample.bar:
            sample.offer(hash_of(number), document(number), num_bytes)
            assert len(sample) < 4 * size
    sample.settle()
    drawn = {int(str(one.fields["n"])) for one in sample.documents.values()}
    assert set(sample.documents) == {hash_of(number) for number in drawn}
    return drawn


def test_few_documents_are_all_drawn() -> None:
    assert draw(range(100), 100) == set(range(100))


def test_many_are_drawn_by_key_whatever_their_order_and_number_of_rows() -> None:
    numbers = list(range(5_000))
    expected = set(sorted(numbers, key=lambda number: key_of(hash_of(number)))[:200])
    assert draw(numbers, 200) == expected
    mixed = numbers * 3
    random.Random(7).shuffle(mixed)
    assert draw(mixed, 200) == expected


def test_what_is_done_is_not_drawn_and_takes_no_place() -> None:
    done = range(0, 5_000, 2)
    left = [number for number in range(5_000) if number % 2]
    assert draw(range(5_000), 200, done) == set(sorted(left, key=lambda number: key_of(hash_of(number)))[:200])
    assert draw(range(5_000), 200, range(4_990)) == set(range(4_990, 5_000))
    assert draw(range(5_000), 200, range(5_000)) == set()


def test_every_stretch_of_the_input_has_its_share() -> None:
    drawn = draw(range(100_000), 10_000)
    for start in range(0, 100_000, 10_000):
        num_drawn = len(drawn & set(range(start, start + 10_000)))
        assert num_drawn == pytest.approx(1_000, abs=150)  # five standard deviations


def test_the_key_is_not_what_a_simulated_answer_is_made_of() -> None:
    drawn = draw(range(100_000), 1_000)
    mean = sum(hash_of(number)[0] for number in drawn) / len(drawn)
    assert mean == pytest.approx(127.5, abs=12)


def test_memory_bounds_the_sample_too() -> None:
    assert len(draw(range(1_000), 100, num_bytes=10, max_bytes=500)) == 50
    assert len(draw(range(1_000), 100, num_bytes=10, max_bytes=5)) == 1
