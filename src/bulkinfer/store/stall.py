"""Waiting for a disk with a limit: what hangs in a write cannot be stopped, only left behind."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")


def run_within(limit_s: float, action: Callable[[], _T]) -> _T:
    """Run it in a thread of its own and return its result, or raise its error.

    Raises TimeoutError after `limit_s`. The thread then goes on, and would hold up the end of the process.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="bulkinfer-store-once")
    try:
        return pool.submit(action).result(limit_s)
    finally:
        pool.shutdown(wait=False)
