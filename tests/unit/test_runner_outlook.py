"""What an engine is told of the work ahead."""

from collections.abc import Sequence

import pytest

from bulkinfer.records import Message, Origin, Request, Workload
from bulkinfer.runner.outlook import Outlook
from bulkinfer.shards import Shard, find_p95


def shard(lengths: Sequence[int], *, bytes_read: int = 1_000, is_last: bool = False) -> Shard:
    """A shard of prompts of these lengths."""
    requests = tuple(
        Request(number.to_bytes(2, "big"), Origin("a.jsonl", 1, "i"), (Message("user", "x" * length),), length)
        for number, length in enumerate(lengths)
    )
    return Shard(requests, (), (), len(lengths), 0, {}, bytes_read, is_last)


def test_before_the_first_shard_nothing_is_known() -> None:
    assert Outlook().estimate(0, 0.0) == Workload()


def test_documents_that_are_not_read_yet_are_like_those_that_are() -> None:
    outlook = Outlook(tokens_per_s=50.0)
    outlook.note_shard(shard([30, 20, 10, 20]))
    assert outlook.estimate(1, 0.25) == Workload(15, 20.0, 20, 30, tokens_per_s=50.0, longest_bytes=(30, 20, 20, 10))


def test_after_the_last_shard_all_are_known() -> None:
    outlook = Outlook()
    outlook.note_shard(shard([5, 5]))
    outlook.note_shard(shard([500], is_last=True))
    found = outlook.estimate(1, 0.5)
    assert (found.num_documents, found.max_chars, found.is_read_to_end) == (2, 500, True)


def test_the_highest_95th_percentile_of_any_shard_counts() -> None:
    outlook = Outlook()
    outlook.note_shard(shard(list(range(1, 101))))
    outlook.note_shard(shard([1] * 100))
    outlook.note_shard(shard([]))
    assert outlook.estimate(0, 1.0).p95_bytes == 95


def test_the_longest_of_all_shards_are_known_one_by_one() -> None:
    outlook = Outlook()
    outlook.note_shard(shard([*range(300), 7]))
    outlook.note_shard(shard([1_000, 2]))
    assert outlook.estimate(0, 1.0).longest_bytes == (1_000, *range(299, 44, -1))
    assert shard(range(300)).estimate_work(1_000).longest_bytes == tuple(range(299, 43, -1))


def test_the_size_of_a_prompt_is_counted_in_bytes() -> None:
    messages = (Message("system", "\u00fc" * 5), Message("user", "\u6f22" * 100 + "\ud800"))
    one = Shard((Request(b"a", Origin("a.jsonl", 1, "i"), messages, 106),), (), (), 1, 0, {}, 1_000, is_last=True)
    expected = Workload(1, 106.0, 311, 106, is_read_to_end=True, longest_bytes=(311,))
    assert one.estimate_work(1_000) == expected
    outlook = Outlook()
    outlook.note_shard(one)
    assert outlook.estimate(0, 1.0) == expected


@pytest.mark.parametrize(("lengths", "expected"), [([], 0), ([7], 7), ([1, 2], 1), (list(range(1, 101)), 95)])
def test_the_95th_percentile(lengths: list[int], expected: int) -> None:
    assert find_p95(lengths) == expected


def test_a_first_shard_tells_of_the_whole_input() -> None:
    found = shard([10, 20, 30], bytes_read=250).estimate_work(1_000)
    assert found == Workload(12, 20.0, 20, 30, longest_bytes=(30, 20, 10))
    assert shard([10], bytes_read=250, is_last=True).estimate_work(1_000).num_documents == 1
    assert shard([], bytes_read=0).estimate_work(0).num_documents is None
