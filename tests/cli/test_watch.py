"""A run that is looked at: its own display and `status --watch`, on terminals of 80 and 200 columns and without one."""

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.cells import cell_len

from bulkinfer.cli.showing import undisturbed
from tests.cli_support import LIMIT_S, OnTerminal, bulkinfer, call, start, wait_until
from tests.conftest import JobFolder, make_documents

VIEW = ["documents ", "tokens ", "queue ", "window ", "KV cache ", "work ", "slowest ", "memory "]


@pytest.fixture
def slow(folder: JobFolder) -> JobFolder:
    """A job that would take minutes: each answer takes half a second; one document fails at once."""
    folder.write_documents([{"id": "none", "body": None}, *make_documents(2_000)])
    simulated = {"clock": "real", "seconds_per_output_token": 0.03, "seconds_per_prompt_token": 0, "output_tokens": 16}
    folder.write_job(engine={"simulated": simulated})
    return folder


@pytest.fixture
def run(slow: JobFolder) -> Iterator["subprocess.Popen[str]"]:
    """A run of it."""
    started = start("run", slow.job_path, "--quiet")
    yield started
    started.kill()
    started.communicate(timeout=LIMIT_S)


def has_trend(screen: OnTerminal) -> bool:
    """Whether a sparkline was drawn, and said how much time it shows."""
    return any(re.search(r"^documents .*[▁-█] \d+ s$", line) for line in screen.lines)


def assert_is_drawn(screen: OnTerminal, columns: int) -> None:
    """The whole view, in place, no line wider than the terminal, and the cursor given back."""
    last = max(number for number, line in enumerate(screen.lines) if line.startswith("memory "))
    assert max(map(cell_len, screen.lines[: last + 1])) <= columns, "what comes after it is plain lines"
    for name in VIEW:
        assert any(line.startswith(name) for line in screen.lines), name
    assert any(line.startswith("window ") and "8 of 8 in flight" in line for line in screen.lines)
    assert has_trend(screen)
    assert any("1 missing_field" in line for line in screen.lines)
    assert any(re.search(r"^slowest +[\d.]+ m?s  d\d+, [\d,]+ characters$", line) for line in screen.lines)
    assert "\x1b[2K" in screen.raw, "it is drawn again in place"
    assert screen.raw.rindex("\x1b[?25h") > screen.raw.rindex("\x1b[?25l"), "the cursor is given back"
    assert "Traceback" not in screen.raw


@pytest.mark.parametrize("columns", [80, 200])
def test_a_run_is_drawn_on_its_terminal(slow: JobFolder, columns: int) -> None:
    with OnTerminal("run", slow.job_path, columns=columns) as screen:
        screen.wait_for("slowest")
        wait_until(
            lambda: any(line.startswith("documents ") and line.endswith(" s") for line in screen.lines), "a trend"
        )
        screen.process.send_signal(signal.SIGINT)
        assert screen.wait() == 130
        assert any(line.startswith("stopping") for line in screen.lines)
        assert_is_drawn(screen, columns)


@pytest.mark.parametrize("columns", [80, 200])
def test_a_run_is_watched_from_before_its_start_until_it_is_killed(slow: JobFolder, columns: int) -> None:
    with OnTerminal("status", slow.job_path, "--watch", "--every", "0.1", columns=columns) as screen:
        screen.wait_for("waiting for a run: no database yet")
        run = start("run", slow.job_path, "--quiet")
        try:
            screen.wait_for(f"running, pid {run.pid} on ")
            wait_until(lambda: has_trend(screen), "a trend")
            screen.wait_for("last commit 2")
        finally:
            run.kill()
            run.communicate(timeout=LIMIT_S)
        assert screen.wait() == 0
        assert any("ended without a word" in line for line in screen.lines[-6:])
        assert_is_drawn(screen, columns)


def test_the_status_of_a_live_run_is_the_same_view_once(slow: JobFolder, run: "subprocess.Popen[str]") -> None:
    wait_until(lambda: "in flight for" in bulkinfer("status", slow.job_path).stdout, "something in flight")
    with OnTerminal("status", slow.job_path, columns=80) as screen:
        assert screen.wait() == 0
        assert [name for name in VIEW if not any(line.startswith(name) for line in screen.lines)] == []
        assert "\x1b[2K" not in screen.raw


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_watch_that_is_ended_gives_the_terminal_back(
    slow: JobFolder, run: "subprocess.Popen[str]", number: signal.Signals, expected: int
) -> None:
    with OnTerminal("status", slow.job_path, "--watch", "--every", "60", columns=80) as screen:
        wait_until(lambda: "\x1b[?25l" in screen.raw or screen.process.poll() is not None, "the view")
        assert screen.process.poll() is None, screen.raw
        screen.process.send_signal(number)
        assert screen.wait() == expected
        assert screen.raw.rindex("\x1b[?25h") > screen.raw.rindex("\x1b[?25l")
        assert "Traceback" not in screen.raw
    assert run.poll() is None, "the run goes on"


