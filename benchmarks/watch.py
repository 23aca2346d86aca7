"""One process, from its start to its end: how long it took, and how much memory it and all that it started held."""

import os
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.peers.base import Command, RunFailed

SAMPLE_EVERY_S = 0.25
TAIL_CHARS = 2000
END_LIMIT_S = 10


@dataclass(frozen=True, slots=True)
class Watched:
    """A process that ended well."""

    wall_s: float
    """From before it was started until it was gone."""
    peak_memory_bytes: int
    """Resident, of the whole tree, read four times a second; pages that two processes share count twice."""
    stdout: str


def run_watched(command: Command, folder: Path, timeout_s: float) -> Watched:
    """Run a command to its end. Raises RunFailed; whatever happens, nothing that it started is left behind."""
    with (folder / "stdout.txt").open("wb") as stdout, (folder / "stderr.txt").open("wb") as stderr:
        start_s = time.monotonic()
        process = subprocess.Popen(
            command.arguments,
            env=dict(os.environ) | dict(command.environment),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        sampler = _Sampler(process.pid)
        try:
            code = process.wait(timeout_s)
            wall_s = time.monotonic() - start_s
        except subprocess.TimeoutExpired:
            raise RunFailed(f"not done within {timeout_s:g} s{_quote(folder)}") from None
        finally:
            sampler.stop()
            end_all(sampler.seen)
            process.wait(END_LIMIT_S)
    if code not in command.good_exit_codes:
        raise RunFailed(f"exit code {code}{_quote(folder)}")
    return Watched(wall_s, sampler.peak_bytes, (folder / "stdout.txt").read_text(encoding="utf-8", errors="replace"))


def end_all(processes: set[psutil.Process]) -> None:
    """Kill those that still run, and wait until they are gone. Children of other sessions are among them."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()  # psutil looks at the start time: a number that was given away again is left alone
    psutil.wait_procs(list(processes), timeout=END_LIMIT_S)


class _Sampler:
    """Reads the memory of a process tree in a thread, and remembers every process that was in it."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._root = psutil.Process(pid)
        self.seen = {self._root}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stopped.wait(SAMPLE_EVERY_S):
            num_bytes = 0
            for process in self._list():
                with suppress(psutil.NoSuchProcess):
                    num_bytes += process.memory_info().rss
            self.peak_bytes = max(self.peak_bytes, num_bytes)

    def _list(self) -> set[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            self.seen.update(self._root.children(recursive=True))
        return {process for process in self.seen if process.is_running()}


def _quote(folder: Path) -> str:
    said = (folder / "stderr.txt").read_text(encoding="utf-8", errors="replace").strip()
    return f"; it said last:\n{said[-TAIL_CHARS:]}" if said else ""
