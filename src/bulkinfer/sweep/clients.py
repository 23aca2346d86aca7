"""Who sends: users that wait for their answers (a closed loop), or arrivals at random (an open one).

Both send again what was refused, when the refusal says when, a few times.
"""

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from bulkinfer.sweep.admission import Refusal, Waiting
from bulkinfer.sweep.load import LoadRequest

MAX_ATTEMPTS = 4
"""How often one request is sent at most."""
PAUSE_S = 1.0
"""What a user does after a request that was refused for good, before the next."""


class Clients(Protocol):
    """The other side of the admission."""

    def next_at_s(self) -> float | None:
        """When the next request comes; None: nobody asks until something is answered."""

    def take_due(self, now_s: float, most: int) -> list[Waiting]:
        """Requests that have come by now, the earliest first, at most so many."""

    def note_end(self, waiting: Waiting, now_s: float) -> None:
        """A request was answered, cancelled or failed."""

    def note_refusal(self, waiting: Waiting, refusal: Refusal, now_s: float) -> bool:
        """A request was refused. True: it will be sent again."""


@dataclass(order=True, slots=True)
class _Arrival:
    at_s: float
    order: int
    waiting: Waiting | None
    """None: a user's next request, made when it comes."""
    user: int = 0


class _Agenda:
    """What comes when."""

    def __init__(self) -> None:
        self._heap: list[_Arrival] = []
        self._num_added = 0

    def add(self, at_s: float, waiting: Waiting | None, user: int = 0) -> None:
        self._num_added += 1
        heapq.heappush(self._heap, _Arrival(at_s, self._num_added, waiting, user))

    def next_at_s(self) -> float | None:
        return self._heap[0].at_s if self._heap else None

    def pop_due(self, now_s: float) -> _Arrival | None:
        return heapq.heappop(self._heap) if self._heap and self._heap[0].at_s <= now_s else None

    def add_again(self, waiting: Waiting, refusal: Refusal, now_s: float) -> bool:
        """Send it again when the refusal says; False where it says nothing, or it was sent often enough."""
        if refusal.retry_after_s is None or waiting.attempt >= MAX_ATTEMPTS:
            return False
        at_s = now_s + refusal.retry_after_s
        self.add(at_s, Waiting(waiting.load, at_s, waiting.attempt + 1), waiting.load.user)
        return True


class ClosedClients:
    """So many users; each asks, waits for the answer and asks again at once."""

    def __init__(self, requests: Iterator[LoadRequest], num_users: int, now_s: float) -> None:
        self._requests = requests
        self._agenda = _Agenda()
        for user in range(num_users):
            self._agenda.add(now_s, None, user)

    def next_at_s(self) -> float | None:
        """See `Clients`."""
        return self._agenda.next_at_s()

    def take_due(self, now_s: float, most: int) -> list[Waiting]:
        """See `Clients`."""
        found: list[Waiting] = []
        while len(found) < most and (arrival := self._agenda.pop_due(now_s)) is not None:
            found.append(arrival.waiting or Waiting(replace(next(self._requests), user=arrival.user), arrival.at_s))
        return found

    def note_end(self, waiting: Waiting, now_s: float) -> None:
        """The user's next request comes at once."""
        self._agenda.add(now_s, None, waiting.load.user)

    def note_refusal(self, waiting: Waiting, refusal: Refusal, now_s: float) -> bool:
        """The user waits as told and sends it again, or goes on to the next request after a pause."""
        if self._agenda.add_again(waiting, refusal, now_s):
            return True
        self._agenda.add(now_s + PAUSE_S, None, waiting.load.user)
        return False


class PoissonClients:
    """Arrivals at a rate, each independent of all others and of how the engine keeps up."""

    def __init__(self, requests: Iterator[LoadRequest], rate_per_s: float, seed: int, now_s: float) -> None:
        self._requests = requests
        self._rate_per_s = rate_per_s
        self._draws = random.Random(f"arrivals {seed}")  # noqa: S311 - a load, not a secret
        self._agenda = _Agenda()
        self._next_at_s = now_s + self._draws.expovariate(rate_per_s)

    def next_at_s(self) -> float | None:
        """See `Clients`."""
        again_at_s = self._agenda.next_at_s()
        return self._next_at_s if again_at_s is None else min(self._next_at_s, again_at_s)

    def take_due(self, now_s: float, most: int) -> list[Waiting]:
        """See `Clients`. An arrival counts from its own moment, however late it is seen."""
        found: list[Waiting] = []
        while len(found) < most:
            again_at_s = self._agenda.next_at_s()
            if again_at_s is not None and again_at_s <= min(now_s, self._next_at_s):
                arrival = self._agenda.pop_due(now_s)
                assert arrival is not None
                assert arrival.waiting is not None
                found.append(arrival.waiting)
            elif self._next_at_s <= now_s:
                found.append(Waiting(next(self._requests), self._next_at_s))
                self._next_at_s += self._draws.expovariate(self._rate_per_s)
            else:
                break
        return found

    def note_end(self, waiting: Waiting, now_s: float) -> None:
        """Nobody waits for it."""

    def note_refusal(self, waiting: Waiting, refusal: Refusal, now_s: float) -> bool:
        """It comes again as told, or never."""
        return self._agenda.add_again(waiting, refusal, now_s)
