"""The command line in the test's own process, for those that call it often."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

import pytest

from bulkinfer.cli import main


@dataclass(frozen=True)
class Called:
    """What a command did."""

    exit_code: int
    stdout: str
    stderr: str


def call(*arguments: str) -> Called:
    """Run a command. An error that nobody caught ends the test, as it would end the program with a traceback."""
    out, err = io.StringIO(), io.StringIO()
    argv = patch.object(sys, "argv", ["bulkinfer", *arguments])
    with argv, redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
        main()
    return Called(int(end.value.code or 0), out.getvalue(), err.getvalue())
