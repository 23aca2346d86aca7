"""Who gets in: a bounded queue before the engine, limits for users, and what a refused request is told.

A refusal carries a `retry_after_s` only where to retry is safe (the engine never saw the request) and likely to
succeed: places become free, at a rate that was measured, for at least half of those who ask for one.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from bulkinfer.engines.reserve import Reserve
from bulkinfer.sweep.load import LoadRequest

MIN_DRAINED = 4
"""Requests that must have left the queue or the engine before anything is promised."""
RATE_WINDOW_S = 30.0
"""What rates are measured over."""
MAX_RETRY_AFTER_S = 60.0
"""Nobody is told to come back later than this."""
MIN_CHANCE = 0.5
"""Of a place for each request that asks for one; below it, to retry only makes the load heavier."""


class Reason(StrEnum):
    """Why a request is refused. Those of the engine are failure codes."""

    QUEUE_FULL = "queue_full"
    USER_LIMIT = "user_limit"
    """The user has as many requests waiting or running as one may have."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request is not taken."""

    reason: str
    retry_after_s: float | None
    """When to send it again; None: do not."""


@dataclass(slots=True)
class Waiting:
    """A request in the queue."""

    load: LoadRequest
    arrived_at_s: float
    attempt: int = 1

    @property
    def level(self) -> int:
        """0: normal priority; 1: low."""
        return 1 if self.load.request.priority > 0 else 0


@dataclass(slots=True)
class LowShare:
    """What requests of low priority may have of the engine: all but what `limits.reserve` keeps free for the others."""

    reserve: Reserve
    num_sequences: int
    num_kv_tokens: int
    num_running: int = 0
    num_tokens_running: int = 0

    def admits(self, waiting: Waiting) -> bool:
        """Whether the engine may have one more."""
        return self._admits(waiting, self.num_running, self.num_tokens_running)

    def count_admitted(self, low: Iterable[Waiting], most: int) -> int:
        """Of requests in their order, how many the engine may have now, one after the other; no more than `most`."""
        num_running, num_tokens = self.num_running, self.num_tokens_running
        for count, waiting in enumerate(low):
            if count >= most or not self._admits(waiting, num_running, num_tokens):
                return count
            num_running += 1
            num_tokens += waiting.load.num_tokens
        return num_running - self.num_running

    def note(self, waiting: Waiting, change: int) -> None:
        """One more is running (1), or one less (-1)."""
        self.num_running += change
        self.num_tokens_running += change * waiting.load.num_tokens

    def _admits(self, waiting: Waiting, num_running: int, num_tokens: int) -> bool:
        return self.reserve.admits(
            waiting.load.num_tokens,
            num_sequences=self.num_sequences,
            num_kv_tokens=self.num_kv_tokens,
            num_batch_sequences=num_running,
            num_batch_kv_tokens=num_tokens,
        )


class Rate:
    """How often something happens, over the last half minute."""

    def __init__(self, start_s: float) -> None:
        self._start_s = start_s
        self._times: deque[float] = deque()

    def note(self, now_s: float) -> None:
        """It happened."""
        self._times.append(now_s)
        while now_s - self._times[0] > RATE_WINDOW_S:
            self._times.popleft()

    def per_s(self, now_s: float) -> float:
        """0 where it is not known yet."""
        while self._times and now_s - self._times[0] > RATE_WINDOW_S:
            self._times.popleft()
        if len(self._times) < MIN_DRAINED:
            return 0.0
        return len(self._times) / max(1e-9, min(RATE_WINDOW_S, now_s - self._start_s))


class Line:
    """Those who want a place of one kind: how often they ask, and who was told to come back for one."""

    def __init__(self, start_s: float) -> None:
        self._asked = Rate(start_s)
        self._back_at_s: list[float] = []
        """A heap."""

    def note_asked(self, now_s: float) -> None:
        """One more asks."""
        self._asked.note(now_s)

    def find_wait_s(self, freed_per_s: float, now_s: float) -> float | None:
        """When a place will be free for one more, after those who were told to come back; None: not soon."""
        if freed_per_s <= 0 or freed_per_s < MIN_CHANCE * self._asked.per_s(now_s):
            return None
        while self._back_at_s and self._back_at_s[0] <= now_s:
            heapq.heappop(self._back_at_s)
        wait_s = (len(self._back_at_s) + 1) / freed_per_s
        return wait_s if wait_s <= MAX_RETRY_AFTER_S else None

    def promise(self, at_s: float) -> None:
        """One was told to come back then."""
        heapq.heappush(self._back_at_s, at_s)


