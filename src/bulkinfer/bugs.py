"""What is said of a bug: where it is and of which kind, without the error's text, which may quote a document.

And how a bug in what a run can do without is kept from the run.
"""

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

from bulkinfer import __version__

_T = TypeVar("_T")
DEBUG_VARIABLE = "BULKINFER_DEBUG"
"""Set to 1, tracebacks are whole."""


@contextmanager
def told_without_text() -> Iterator[None]:
    """Within it, and after it for what ends the program: errors that nobody caught are told without their texts."""
    if os.environ.get(DEBUG_VARIABLE) == "1":
        yield
        return
    hooks = threading.excepthook, sys.unraisablehook
    threading.excepthook = lambda found: print_bug(found.exc_type, found.exc_value, found.exc_traceback)
    sys.unraisablehook = lambda found: print_bug(found.exc_type, found.exc_value, found.exc_traceback)
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = hooks
        # Last, as Typer has put in its own. Python calls it after all else, so it stays.
        sys.excepthook = print_bug


def attempt(step: Callable[[], _T]) -> _T | Exception:
    """What a step returns that a run can do without, or whatever it raised."""
    try:
        return step()
    except Exception as error:  # noqa: BLE001 - the caller tells of it, and goes on
        return error


def print_bug(kind: type[BaseException], error: BaseException | None, frames: TracebackType | None) -> None:
    """The traceback to stderr, as Python prints it, but for the texts of the errors. A Ctrl-C is no bug."""
    if sys.stderr is not None and not issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("".join(_describe(kind, error, frames)))


def _describe(kind: type[BaseException], error: BaseException | None, frames: TracebackType | None) -> Iterator[str]:
    for reason in reversed(_reasons(error)):
        yield from _describe_one(type(reason), reason.__traceback__)
        yield "\nThat led to:\n\n"
    yield from _describe_one(kind, frames)
    yield (
        f"This is a bug in bulkinfer {__version__}; please report it. The text of the error is left out, as it may "
        f"quote a document: {DEBUG_VARIABLE}=1 shows it.\n"
    )


def _reasons(error: BaseException | None) -> list[BaseException]:
    """What was raised before, the last first."""
    found: list[BaseException] = []
    reason = error
    while reason is not None:
        reason = reason.__cause__ or (None if reason.__suppress_context__ else reason.__context__)
        if reason is None or reason in found or reason is error:
            break
        found.append(reason)
    return found


def _describe_one(kind: type[BaseException], frames: TracebackType | None) -> Iterator[str]:
    yield "Traceback (most recent call last):\n"
    yield from traceback.format_tb(frames)
    yield f"{kind.__module__}.{kind.__qualname__}\n"
