"""A whole run is killed again and again; run to its end, it has what an undisturbed run has, and left no process."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from bulkinfer.store import Reader, read_status
from tests.conftest import JobFolder, make_documents

LIMIT_S = 30.0
NUM_DIFFERENT = 400

# 8 at a time take about 0.4 s: all would take 20 s, so that no run ends before it is killed.
SLOW: dict[str, Any] = {"seconds_per_output_token": 0.05}
FAST: dict[str, Any] = {"seconds_per_output_token": 0}

# How many commits the run has made when it is killed, how long after that at most, and who is killed. An engine that is
# killed before its first commit may be loading still: then the run would rightly end.
KILLS = (
    (0, 0.0, "runner"),
    (1, 0.3, "runner"),
    (1, 0.5, "engine"),
    (1, 0.1, "runner"),
    (0, 1.5, "runner"),
    (1, 1.0, "engine"),
    (2, 0.5, "runner"),
    (0, 1.5, "runner"),
)

BAD_LINES = (
    b'{"id": "broken", "body": "no end',
    b'["an", "array"]',
    b'{"id": "missing"}',
    b'{"id": "empty", "body": " "}',
    b'{"id": "utf8", "body": "\xff"}',
)
RESULTS = "select document_hash, output from results order by document_hash"
FAILURES = "select document_hash, code, message from failures order by document_hash"
ANSWERS = "select document_id, row, output from answers order by row"


@dataclass(slots=True)
class Watch:
    """The status files that one run has written so far, seen from outside."""

    folder: JobFolder
    pid: int
    num_succeeded: list[int] = field(default_factory=list)
    """By commit. Those counted in one commit's status are on disk by the next: an answer may be just on its way."""
    _seen: str = ""

    def count_commits(self) -> int:
        """Look now."""
        status: Any = read_status(self.folder.database)
        if status is not None and status["pid"] == self.pid and status["updated_at"] != self._seen:
            self._seen = status["updated_at"]
            self.num_succeeded.append(status["documents"]["succeeded"])
        return len(self.num_succeeded)

    @property
    def num_acknowledged(self) -> int:
        """Answers of this run that are on disk for sure."""
        return self.num_succeeded[-2] if len(self.num_succeeded) > 1 else 0


@pytest.mark.timeout(180)
def test_a_run_that_is_killed_again_and_again_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    folder = make_job(tmp_path / "killed", SLOW)
    dice = random.Random(20260101)
    kept: set[tuple[object, ...]] = set()
    num_acknowledged = 0
    for num_commits, within_s, victim in KILLS:
        num_acknowledged = run_and_kill(folder, num_commits, within_s * dice.random(), victim)
        found = set(select(folder, RESULTS))
        assert kept <= found, "what was on disk once stays as it was"
        assert len(found) >= len(kept) + num_acknowledged
        assert num_commits == 0 or len(found) > len(kept)
        check_single(folder)
        kept = found
    assert 50 < len(kept) < NUM_DIFFERENT, "each kill was in the middle of the work"

    documents = run_to_end(folder)["documents"]
    assert (documents["already_done"] >= len(kept), documents["succeeded"]) == (True, NUM_DIFFERENT - len(kept))
    assert kept <= set(select(folder, RESULTS))
    check_single(folder)

    undisturbed = make_job(tmp_path / "undisturbed", FAST)
    assert run_to_end(undisturbed)["documents"]["succeeded"] == NUM_DIFFERENT
    for sql in (RESULTS, FAILURES, ANSWERS):
        assert select(folder, sql) == select(undisturbed, sql)
    assert len(select(folder, FAILURES)) == len(BAD_LINES)


def make_job(path: Path, speed: dict[str, Any]) -> JobFolder:
    """400 different documents, 40 of them twice, and bad lines."""
    path.mkdir()
    folder = JobFolder(path)
    documents = make_documents(NUM_DIFFERENT)
    lines = folder.write_documents([*documents, *documents[100:140]]).read_bytes().splitlines()
    for number, line in enumerate(BAD_LINES):
        lines.insert(number * 90, line)
    folder.input.write_bytes(b"\n".join(lines) + b"\n")
    write_job(folder, speed)
    return folder


def write_job(folder: JobFolder, speed: dict[str, Any]) -> None:
    simulated = {"clock": "real", "in_child": True, "seconds_per_prompt_token": 0, "output_tokens": 8}
    folder.write_job(limits={"max_concurrency": 8}, engine={"kind": "simulated", "simulated": simulated | speed})


def run_and_kill(folder: JobFolder, num_commits: int, after_s: float, victim: str) -> int:
    """Start the job and kill it `after_s` seconds after a commit; return how many answers it had on disk for sure.

    A killed engine is started again, and the runner is killed then.
    """
    with start(folder) as process:
        runner = psutil.Process(process.pid)
        engine = find_engine(runner)
        watch = Watch(folder, process.pid)
        wait_until(lambda: watch.count_commits() >= num_commits, f"{num_commits} commits")
        until_s = time.monotonic() + after_s
        wait_until(lambda: watch.count_commits() >= 0 and time.monotonic() > until_s, "the moment")
        left = [runner, engine]
        if victim == "engine":
            engine.kill()
            wait_until(lambda: not is_running(engine), "the end of the engine")
            left.append(find_engine(runner))
            watch.count_commits()
        process.kill()
        assert process.wait(timeout=LIMIT_S) == -signal.SIGKILL, "it had not ended by itself"
    wait_until(lambda: not any(map(is_running, left)), "the end of all its processes", limit_s=5.0)
    return watch.num_acknowledged


def run_to_end(folder: JobFolder) -> dict[str, Any]:
    """Run the job with a faster engine, which is no other task, and return its summary."""
    write_job(folder, FAST)
    with start(folder) as process:
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    summary: dict[str, Any] = json.loads(out)
    return summary


def start(folder: JobFolder) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bulkinfer", "run", str(folder.job_path), "--json", "--quiet"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def find_engine(runner: psutil.Process) -> psutil.Process:
    """The runner's child, once it is there."""
    found: list[psutil.Process] = []

    def has_child() -> bool:
        assert is_running(runner), "the run ended by itself"
        found[:] = [child for child in runner.children() if is_running(child)]
        return bool(found)

    wait_until(has_child, "an engine")
    return found[0]


def is_running(process: psutil.Process) -> bool:
    """Whether it still runs; a process that has ended and is not reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(is_true: Callable[[], bool], what: str, *, limit_s: float = LIMIT_S) -> None:
    until_s = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < until_s, f"waited {limit_s} s for {what}"
        time.sleep(0.01)


def check_single(folder: JobFolder) -> None:
    """No document has two answers, or an answer and a failure."""
    twice = "select 1 from results group by task_fingerprint, document_hash having count(*) > 1"
    both = "select 1 from results join failures using (task_fingerprint, document_hash)"
    assert select(folder, twice) + select(folder, both) == []
    assert select(folder, "select count(distinct task_fingerprint) <= 1 from results") == [(True,)]


def select(folder: JobFolder, sql: str) -> list[tuple[object, ...]]:
    with Reader.open(folder.database) as reader:
        return list(reader.query(sql).rows)
