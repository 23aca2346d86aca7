"""The command line for tests: as a process of its own, and in the test's own for those that call it often."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest

from bulkinfer.cli import main

LIMIT_S = 60.0


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


def bulkinfer(*arguments: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end, without a terminal."""
    command = [sys.executable, "-m", "bulkinfer", *map(str, arguments)]
    environment = {**os.environ, **env}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    """Start the command line and go on."""
    command = [sys.executable, "-m", "bulkinfer", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition, with a limit."""
    until = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until, f"waited {LIMIT_S} s for {what}"
        time.sleep(0.02)


class OnTerminal:
    """A command on a terminal of so many columns and 24 lines; all that it writes there is kept."""

    def __init__(self, *arguments: str | Path, columns: int, term: str = "xterm-256color") -> None:
        self._screen, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {
            name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}
        }
        command = [sys.executable, "-m", "bulkinfer", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment | {"TERM": term}
        )
        os.close(terminal)
        self._written = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> "OnTerminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        os.close(self._screen)

    @property
    def raw(self) -> str:
        """All that it wrote, escape codes and all."""
        return self._written.decode(errors="replace")

    @property
    def lines(self) -> list[str]:
        """The lines that it drew, again and again, without escape codes."""
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.raw)
        return [line.rstrip() for line in re.split(r"[\r\n]+", plain)]

    def wait_for(self, text: str) -> None:
        """Until it has written this."""
        wait_until(lambda: any(text in line for line in self.lines) or self.process.poll() is not None, text)
        assert any(text in line for line in self.lines), self.raw

    def wait(self) -> int:
        """Its exit code, once all is read."""
        code = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        return code

    def _read(self) -> None:
        while True:
            try:
                read = os.read(self._screen, 65_536)
            except OSError:  # EIO: nobody has the terminal open any more
                return
            if not read:
                return
            self._written += read
