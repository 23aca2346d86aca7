"""A bug is told with its place and its kind; what the error says is left out, as it may quote a document."""

import subprocess
import sys
from pathlib import Path

import pytest

from bulkinfer.bugs import attempt

SECRET = "zqsecretdocument"
SCRIPT = """
import os, sys, threading
import bulkinfer.cli as cli
import bulkinfer.job

document = os.environ["DOCUMENT"]

class Loud:
    def __del__(self):
        raise ValueError(document)

def in_thread():
    raise ValueError(document)

def fail_in_a_chain():
    try:
        {}[document]
    except KeyError as error:
        error.add_note(document)
        raise RuntimeError(document) from error

def fail_in_a_thread():
    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    raise SystemExit(0)

def fail_at_an_end():
    Loud()
    raise SystemExit(0)

places = {"chain": fail_in_a_chain, "thread": fail_in_a_thread, "end": fail_at_an_end}
bulkinfer.job.load_job = lambda *_: places[os.environ["PLACE"]]() if os.environ["PLACE"] in places else {}[document]
sys.argv = ["bulkinfer", "run", "job.yaml"]
cli.main()
"""


def run_with_bug(tmp_path: Path, place: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "bug.py"
    path.write_text(SCRIPT)
    env = {"PYTHONPATH": ":".join(sys.path), "DOCUMENT": SECRET, "PLACE": place, **environment}
    return subprocess.run([sys.executable, path], env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("place", "exit_code", "kinds"),
    [
        ("main", 1, ["builtins.KeyError"]),
        ("chain", 1, ["builtins.KeyError", "builtins.RuntimeError"]),
        ("thread", 0, ["builtins.ValueError"]),
        ("end", 0, ["builtins.ValueError"]),
    ],
)
def test_a_bug_shows_where_and_what_kind_and_no_text(
    tmp_path: Path, place: str, exit_code: int, kinds: list[str]
) -> None:
    found = run_with_bug(tmp_path, place)
    assert found.returncode == exit_code
    assert SECRET not in found.stdout + found.stderr
    assert "bug.py" in found.stderr
    assert [line for line in found.stderr.splitlines() if line.startswith("builtins.")] == kinds
    assert "This is a bug in bulkinfer" in found.stderr


@pytest.mark.parametrize("place", ["main", "chain", "thread", "end"])
def test_the_text_is_shown_on_request(tmp_path: Path, place: str) -> None:
    assert SECRET in run_with_bug(tmp_path, place, BULKINFER_DEBUG="1").stderr


def test_what_a_run_can_do_without_gives_its_result_or_its_fault_and_no_end() -> None:
    fault = LookupError()

    def fail(error: BaseException) -> int:
        raise error

    assert attempt(lambda: 3) == 3
    assert attempt(lambda: fail(fault)) is fault
    with pytest.raises(KeyboardInterrupt):
        attempt(lambda: fail(KeyboardInterrupt()))