class Admission:
    """The queue before the engine. Requests of normal priority leave it before those of low priority."""

    def __init__(
        self,
        queue_size: int,
        num_slots: int,
        *,
        per_user: int | None,
        is_rejecting: bool,
        now_s: float,
        low_share: LowShare | None = None,
    ) -> None:
        self.num_slots = num_slots
        self._queue_size = queue_size
        self._per_user = per_user
        self._is_rejecting = is_rejecting
        self._low_share = low_share
        self._waiting: tuple[deque[Waiting], deque[Waiting]] = (deque(), deque())
        """Of normal and of low priority."""
        self._outside: tuple[deque[Waiting], deque[Waiting]] = (deque(), deque())
        """Where nobody is refused: arrivals for which the queue had no place."""
        self._open_of_user: Counter[int] = Counter()
        self._drained = Rate(now_s)
        self._line = Line(now_s)
        """For the queue. Who has too many requests open already is not in it."""
        self._line_of_user: defaultdict[int, Line] = defaultdict(lambda: Line(now_s))
        """For one of the requests that a user may have open."""

    @property
    def num_waiting_by_level(self) -> tuple[int, int]:
        """Requests that wait, in the queue or for a place in it: of normal and of low priority."""
        return len(self._waiting[0]) + len(self._outside[0]), self.num_low

    @property
    def num_queued(self) -> int:
        """Requests in the queue."""
        return len(self._waiting[0]) + len(self._waiting[1])

    @property
    def num_low(self) -> int:
        """Requests of low priority that wait, in the queue or for a place in it."""
        return len(self._waiting[1]) + len(self._outside[1])

    @property
    def num_outside(self) -> int:
        """Requests that wait for a place in the queue."""
        return len(self._outside[0]) + len(self._outside[1])

    def offer(self, waiting: Waiting, num_running: int, now_s: float) -> Refusal | None:
        """Take a request, or say why not. With a free slot and nobody before it, a request needs no place."""
        user = waiting.load.user
        has_room = self._has_room(waiting, num_running)
        is_turned_away = self._is_rejecting and not has_room
        if self._per_user is not None:
            self._line_of_user[user].note_asked(now_s)
            if self._open_of_user[user] >= self._per_user:
                return Refusal(Reason.USER_LIMIT, self._advise(now_s, user, needs_queue=is_turned_away))
        self._line.note_asked(now_s)
        if is_turned_away:
            return Refusal(Reason.QUEUE_FULL, self._advise(now_s, None, needs_queue=True))
        self._open_of_user[user] += 1
        level = waiting.level
        (self._waiting if has_room and not self._outside[level] else self._outside)[level].append(waiting)
        return None

    def take(self, num_running: int) -> Waiting | None:
        """The next request for the engine; None where there is no slot or nobody waits."""
        if num_running >= self.num_slots:
            return None
        self._let_in(num_running)
        normal, low = self._waiting
        if normal:
            taken = normal.popleft()
        elif low and (self._low_share is None or self._low_share.admits(low[0])):
            taken = low.popleft()
            if self._low_share is not None:
                self._low_share.note(taken, 1)
        else:
            return None
        self._let_in(num_running + 1)
        return taken

    def remove(self, waiting: Waiting) -> bool:
        """Forget a request that waits; False if it does not."""
        for place in (*self._waiting, *self._outside):
            if waiting in place:
                place.remove(waiting)
                self.leave(waiting.load.user)
                return True
        return False

    def leave(self, user: int) -> None:
        """A request of this user is over, in whatever way."""
        self._open_of_user[user] -= 1

    def note_left(self, waiting: Waiting) -> None:
        """A request has left the engine, in whatever way."""
        self.leave(waiting.load.user)
        if self._low_share is not None and waiting.level:
            self._low_share.note(waiting, -1)

    def note_drained(self, now_s: float) -> None:
        """A request has left the engine after it had run, and one more can enter it."""
        self._drained.note(now_s)

    def _let_in(self, num_running: int) -> None:
        for inside, outside in zip(self._waiting, self._outside, strict=True):
            while outside and self._has_room(outside[0], num_running):
                inside.append(outside.popleft())

    def _has_room(self, waiting: Waiting, num_running: int) -> bool:
        """Whether the queue has places for all that must wait; who finds a free slot that it may use needs none."""
        num_free = max(0, self.num_slots - num_running)
        normal, low = self._waiting
        level = waiting.level
        num_normal = min(num_free, len(normal) + 1 - level)
        num_free -= num_normal
        num_low = min(num_free, len(low) + level)
        if num_low and self._low_share is not None:
            num_low = self._low_share.count_admitted(chain(low, [waiting][:level]), num_free)
        return self.num_queued + 1 - num_normal - num_low <= self._queue_size

    def _own_share(self, user: int) -> float:
        """Of all that is open, what this user has: of what leaves, so much is theirs."""
        return self._open_of_user[user] / max(1, self._open_of_user.total())

    def _advise(self, now_s: float, user: int | None, *, needs_queue: bool) -> float | None:
        """When there will be a place for one more in each line that it stands in: its user's, the queue's."""
        freed_per_s = self._drained.per_s(now_s)
        lines = [(self._line, freed_per_s)] if needs_queue else []
        if user is not None:
            lines.append((self._line_of_user[user], freed_per_s * self._own_share(user)))
        waits_s = [line.find_wait_s(rate_per_s, now_s) for line, rate_per_s in lines]
        known_s = [wait_s for wait_s in waits_s if wait_s is not None]
        if len(known_s) < len(waits_s):
            return None
        longest_s = max(known_s)
        for line, _ in lines:
            line.promise(now_s + longest_s)
        return longest_s
