"""A job whose runs are killed: starting them, and keeping account of what each left."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

from bulkinfer.errors import ExitCode
from bulkinfer.job import load_job
from bulkinfer.runner import RunOptions, plan_run, run_job
from tests.conftest import JobFolder
from tests.crash.evidence import (
    TAG,
    Findings,
    Journal,
    Snapshot,
    compare,
    find_living,
    read_journal,
    read_snapshot,
    wait_for_end,
)
from tests.crash.points import Orders

LIMIT_S = 60.0
PLAIN_LIMIT_S = 600.0

BAD_LINES = (
    b'{"id": "broken", "body": "no end',
    b'["an", "array"]',
    b'{"id": "missing"}',
    b'{"id": "empty", "body": " "}',
    b'{"id": "utf8", "body": "\xff"}',
)
# Every 20th document is refused by the engine, every 20th cut: commits hold failures too.
FAULTS = [{"match": "refuse", "kind": "reject"}, {"match": "cut", "kind": "truncate"}]
MARKS = {7: "refuse", 13: "cut"}


class PlainRunFailedError(Exception):
    """A run that nobody disturbed did not go on where the killed one had stopped."""

    def __init__(self, returncode: int | None, errors: str) -> None:
        super().__init__(f"the run after a kill ended with {returncode}: {errors}")
        self.returncode = returncode


@dataclass(slots=True)
class Killed:
    """A run that was started to be killed."""

    process: subprocess.Popen[str]
    orders: Orders
    tag: str
    errors_path: Path

    def read_journal(self) -> Journal:
        """As far as it is written."""
        return read_journal(self.orders.journal_path)

    def read_errors(self) -> str:
        """The last of what it said."""
        return self.errors_path.read_text(encoding="utf-8", errors="replace")[-2000:]

    def end(self) -> None:
        """Kill what is left, by process id."""
        for pid in {self.process.pid, *find_living(self.tag)}:
            if pid != self.process.pid or self.process.poll() is None:
                _kill(pid)
        self.process.wait(LIMIT_S)


@dataclass(slots=True)
class Trial:
    """A job folder, and what is known to be in its database."""

    folder: JobFolder
    snapshot: Snapshot = field(default_factory=Snapshot)
    num_runs: int = 0

    def start(self, orders: Orders) -> Killed:
        """Start a run under orders, whose paths are filled in here."""
        self.num_runs += 1
        journal_path = self.folder.path / f"journal.{self.num_runs}"
        orders = replace(orders, database=self.folder.database, journal_path=journal_path)
        return self._start(["tests.crash.killable", orders.encode()], orders, f"stderr.{self.num_runs}")

    def check(self, killed: Killed) -> tuple[Findings, list[int]]:
        """Once its runner has ended: what is wrong in the database, and the processes that did not end in 5 s."""
        living = wait_for_end(killed.tag)
        now = read_snapshot(self.folder.database)
        findings = compare(self.snapshot, killed.read_journal().acknowledged, now)
        self.snapshot = now
        return findings, living

    def complete(self, *, in_process: bool = False) -> Findings:
        """Run the job to its end, plainly; what is wrong then. Raises PlainRunFailedError."""
        if in_process:
            self._run_here()
        else:
            self._run_plainly()
        before, self.snapshot = self.snapshot, read_snapshot(self.folder.database)
        return compare(before, frozenset(), self.snapshot)

    def _run_here(self) -> None:
        report = run_job(plan_run(load_job(self.folder.job_path)), RunOptions(), lambda _: None)
        if report.exit_code is not ExitCode.OK:
            raise PlainRunFailedError(report.exit_code, str(report.error))

    def _run_plainly(self) -> None:
        plain = self._start(["bulkinfer"], Orders(), "stderr.complete")
        try:
            returncode = plain.process.wait(PLAIN_LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise PlainRunFailedError(None, f"not within {PLAIN_LIMIT_S:g} s") from error
        finally:
            plain.end()
        if returncode != ExitCode.OK:
            raise PlainRunFailedError(returncode, plain.read_errors())

    def _start(self, module: list[str], orders: Orders, errors_name: str) -> Killed:
        tag = uuid4().hex
        errors_path = self.folder.path / errors_name
        with errors_path.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", *module, "run", str(self.folder.job_path), "--quiet"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                text=True,
                env=_clean_environment() | {TAG: tag},
                start_new_session=True,  # Ctrl-C is for whoever kills
            )
        return Killed(process, orders, tag, errors_path)


def write_documents(folder: JobFolder, num_different: int) -> None:
    """Different documents, every tenth of them twice, and the bad lines."""
    lines = [
        b'{"id": "d%d", "body": "document %d %s %s"}'
        % (number, number, MARKS.get(number % 20, "").encode(), b"word " * (number % 37))
        for number in range(num_different)
    ]
    lines += lines[::10]
    for number, line in enumerate(BAD_LINES):
        lines.insert((number + 1) * num_different // 7, line)
    folder.input.write_bytes(b"\n".join(lines) + b"\n")


def write_simulated_job(
    folder: JobFolder, *, seconds_per_token: float, max_tokens: int = 16, output_tokens: int | None = None
) -> None:
    """A job on the simulated engine in a child. Its speed is no part of what decides an answer."""
    simulated = {
        "clock": "real",
        "in_child": True,
        "seconds_per_prompt_token": 0,
        "seconds_per_output_token": seconds_per_token,
        "output_tokens": output_tokens,
        "faults": FAULTS,
    }
    folder.write_job(
        sampling={"max_tokens": max_tokens},
        limits={"max_concurrency": 8, "max_context_tokens": max_tokens + 512},
        engine={"kind": "simulated", "simulated": simulated},
    )


def _clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("BULKINFER_", "VLLM_"))}


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
