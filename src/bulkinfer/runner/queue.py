"""The queue that all engines of a run take from: in the order of the shards, but a group with one prefix by one engine.

It knows nothing of engines but their numbers.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from bulkinfer.records import Request


class Supply(Protocol):
    """Where one engine's requests come from; a deque is one."""

    def __len__(self) -> int:
        """Requests that are left."""

    def __getitem__(self, index: int, /) -> Request:
        """With 0: the one that comes next."""

    def popleft(self) -> Request:
        """Take it."""


class _Alone(deque[Request]):
    """Requests in order, for one engine."""

    held_chars = 0

    def append(self, request: Request, /) -> None:
        super().append(request)
        self.held_chars += request.held_chars

    def popleft(self) -> Request:
        request = super().popleft()
        self.held_chars -= request.held_chars
        return request


@dataclass(slots=True, eq=False)
class _Stretch:
    """Requests of one group that lie in the queue; or, without a group, some that stand together."""

    group: int | None
    requests: deque[Request]
    owner: int | None = None
    """The engine that has begun it."""


@dataclass(slots=True)
class RequestQueue:
    """Requests that wait, and who gets them.

    An engine takes the rest of the groups that it has begun, then the next request or group in order that nobody has
    begun. When nothing else is left, it takes over half of what is left of the largest group: computing a prefix once
    more costs less than an engine without work. One engine alone takes all in order.
    """

    num_replicas: int
    _alone: _Alone = field(default_factory=_Alone)
    """All, where there is one engine."""
    _num_requests: int = 0
    _held_chars: int = 0
    _free: deque[_Stretch] = field(default_factory=deque)
    """Those that nobody has begun, in order."""
    _begun: dict[int, deque[_Stretch]] = field(default_factory=dict)
    """By engine."""
    _last: _Stretch | None = None
    """Where the last request was added. A group stands together, so no other group can grow; this one may be empty."""

    def __len__(self) -> int:
        return len(self._alone) + self._num_requests

    @property
    def held_chars(self) -> int:
        """Characters that the requests hold; see `Request.held_chars`."""
        return self._alone.held_chars + self._held_chars

    def append(self, request: Request) -> None:
        """Add a request behind all others."""
        if self.num_replicas == 1:
            self._alone.append(request)
            return
        self._num_requests += 1
        self._held_chars += request.held_chars
        if self._last is None or self._last.group != request.prefix_group:
            self._last = _Stretch(request.prefix_group, deque())
        self._last.requests.append(request)
        if len(self._last.requests) == 1:
            owner = self._last.owner
            (self._free if owner is None else self._begun.setdefault(owner, deque())).append(self._last)

    def supply_of(self, replica: int) -> Supply:
        """The queue as one engine sees it."""
        return self._alone if self.num_replicas == 1 else _View(self, replica)

    def release(self, replica: int) -> None:
        """This engine takes no more: others may have what it has begun, before all else."""
        begun = self._begun.pop(replica, deque())
        for stretch in begun:
            stretch.owner = None
        self._free.extendleft(reversed(begun))
        if self._last is not None and self._last.owner == replica:
            self._last.owner = None

    def peek(self, replica: int) -> Request:
        """What this engine gets next. Raises IndexError when nothing is left."""
        return self._choose(replica).requests[0]

    def take(self, replica: int) -> Request:
        """Take it."""
        stretch = self._choose(replica)
        request = stretch.requests.popleft()
        self._num_requests -= 1
        self._held_chars -= request.held_chars
        if not stretch.requests:  # the first of those that it is among: only the first is taken from
            (self._free if stretch.group is None else self._begun[replica]).popleft()
        return request

    def _choose(self, replica: int) -> _Stretch:
        if own := self._begun.get(replica):
            return own[0]
        if self._free:
            if self._free[0].group is None:
                return self._free[0]
            return self._begin(self._free.popleft(), replica)
        return self._take_over(replica)

    def _begin(self, stretch: _Stretch, replica: int) -> _Stretch:
        stretch.owner = replica
        self._begun.setdefault(replica, deque()).append(stretch)
        return stretch

    def _take_over(self, replica: int) -> _Stretch:
        if self._num_requests == 0:
            raise IndexError("the queue is empty")
        largest = max((one for begun in self._begun.values() for one in begun), key=lambda one: len(one.requests))
        if len(largest.requests) == 1:
            assert largest.owner is not None
            self._begun[largest.owner].remove(largest)
            return self._begin(largest, replica)
        num_taken = len(largest.requests) // 2
        taken = _Stretch(largest.group, deque(largest.requests.pop() for _ in range(num_taken)))
        taken.requests.reverse()
        return self._begin(taken, replica)


@dataclass(frozen=True, slots=True)
class _View:
    queue: RequestQueue
    replica: int

    def __len__(self) -> int:
        return len(self.queue)

    def __getitem__(self, index: int, /) -> Request:
        assert index == 0
        return self.queue.peek(self.replica)

    def popleft(self) -> Request:
        return self.queue.take(self.replica)
