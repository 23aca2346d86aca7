"""A run that somebody else's process does, looked at once or again and again. To stdout: it is what was asked for."""

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TextIO

from rich.live import Live

from bulkinfer.display.console import is_for_a_view, open_console, print_lines
from bulkinfer.display.standing import describe_in_one_line, describe_status, render_standing
from bulkinfer.records import RunStatus


class StandingDisplay:
    """Shows what `read_standing` found: a view that is drawn again on a terminal, plain lines without one."""

    def __init__(self, *, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._console = open_console(self._stream)
        self._is_live = is_for_a_view(self._console)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> "StandingDisplay":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, found: Mapping[str, Any]) -> None:
        """One look of several."""
        if self._is_live:
            self._live.start()
            self._live.update(render_standing(found, self._console.height), refresh=True)
        else:
            print_lines([f"{time.strftime('%H:%M:%S')} {describe_in_one_line(found)}"], stream=self._stream)
        self._stream.flush()

    def end(self, found: Mapping[str, Any]) -> None:
        """The only look, or the last."""
        self._live.stop()
        if self._is_live:
            self._console.print(
                render_standing(found, self._console.height), soft_wrap=found["status"] != RunStatus.RUNNING
            )
        else:
            print_lines(describe_status(found), stream=self._stream)
