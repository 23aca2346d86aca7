"""How often and after how long something is tried again. Policies only; the only room that knows tenacity."""

import time
from collections.abc import Callable, Sequence

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    retry_if_exception_type,
    stop_after_attempt,
    wait_chain,
    wait_exponential,
    wait_fixed,
    wait_none,
)

_RESTART_WAIT = wait_exponential(multiplier=1, exp_base=2, max=60)


def restart_wait_s(attempt: int) -> float:
    """Seconds to wait before the engine is started again, `attempt` from 1: 1, 2, 4, ... at most 60.

    Growing, because what kills an engine at its start (memory that another program holds) often passes.
    """
    state = RetryCallState(Retrying(), None, (), {})
    state.attempt_number = attempt
    return float(_RESTART_WAIT(state))


def retry_commit(
    waits_s: Sequence[float], retry_on: tuple[type[Exception], ...], *, sleep: Callable[[float], None] = time.sleep
) -> Retrying:
    """Call a commit again, after each of the given waits (seconds), as long as it raises one of `retry_on`.

    Used as `retry_commit(waits_s, (SomeError,))(commit, rows)`. The last error is raised as it is, any other at once. A
    commit that raised may still have happened: what is called must be safe to repeat.
    """
    return _retry_after(waits_s, retry_if_exception_type(retry_on), sleep)


def retry_passing(
    waits_s: Sequence[float],
    is_passing: Callable[[BaseException], bool],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Retrying:
    """As `retry_commit`, as long as it raises what may pass; anything else is raised at once."""
    return _retry_after(waits_s, retry_if_exception(is_passing), sleep)


def _retry_after(waits_s: Sequence[float], retry: retry_if_exception, sleep: Callable[[float], None]) -> Retrying:
    return Retrying(
        stop=stop_after_attempt(1 + len(waits_s)),
        wait=wait_chain(*map(wait_fixed, waits_s)) if waits_s else wait_none(),
        retry=retry,
        sleep=sleep,
        reraise=True,
    )
