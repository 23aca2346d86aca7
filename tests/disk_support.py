"""A small disk of the test's own that really fills up, and runs with the limits that fit it.

The disk is a tmpfs in a mount namespace of its own, which needs no root. Whatever shall see it runs inside.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli_support import LIMIT_S, wait_until

# Sets limits that fit a small disk, tells on stderr of each transaction that failed, and is `bulkinfer` otherwise.
DRIVER = """
import json, sys
from dataclasses import replace
__file__ = "driver.py"  # without, DuckDB takes this for a prompt, where it draws progress bars
from bulkinfer.cli import main
from bulkinfer.store import Store, connections, database, paths
settings = json.loads(sys.argv.pop(1))
paths.MIN_FREE_BYTES = 0
database._WRITE_SETTINGS |= settings["database"]
open_store = Store.open
def open_with_limits(*arguments, limits, **named):
    return open_store(*arguments, limits=replace(limits, **settings["limits"]), **named)
Store.open = open_with_limits
attempt = connections.Connections._attempt
def attempt_and_tell(self, transaction):
    try:
        return attempt(self, transaction)
    except Exception as error:
        print("attempt failed:", type(error).__name__, file=sys.stderr, flush=True)
        raise
connections.Connections._attempt = attempt_and_tell
exec(settings["more"])
if __name__ == "__main__":
    main()
"""
QUICK = {"max_wait_s": 0.1, "retry_waits_s": [0.05, 0.1]}


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def summary(self) -> dict[str, Any]:
        """The one object that `--json` prints."""
        found: dict[str, Any] = json.loads(self.stdout)
        return found


@dataclass
class Started:
    """A command that runs."""

    process: subprocess.Popen[str]
    stderr_path: Path

    def wait_for(self, text: str) -> None:
        """Wait until it has said this on stderr."""
        wait_until(lambda: text in self.stderr_path.read_text() or self.process.poll() is not None, text)
        assert text in self.stderr_path.read_text()

    def wait(self) -> Ended:
        """Wait for its end."""
        stdout, _ = self.process.communicate(timeout=LIMIT_S)
        return Ended(self.process.returncode, stdout, self.stderr_path.read_text())


def drive(
    *arguments: str | Path, prefix: tuple[str, ...] = (), more: str = "", **settings: dict[str, Any]
) -> tuple[str, ...]:
    """The command line of a `bulkinfer` with other limits; `more` is code that is run before."""
    given = {"database": settings.get("database", {}), "limits": settings.get("limits", QUICK), "more": more}
    return (*prefix, sys.executable, "-c", DRIVER, json.dumps(given), *map(str, arguments))


@contextmanager
def start(command: tuple[str, ...], stderr_path: Path) -> Iterator[Started]:
    """Start a command; it is ended with the block."""
    with (
        stderr_path.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        try:
            yield Started(process, stderr_path)
        finally:
            process.kill()


class Disk:
    """A tmpfs that only the commands run through this can see."""

    def __init__(self, path: Path, holder: subprocess.Popen[str]) -> None:
        self.path = path
        self._prefix = ("nsenter", "-t", str(holder.pid), "-U", "-m", "--preserve-credentials")
        self._num_started = 0

    def call(self, *arguments: str | Path, more: str = "", **settings: dict[str, Any]) -> Ended:
        """Run `bulkinfer` on it to its end."""
        with self.start(*arguments, more=more, **settings) as started:
            return started.wait()

    def start(
        self, *arguments: str | Path, more: str = "", **settings: dict[str, Any]
    ) -> AbstractContextManager[Started]:
        """Start `bulkinfer` on it."""
        self._num_started += 1
        command = drive(*arguments, prefix=self._prefix, more=more, **settings)
        return start(command, self.path.parent / f"stderr-{self._num_started}")

    def shell(self, line: str) -> str:
        """Run a line of shell in the disk's folder."""
        command = [*self._prefix, "sh", "-c", f"cd {self.path} && {line}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout

    def fill(self, leave_kb: int = 0) -> None:
        """Take all the room there is, but for so much."""
        self.shell("cat /dev/zero > filler 2>/dev/null || true")
        if leave_kb:
            self.shell(f"truncate -s -{leave_kb}K filler")

    def free(self) -> None:
        """Give it back."""
        self.shell("rm filler")

    def read_status(self, name: str = "out.duckdb") -> dict[str, Any]:
        """The status file; empty while there is none."""
        found: dict[str, Any] = json.loads(self.shell(f"cat {name}.status.json 2>/dev/null || echo '{{}}'"))
        return found


@contextmanager
def mount_disk(path: Path, size_kb: int, num_inodes: int = 100) -> Iterator[Disk]:
    """A small disk, for as long as the block lasts. Skips the test where the kernel forbids it."""
    path.mkdir()
    mount = f"mount -t tmpfs -o size={size_kb}k,nr_inodes={num_inodes} tmpfs '{path}' && echo ready && cat"
    with subprocess.Popen(
        ["unshare", "-rm", "sh", "-c", mount],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stderr is not None
        if holder.stdout.readline() != "ready\n":
            pytest.skip(f"no tmpfs in a user namespace here: {holder.stderr.read().strip()}")
        try:
            yield Disk(path, holder)
        finally:
            holder.communicate(timeout=LIMIT_S)
