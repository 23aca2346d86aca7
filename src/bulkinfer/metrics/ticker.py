"""A thread that does something now and then, and once more at the end."""

from collections.abc import Callable
from concurrent.futures import wait as wait_for_futures
from threading import Event as Flag

from bulkinfer.bugs import attempt
from bulkinfer.threads import run_in_thread


class Ticker:
    """Calls `action` every `every_s` seconds, and a last time on `stop`. `tell` is told its errors; it goes on."""

    def __init__(
        self,
        action: Callable[[], None],
        every_s: float,
        name: str,
        tell: Callable[[Exception], None],
        *,
        is_first_at_once: bool = False,
    ) -> None:
        self._action = action
        self._every_s = every_s
        self._tell = tell
        self._is_first_at_once = is_first_at_once
        self._stopped = Flag()
        self._done = run_in_thread(self._run, name)

    def stop(self, limit_s: float) -> bool:
        """Let it do its work a last time. False when that did not end within the limit, or failed."""
        self._stopped.set()
        wait_for_futures([self._done], timeout=limit_s)
        return self._done.done() and self._done.result()

    def _run(self) -> bool:
        if self._is_first_at_once:
            self._act()
        while not self._stopped.wait(self._every_s):
            self._act()
        return self._act()

    def _act(self) -> bool:
        error = attempt(self._action)
        if error is not None:
            self._tell(error)  # the next time may be better
        return error is None
