"""SIGINT and SIGTERM as flags: the loop looks at them between two steps, nothing is interrupted half-way."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType


@dataclass(slots=True)
class StopFlag:
    """Signals that came so far, oldest first."""

    received: list[int] = field(default_factory=list)

    @property
    def is_set(self) -> bool:
        """The run was asked to stop: finish what is in flight."""
        return bool(self.received)

    @property
    def is_urgent(self) -> bool:
        """It was asked twice: give up what is in flight."""
        return len(self.received) > 1

    def note(self, signal_number: int, _frame: FrameType | None = None) -> None:
        """A signal handler."""
        self.received.append(signal_number)


@contextmanager
def watch_signals() -> Iterator[StopFlag]:
    """Catch SIGINT and SIGTERM while the block runs; outside the main thread, where Python has no handlers, nothing."""
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    before = {number: signal.signal(number, flag.note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
