"""How often and after how long something is tried again. Policies only; the only room that knows tenacity."""

import time
from collections.abc import Callable

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

COMMIT_ATTEMPTS = 3

_RESTART_WAIT = wait_exponential(multiplier=1, exp_base=2, max=60)
_COMMIT_WAIT = wait_exponential(multiplier=0.2, exp_base=4, max=5)


def restart_wait_s(attempt: int) -> float:
    """Seconds to wait before the engine is started again, `attempt` from 1: 1, 2, 4, ... at most 60.

    Growing, because what kills an engine at its start (memory that another program holds) often passes.
    """
    state = RetryCallState(Retrying(), None, (), {})
    state.attempt_number = attempt
    return float(_RESTART_WAIT(state))


def retry_commit(retry_on: type[Exception], *, sleep: Callable[[float], None] = time.sleep) -> Retrying:
    """Call a commit up to three times, 0.2 s and 0.8 s apart, as long as it raises `retry_on`.

    Used as `retry_commit(SomeError)(commit, rows)`. The last error is raised as it is, any other at once. A commit that
    raised may still have happened: what is called must be safe to repeat.
    """
    return Retrying(
        stop=stop_after_attempt(COMMIT_ATTEMPTS),
        wait=_COMMIT_WAIT,
        retry=retry_if_exception_type(retry_on),
        sleep=sleep,
        reraise=True,
    )
