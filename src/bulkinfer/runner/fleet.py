"""All engines of a run: which are started, who gets how much, and what becomes of the work of one that is broken.

The loop holds this alone. Of one engine's life and death `window` knows.
"""

from collections import Counter, deque
from concurrent.futures import wait as wait_for_futures

from bulkinfer.engines import EngineGroup
from bulkinfer.errors import EngineError, JobError
from bulkinfer.events import EngineGivenUp, EventSink, Warned
from bulkinfer.records import Request
from bulkinfer.runner.ledger import Ledger
from bulkinfer.runner.queue import RequestQueue
from bulkinfer.runner.window import Returned, Window
from bulkinfer.threads import run_in_thread


class Fleet:
    """One window for each engine of `group`, all fed from `queue`.

    An engine that is broken is given up, and others ask what it had; the last one's error is the run's.
    """

    def __init__(
        self,
        group: EngineGroup,
        model: str,
        *,
        max_concurrency: int,
        max_restarts: int,
        ledger: Ledger,
        emit: EventSink,
    ) -> None:
        num_replicas = len(group.engines)
        self.queue = RequestQueue(num_replicas)
        self._group = group
        self._max_concurrency = max_concurrency
        self._ledger = ledger
        self._emit = emit
        self._again: deque[Request] = deque()
        deaths: Counter[bytes] = Counter()
        self.windows = [
            Window(
                engine=engine,
                model=model,
                max_concurrency=max_concurrency,
                max_restarts=max_restarts,
                ledger=ledger,
                emit=emit,
                replica=replica,
                again=self._again,
                deaths=deaths,
                has_others=num_replicas > 1,
            )
            for replica, engine in enumerate(group.engines)
        ]
        """One for each engine, those included that are given up."""
        self._live = list(self.windows)
        """Those that are not given up."""

    @property
    def num_in_flight(self) -> int:
        """Requests that the engines have."""
        return sum(window.num_in_flight for window in self._live)

    @property
    def num_documents(self) -> int:
        """Those of them that are documents: what people are told."""
        return sum(window.num_documents for window in self._live)

    @property
    def num_waiting(self) -> int:
        """Requests that wait here: in the queue, or to be submitted again."""
        return len(self.queue) + len(self._again) + sum(window.num_held for window in self._live)

    @property
    def is_busy(self) -> bool:
        """Whether an engine has something to do, if only to load its model."""
        return any(window.num_in_flight > 0 or (window.is_started and not window.is_ready) for window in self._live)

    def now(self) -> float:
        """Seconds on the engines' clock."""
        return self._group.engines[0].now() if len(self.windows) == 1 else self._group.bell.now()

    def feed(self, *, may_grow: bool, num_behind: int = 0) -> None:
        """Fill the windows. `num_behind`: requests that stand before the queue.

        Raises EngineError when the last engine does not start, or died too often without an answer in between, and
        JobError when none has ever started and the job is at fault for the last one.
        """
        if len(self.windows) == 1:
            self.windows[0].feed(self.queue.supply_of(0), may_grow=may_grow)
            return
        num_known = num_behind + self.num_waiting + self.num_in_flight
        num_started = sum(window.is_started for window in self._live)
        num_to_start = 0
        if num_startable := sum(not window.is_started and window.start_wait_s() == 0 for window in self._live):
            num_to_start = max(0, min(num_startable, self._count_wanted(num_known) - num_started))
        num_sharing = num_started + num_to_start
        has_others_to_load = num_sharing > sum(window.is_ready for window in self._live)
        share = -(-num_known // max(1, num_sharing))
        for window in sorted(self._live, key=lambda window: (not window.is_started, window.start_wait_s())):
            if not window.is_started and not window.num_held:
                if num_to_start <= 0 or not (self.queue or self._again):
                    continue
                num_to_start -= 1
            supply = self.queue.supply_of(window.replica)
            try:
                # While others load, its own slots come first.
                least = window.max_concurrency if has_others_to_load else 0
                window.feed(supply, may_grow=may_grow, share=max(least, share))
            except (EngineError, JobError) as error:
                self._give_up(window, error)

    def poll(self, timeout_s: float) -> list[Returned]:
        """What the engines finished; waits up to `timeout_s` seconds for something to happen. Raises as `feed` does."""
        if len(self.windows) == 1:
            return self.windows[0].poll(timeout_s)
        returned: list[Returned] = []
        for replica in self._group.bell.wait(timeout_s):
            window = self.windows[replica]
            if not window.is_started:
                continue
            try:
                returned += window.poll(self._group.bell.poll_s)
            except (EngineError, JobError) as error:
                self._give_up(window, error)
        return returned

    def ask_again(self, request: Request) -> None:
        """Submit a request once more: it failed for a reason that may pass."""
        self._live[0].ask_again(request)

    def start_wait_s(self) -> float:
        """Seconds until a dead engine may be started again."""
        return min((wait_s for window in self._live if (wait_s := window.start_wait_s()) > 0), default=0.0)

    def close(self) -> None:
        """End all engines, side by side; what is in flight is given up."""
        started = [window for window in self.windows if window.is_started]
        if len(started) > 1:
            wait_for_futures([run_in_thread(window.close, f"close-engine-{window.replica}") for window in started])
        for window in self.windows:
            window.close()

    def _count_wanted(self, num_known: int) -> int:
        """Engines that the known work is worth loading.

        One more is of use only when the others have no free slot left: a sequence that joins a step costs little, and
        loading a model seconds to minutes. What an engine has chosen counts, once one has.
        """
        chosen = (window.max_concurrency for window in self._live if window.has_been_ready)
        return min(len(self._live), -(-num_known // min(chosen, default=self._max_concurrency)))

    def _give_up(self, window: Window, error: EngineError | JobError) -> None:
        if len(self._live) == 1:
            if any(one.has_been_ready for one in self.windows):  # so the job is not at fault
                raise EngineError(str(error)) from error
            raise error
        self._live.remove(window)
        window.close()
        self.queue.release(window.replica)
        self._again.extendleft(reversed(window.surrender()))
        self._ledger.note_retired(window.replica)
        self._live[0].has_others = len(self._live) > 1
        left = f"{len(self._live)} of {len(self.windows)} engines are left"
        self._emit(EngineGivenUp(window.replica))
        self._emit(Warned(f"engine {window.replica} is given up, {left}: {error}"))
