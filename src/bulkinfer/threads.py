"""A thread with a result. Not of a pool: Python waits for a pool's threads at its end, however long one hangs."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


def run_in_thread(action: Callable[[], _T], name: str) -> Future[_T]:
    """Start it in a thread of its own that does not keep the process from ending. What it raises, the future raises."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(action())
        except BaseException as error:  # noqa: BLE001 - the future hands it on
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