def test_a_signal_waits_for_the_view_to_be_drawn_whichever_thread_gets_it() -> None:
    drawn: list[bool] = []
    go = threading.Event()

    def interrupt() -> None:
        go.wait(LIMIT_S)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    def draw() -> None:
        with undisturbed():
            go.set()
            other.join(LIMIT_S)
            drawn.append(True)

    other = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        other.start()
        with pytest.raises(KeyboardInterrupt):
            draw()
    finally:
        signal.signal(signal.SIGINT, before)
    assert drawn == [True]


def test_without_a_terminal_a_watch_is_plain_lines_and_ends_with_the_run(slow: JobFolder) -> None:
    watch = start("status", slow.job_path, "--watch", "--every", "0.1")
    assert watch.stdout is not None
    first = watch.stdout.readline()
    run = start("run", slow.job_path, "--quiet")
    wait_until(lambda: "slowest" in (bulkinfer("status", slow.job_path, "--json").stdout), "something in flight")
    lines = [watch.stdout.readline() for _ in range(2)]
    while "8 of 8 in flight" not in lines[-1]:
        lines.append(watch.stdout.readline())
        assert lines[-1], "it has ended"
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=LIMIT_S)
    rest, errors = watch.communicate(timeout=LIMIT_S)
    assert (watch.returncode, errors) == (0, "")
    assert first[8:] == f" waiting for a run: no database yet; {slow.database}\n"
    assert "\x1b" not in first + "".join(lines) + rest
    assert "test: interrupted, exit code 130\n" in rest


def test_a_dumb_terminal_gets_plain_lines(slow: JobFolder, run: "subprocess.Popen[str]") -> None:
    with OnTerminal("status", slow.job_path, "--watch", "--every", "0.1", columns=80, term="dumb") as screen:
        screen.wait_for("in flight")
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=LIMIT_S)
        assert screen.wait() == 0
        assert "\x1b" not in screen.raw
        assert any("interrupted, exit code 130" in line for line in screen.lines)


def test_watching_in_json_is_one_object_a_line(slow: JobFolder) -> None:
    watch = start("status", slow.job_path, "--watch", "--json", "--every", "0.1")
    assert watch.stdout is not None
    lines = [watch.stdout.readline()]
    run = start("run", slow.job_path, "--quiet")
    while not json.loads(lines[-1]).get("slowest"):
        lines.append(watch.stdout.readline())
    run.kill()
    run.communicate(timeout=LIMIT_S)
    rest, errors = watch.communicate(timeout=LIMIT_S)
    assert (watch.returncode, errors) == (0, "")
    found = [json.loads(line)["status"] for line in [*lines, *rest.splitlines()]]
    assert (found[0], found[-1]) == ("waiting", "killed")
    assert "running" in found


def test_json_of_a_live_run_is_one_object_with_what_the_view_shows(
    slow: JobFolder, run: "subprocess.Popen[str]"
) -> None:
    wait_until(lambda: json.loads(bulkinfer("status", slow.job_path, "--json").stdout).get("slowest"), "a live run")
    found = bulkinfer("status", slow.job_path, "--json")
    assert len(found.stdout.splitlines()) == 1
    status = json.loads(found.stdout)
    assert (status["status"], status["phase"], status["is_answering"]) == ("running", "running", True)
    assert status["window"] == {"in_flight": 8, "capacity": 8}
    assert status["queue"] == {"waiting": 16, "capacity": 16}
    assert set(status["slowest"][0]) == {"document_id", "in_flight_s", "attempt", "num_chars", "replica"}
    assert set(status["trend"]) == {"stretch_s", "documents", "prompt_tokens", "output_tokens"}
    assert set(status["throughput"]) == {"documents_per_s", "prompt_tokens_per_s", "output_tokens_per_s"}
    assert status["documents"]["failed_by_code"] == {"missing_field": 1}


def test_a_run_that_is_stopped_is_said_not_to_answer(slow: JobFolder, run: "subprocess.Popen[str]") -> None:
    wait_until(lambda: Path(f"{slow.database}.status.json").exists(), "the first commit")
    run.send_signal(signal.SIGSTOP)
    try:
        found = bulkinfer("status", slow.job_path)
    finally:
        run.send_signal(signal.SIGCONT)
    assert found.returncode == 0
    assert "it does not answer, so this is as of its last commit" in found.stdout


def test_watching_a_run_that_is_over_says_how_it_ended(folder: JobFolder) -> None:
    folder.write_documents(make_documents(3))
    folder.run()
    found = call("status", str(folder.job_path), "--watch")
    assert (found.exit_code, found.stdout.splitlines()[0]) == (0, "test: completed, exit code 0")


def test_a_damaged_database_is_not_waited_for(folder: JobFolder) -> None:
    folder.write_documents(make_documents(3))
    folder.run()
    folder.database.write_bytes(folder.database.read_bytes()[:4_096] + os.urandom(8_192))
    assert call("status", str(folder.job_path), "--watch").exit_code == 4


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon"])
def test_an_interval_that_is_none_is_refused(folder: JobFolder, seconds: str) -> None:
    found = call("status", str(folder.write_job()), "--watch", "--every", seconds)
    assert (found.exit_code, found.stdout) == (2, "")
