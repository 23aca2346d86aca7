"""What waits to be committed: a bounded buffer between the threads that produce outcomes and the one that writes."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from bulkinfer.errors import StoreError, StoreStalled
from bulkinfer.records import DocumentRow, Failure, Outcome, PartAnswer, Result
from bulkinfer.store.stall import stalled_error

_ROW_BYTES = 64
_OUTCOME_BYTES = 160


@dataclass(frozen=True, slots=True)
class CommitLimits:
    """When a commit is made, and how long the store waits for what."""

    max_outcomes: int = 1_000
    max_bytes: int = 8 * 1024 * 1024
    max_wait_s: float = 2.0
    """From the moment that something was queued until its commit begins."""
    max_backlog: int = 16
    """Commits' worth of outcomes that may wait before `add` blocks. A writer that is behind takes all that waits: one
    commit of 16,000 costs twice one of 4,000 where ten million answers are there."""
    max_backlog_bytes: int = 32 * 1024 * 1024
    """The same for what waits, in bytes."""
    retry_waits_s: tuple[float, ...] = (0.5, 2.0, 8.0)
    """Pauses before a failed transaction is tried again on a reopened database."""
    lock_wait_s: float = 10.0
    """How long to wait for processes that only read the database."""
    stall_limit_s: float = 300.0
    """How long one commit, its retries included, may take before the writer is called stuck."""


@dataclass(slots=True)
class Pending:
    """What goes into one commit. Not shared: the queue fills it, then gives it away."""

    rows: list[DocumentRow] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    parts: list[PartAnswer] = field(default_factory=list)
    ended_scans: dict[UUID, int] = field(default_factory=dict)
    """Scans that are complete with these rows, with their last row."""
    num_bytes: int = 0
    oldest_s: float = 0.0
    """Monotonic time at which the first of it was queued."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not (self.rows or self.outcomes or self.parts or self.ended_scans)


class CommitQueue:
    """Many threads put and flush, one writer takes. Whatever ends the writer is raised to all the others."""

    def __init__(self, database: Path, limits: CommitLimits) -> None:
        self._database = database
        self._limits = limits
        self._changed = threading.Condition()
        self._pending = Pending()
        self._num_put = 0
        self._num_taken = 0
        self._num_committed = 0
        self._moved_s = time.monotonic()
        """When the writer last took or finished a commit."""
        self._is_busy = False
        self._flush_to = 0
        self._is_closed = False
        self._failure: BaseException | None = None
        self._is_failure_raised = False

    def put(
        self,
        rows: Sequence[DocumentRow],
        outcomes: Sequence[Outcome],
        ended_scans: Mapping[UUID, int] | None = None,
        parts: Sequence[PartAnswer] = (),
    ) -> None:
        """Queue; blocks while the backlog is full. Raises what ended the writer, or StoreStalled when it is stuck."""
        with self._changed:
            self._wait_for(self._has_room)
            if self._is_closed:
                raise StoreError("the store is closed")
            if not (rows or outcomes or ended_scans or parts):
                return
            if self._pending.is_empty:
                self._pending.oldest_s = time.monotonic()
            self._pending.rows.extend(rows)
            self._pending.outcomes.extend(outcomes)
            self._pending.parts.extend(parts)
            self._pending.ended_scans.update(ended_scans or {})
            self._pending.num_bytes += _ROW_BYTES * len(rows) + sum(map(_count_bytes, outcomes))
            self._pending.num_bytes += sum(_OUTCOME_BYTES + len(part.output) for part in parts)
            self._num_put += 1
            self._changed.notify_all()

    def flush(self) -> None:
        """Return when all that was put before is on disk. Raises as `put` does."""
        with self._changed:
            target = self._flush_to = self._num_put
            self._changed.notify_all()
            self._wait_for(lambda: self._num_committed >= target)

    def take(self) -> Pending | None:
        """All that is pending, once a commit is due; None when the queue is closed and empty. The writer's."""
        with self._changed:
            while not self._is_due():
                if self._is_closed:
                    return None
                self._changed.wait(self._time_left_s())
            taken, self._pending = self._pending, Pending()
            self._num_taken = self._num_put
            self._moved_s, self._is_busy = time.monotonic(), True
            self._changed.notify_all()
            return taken

    def mark_committed(self) -> None:
        """What was taken is on disk. The writer's."""
        with self._changed:
            self._num_committed = self._num_taken
            self._moved_s, self._is_busy = time.monotonic(), False
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """The writer has ended: raise its error to all callers from now on. The writer's."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def close(self) -> None:
        """Take nothing more; the writer empties the queue and ends. Does not wait and does not raise."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def check(self) -> None:
        """Raise what ended the writer, or StoreStalled when it has been busy with one commit for too long."""
        with self._changed:
            self._check(time.monotonic())

    def wait_for_end(self) -> None:
        """After `close`: return when all is on disk, or raise as `check` does what nobody was told yet."""
        with self._changed:
            was_told = self._is_failure_raised
            try:
                self._wait_for(lambda: self._pending.is_empty and self._num_committed == self._num_taken)
            except BaseException:
                if not was_told:
                    raise

    def fail_stalled(self) -> StoreStalled:
        """Something else than the writer hangs: nothing can be written any more. Returns the error."""
        error = stalled_error(self._database, self._limits.stall_limit_s)
        self.fail(error)
        return error

    @property
    def is_stalled(self) -> bool:
        """Whether the database hangs: nobody may wait for it any more."""
        return isinstance(self._failure, StoreStalled)

    def _wait_for(self, is_met: Callable[[], bool]) -> None:
        began_s = time.monotonic()
        self._check(began_s)
        while not is_met():
            self._changed.wait(self._stall_time_left_s(began_s))
            self._check(began_s)

    def _check(self, began_s: float) -> None:
        if self._failure is None and self._is_busy and self._stall_time_left_s(began_s) == 0:
            self.fail_stalled()
        if self._failure is not None:
            self._is_failure_raised = True
            raise self._failure

    def _stall_time_left_s(self, began_s: float) -> float:
        """Until the writer must be called stuck; `began_s` is when the caller began to wait for an idle one."""
        since_s = self._moved_s if self._is_busy else max(began_s, self._moved_s)
        return max(0.0, since_s + self._limits.stall_limit_s - time.monotonic())

    def _has_room(self) -> bool:
        return self._is_closed or (
            len(self._pending.outcomes) < self._limits.max_backlog * self._limits.max_outcomes
            and self._pending.num_bytes < self._limits.max_backlog_bytes
        )

    def _is_due(self) -> bool:
        return not self._pending.is_empty and (
            self._is_closed
            or self._flush_to > self._num_committed
            or len(self._pending.outcomes) >= self._limits.max_outcomes
            or self._pending.num_bytes >= self._limits.max_bytes
            or self._time_left_s() == 0
        )

    def _time_left_s(self) -> float | None:
        """Until the oldest of what is pending must be committed; None when nothing is."""
        if self._pending.is_empty:
            return None
        return max(0.0, self._pending.oldest_s + self._limits.max_wait_s - time.monotonic())


def _count_bytes(outcome: Outcome) -> int:
    """About what an outcome takes in memory; in characters, which is near enough for a threshold."""
    match outcome:
        case Result():
            return _OUTCOME_BYTES + len(outcome.output) + len(outcome.value or "") + len(outcome.vector or b"")
        case Failure():
            return _OUTCOME_BYTES + len(outcome.message) + len(outcome.raw_output or "")
