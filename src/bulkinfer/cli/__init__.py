"""The command line: parse, load, call, render. One place maps errors to exit codes.

Heavy imports wait until a command needs them: `bulkinfer --help` answers at once.

app      the program itself, and what its commands share: options, targets, errors as JSON
drafting init
running  run, plan
flags    a job of flags alone, for run
sweeping sweep
showing  status, failures, query, export, report
upkeep   repair, schema, doctor
"""

import io
import os
import sys
from typing import Any, NoReturn

import typer

from bulkinfer.bugs import told_without_text
from bulkinfer.cli import drafting, running, showing, sweeping, upkeep  # noqa: F401  # their commands; help shows them in this order
from bulkinfer.cli.app import app
from bulkinfer.errors import BulkinferError, ExitCode, StoreStalled
from bulkinfer.streams import Output

__all__ = ["app", "main"]

UsageError: Any = typer.BadParameter.__mro__[1]
"""Of every wrong command line. Typer exports no name for it, and where it lives depends on Typer's version."""


def main() -> None:
    """The console script: maps every error to the contract's exit code. What is unknown is a bug, with a traceback."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Output(sys.stdout, is_data=True), Output(sys.stderr, is_data=False)
    try:
        with told_without_text():
            sys.exit(_run_app())
    finally:
        sys.stdout, sys.stderr = streams


def _run_app() -> int:
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except UsageError as error:
        from bulkinfer.display import print_lines

        text = io.StringIO()
        error.show(text)
        print_lines(text.getvalue().splitlines())
        return ExitCode.USAGE
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.SIGINT
    except BulkinferError as error:
        from bulkinfer.display import print_error

        if str(error):
            print_error(str(error))
        if isinstance(error, StoreStalled):
            _leave_at_once(error.exit_code)
        return error.exit_code
    return code if isinstance(code, int) else ExitCode.OK


def _leave_at_once(code: int) -> NoReturn:
    """A thread hangs in the database: to end in order would mean to wait for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
