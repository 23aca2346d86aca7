"""SIGINT and SIGTERM: before a run holds anything they end it, and then they are flags.

The loop looks at the flags between two steps; nothing is interrupted half-way.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import NoReturn

from bulkinfer.errors import Interrupted

_Handler = Callable[[int, FrameType | None], None]
_WATCHED = (signal.SIGINT, signal.SIGTERM)


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
def watch_signals(*, ends_process: bool) -> Iterator[StopFlag]:
    """Catch SIGINT and SIGTERM while the block runs; outside the main thread, where Python has no handlers, nothing.

    `ends_process`: nothing but the end of the process comes after it, which a late signal must not change.
    """
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    with _handling(flag.note, after=signal.SIG_IGN if ends_process else None):
        yield flag


@contextmanager
def end_on_signals() -> Iterator[None]:
    """Raise Interrupted in the block for SIGINT and SIGTERM: for what holds nothing and changes nothing, as planning.

    Without it, a SIGTERM before the run has begun would end Python without a word, and as process 1 of a container
    would be ignored.
    """
    with _handling(_end):
        yield


def _end(signal_number: int, _frame: FrameType | None) -> NoReturn:
    raise Interrupted(signal_number)


@contextmanager
def _handling(handler: _Handler, *, after: signal.Handlers | None = None) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _WATCHED}
    try:
        yield
    finally:
        for number, earlier in before.items():
            if signal.getsignal(number) == handler:  # not when they are to stay ignored
                signal.signal(number, earlier if after is None else after)
