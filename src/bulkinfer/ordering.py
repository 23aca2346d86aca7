"""The order in which the requests of one shard go to the engine: shared prefixes together, the longest first.

vLLM computes a prompt's beginning once for all prompts that share it, in whole blocks, as long as these stay in the KV
cache. Texts that begin alike give tokens that begin alike, up to the token in which they part; so shared prefixes are
found in the rendered text, by a sort, and nothing has to be tokenised here.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from bulkinfer.records import Request

MIN_SHARED_CHARS = 128
"""What prompts must share beyond what all around them share: about the 32 tokens of one block of the prefix cache."""
_MAX_DEPTH = 8
"""Of groups within groups: texts that are each a beginning of the next would nest without end."""


def order_requests(requests: Sequence[Request]) -> list[Request]:
    """The same requests in their order, those that share a long beginning numbered from 0 in `prefix_group`.

    Longest first. Requests with a long shared beginning stand together, where the longest of them would stand, and
    groups within a group stay together, too. What all requests share, such as a system prompt, makes no group.
    """
    texts = _prompt_texts(requests)
    by_text = sorted(range(len(requests)), key=texts.__getitem__)
    in_text_order = [requests[index] for index in by_text]
    root = _split([texts[index] for index in by_text], in_text_order, 0, len(requests), 0)
    tops: list[Request | _Group] = [*root.groups, *root.own]
    ordered: list[Request] = []
    num_groups = 0
    for top in _longest_first(tops):
        if isinstance(top, Request):
            ordered.append(top)
            continue
        for group in top.walk():
            ordered += (replace(request, prefix_group=num_groups) for request in _longest_first(group.own))
            num_groups += bool(group.own)
    return ordered


def count_shared_chars(one: str, other: str) -> int:
    """How long the common beginning of two texts is. By halving: comparing slices is faster than single characters."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True, slots=True)
class _Group:
    """Requests that share a beginning."""

    own: list[Request]
    """Those in none of the groups within."""
    groups: list["_Group"]
    num_chars: int
    """Of the longest of them all."""

    def walk(self) -> Iterator["_Group"]:
        """Itself, then the groups within, each before those within it."""
        yield self
        for group in _longest_first(self.groups):
            yield from group.walk()


_T = TypeVar("_T", Request, _Group, Request | _Group)


def _longest_first(those: Iterable[_T]) -> list[_T]:
    return sorted(those, key=lambda one: one.num_chars, reverse=True)


def _prompt_texts(requests: Sequence[Request]) -> list[str]:
    """What each prompt says, in one text. Without the messages before the last where these are all equal."""
    heads = {tuple([message.content for message in request.messages[:-1]]) for request in requests}
    if len(heads) <= 1:
        return [request.messages[-1].content for request in requests]
    return ["\0".join(message.content for message in request.messages) for request in requests]


def _split(texts: Sequence[str], requests: Sequence[Request], first: int, end: int, depth: int) -> _Group:
    """The group of the neighbours from `first` to before `end`, in the order of their texts."""
    longest = max((request.num_chars for request in requests[first:end]), default=0)
    if end - first < 2 or depth == _MAX_DEPTH:
        return _Group(list(requests[first:end]), [], longest)
    shared = count_shared_chars(texts[first], texts[end - 1])  # sorted: what these two share, all between them do
    own: list[Request] = []
    groups: list[_Group] = []
    for start, stop in _find_runs(texts, first, end, shared):
        if stop - start == 1:
            own.append(requests[start])
        else:
            groups.append(_split(texts, requests, start, stop, depth + 1))
    return _Group(own, groups, longest)


def _find_runs(texts: Sequence[str], first: int, end: int, shared: int) -> Iterator[tuple[int, int]]:
    """Neighbours that also share the next MIN_SHARED_CHARS characters, one run after the other."""
    start = first
    until = shared + MIN_SHARED_CHARS
    for place in range(first + 1, end + 1):
        if place == end or len(texts[start]) < until or texts[place][shared:until] != texts[start][shared:until]:
            yield start, place
            start = place
