"""Waiting for a disk with a limit: what hangs in it cannot be stopped, only left behind."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bulkinfer.errors import StoreStalled
from bulkinfer.threads import run_in_thread

_T = TypeVar("_T")


def run_within(limit_s: float, action: Callable[[], _T]) -> _T:
    """Run it in a thread of its own and return its result, or raise its error.

    Raises TimeoutError after `limit_s`. The thread then goes on; it does not keep the process from ending.
    """
    return run_in_thread(action, "bulkinfer-disk").result(limit_s)


def stalled_error(database: Path, limit_s: float) -> StoreStalled:
    """The error for a disk that has not answered for `limit_s`."""
    return StoreStalled(
        f"{database}: the disk, or the network file system, did not answer for {limit_s:g} s. What is committed is "
        "safe; mend that and run again to resume"
    )
