"""The program: `bulkinfer`, and `python -m bulkinfer` for where the console script is not on the path."""

import os
import signal
from types import FrameType
from typing import NoReturn


def main() -> None:
    """Run the command line. While it is imported, SIGINT and SIGTERM end the process at once: it holds nothing yet.

    Otherwise an interrupt within an import shows a traceback, or is lost; and process 1 of a container ignores a
    SIGTERM that it does not handle.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    from bulkinfer.cli import main as run_command_line  # noqa: PLC0415 - after the handlers

    run_command_line()


def _leave(signal_number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(128 + signal_number)


if __name__ == "__main__":
    main()
