"""What happens around a run: outputs that cannot be written, files that vanish, signals while templates render."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli_support import LIMIT_S, bulkinfer, start, wait_until
from tests.conftest import JobFolder, make_documents


@pytest.fixture
def done(folder: JobFolder) -> JobFolder:
    """A job that ran."""
    folder.write_documents(make_documents(20))
    folder.run()
    return folder


def shell(command: str, folder: JobFolder, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in the job's folder; `$B` is the command line."""
    env = {**os.environ, **environment, "B": f"{sys.executable} -m bulkinfer"}
    return subprocess.run(
        ["bash", "-c", command], cwd=folder.path, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("$B run job.yaml --json > /dev/full", 2),
        ("$B status job.yaml > /dev/full", 2),
        ("$B query job.yaml 'select 1' --format json > /dev/full", 2),
        ("$B run job.yaml 2> /dev/full", 0),
        ("$B status job.yaml 2> /dev/full", 0),
        ("$B run job.yaml --json >&-", 0),
        ("$B query job.yaml 'select 1' >&-", 0),
        ("$B failures job.yaml >&- 2>&-", 0),
        ("$B run job.yaml --json | true; exit ${PIPESTATUS[0]}", 0),
        ("$B status job.yaml | true; exit ${PIPESTATUS[0]}", 0),
        ("$B --help | true; exit ${PIPESTATUS[0]}", 0),
    ],
)
def test_an_output_that_cannot_be_written_is_no_traceback(done: JobFolder, command: str, expected: int) -> None:
    found = shell(command, done)
    assert found.returncode == expected, found.stderr
    assert "Traceback" not in found.stderr
    assert "Exception ignored" not in found.stderr


def test_without_stderr_stdout_is_still_one_json_object(done: JobFolder) -> None:
    found = shell("$B run job.yaml --json 2>&-", done)
    assert found.stdout.startswith('{"job":"test"')
    assert len(found.stdout.splitlines()) == 1


def test_an_encoding_that_lacks_characters_shows_them_escaped(done: JobFolder) -> None:
    found = shell("$B query job.yaml 'select chr(233) as c'", done, PYTHONIOENCODING="ascii")
    assert (found.returncode, found.stdout) == (0, "c\n\\xe9\n")


def test_without_a_terminal_query_separates_by_tabs(done: JobFolder) -> None:
    assert shell("$B query job.yaml 'select 1 a, 2 b'", done).stdout == "a\tb\n1\t2\n"


def test_two_columns_of_one_name_are_two_keys(done: JobFolder) -> None:
    assert shell("$B query job.yaml 'select 1 a, 2 a' --format json", done).stdout == '[{"a":1,"a:1":2}]\n'


@pytest.mark.parametrize(
    "loss", ["rm {0}", "mv {0} {0}.away", "truncate -s 0 {0}", "cp {0} {0}.copy && mv {0}.copy {0}"], ids=str.split
)
def test_a_database_that_vanishes_under_the_run_is_exit_code_4(folder: JobFolder, loss: str) -> None:
    folder.write_documents(make_documents(3_000))
    simulated = {"clock": "real", "seconds_per_output_token": 0.01, "output_tokens": 10, "seconds_per_prompt_token": 0}
    folder.write_job(engine={"simulated": simulated}, limits={"max_concurrency": 100})
    run = start("run", folder.job_path)
    try:
        status = Path(f"{folder.database}.status.json")
        wait_until(lambda: status.exists() and '"num_commits":0' not in status.read_text(), "the first commit")
        subprocess.run(["bash", "-c", loss.format(folder.database)], check=True, timeout=LIMIT_S)
        _, stderr = run.communicate(timeout=LIMIT_S)
    finally:
        run.kill()
    assert run.returncode == 4, stderr
    assert str(folder.database) in stderr
    assert "Traceback" not in stderr


def test_signals_end_a_run_whose_templates_are_slow(folder: JobFolder) -> None:
    folder.write_documents(make_documents(2_000))
    loop = '{% for i in "x" * 300000 %}{% if i == "y" %}a{% endif %}{% endfor %}'
    run = start("run", folder.write_job(prompt={"user": "{{ body }}" + loop}))
    status = Path(f"{folder.database}.lock")
    try:
        wait_until(status.exists, "the run to hold its database")
        time.sleep(0.5)  # into the planning, of which nothing shows outside
        run.send_signal(signal.SIGTERM)
        _, stderr = run.communicate(timeout=20)
    finally:
        run.kill()
    assert run.returncode == 143, stderr


_IMPORTING = """
import sys, threading

class Wait:
    def find_spec(self, name, *_):
        if name == WHERE:
            print("importing", file=sys.stderr, flush=True)
            threading.Event().wait()

sys.meta_path.insert(0, Wait())
sys.argv = ["bulkinfer", "run", "job.yaml"]
from bulkinfer.__main__ import main
main()
"""


@pytest.mark.parametrize("where", ["typer", "bulkinfer.display", "bulkinfer.runner"])
@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_the_imports_ends_it_without_a_word(number: signal.Signals, expected: int, where: str) -> None:
    command = [sys.executable, "-c", _IMPORTING.replace("WHERE", repr(where))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        assert run.stderr.readline() == "importing\n"
        run.send_signal(number)
        assert run.communicate(timeout=LIMIT_S) == ("", "")
    assert run.returncode == expected


_PLANNING = """
import sys, threading
import bulkinfer.runner
from bulkinfer.cli import main

def plan_for_ever(*_):
    print("planning", file=sys.stderr, flush=True)
    threading.Event().wait()

bulkinfer.runner.plan_run = plan_for_ever
sys.argv = ["bulkinfer", "run", sys.argv[1], "--json"]
main()
"""


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_before_the_run_has_begun_is_told_like_any_other(
    folder: JobFolder, number: signal.Signals, expected: int
) -> None:
    command = [sys.executable, "-c", _PLANNING, str(folder.write_job())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        assert run.stderr.readline() == "planning\n"
        run.send_signal(number)
        out, err = run.communicate(timeout=LIMIT_S)
    assert run.returncode == expected, err
    told = json.loads(out)
    assert (told["status"], told["exit_code"]) == ("interrupted", expected)
    assert "Traceback" not in err
    assert not folder.database.exists()


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e9", "-1", "0.1", "soon"])
def test_odd_numbers_of_seconds_are_refused(done: JobFolder, seconds: str) -> None:
    found = bulkinfer("query", done.job_path, "select 1", "--timeout", seconds)
    assert (found.returncode, "Traceback" in found.stderr) == (2, False)
    grace = bulkinfer("run", done.job_path, "--grace", seconds)
    assert (grace.returncode, "Traceback" in grace.stderr) == (0 if seconds == "0.1" else 2, False)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--set", "output.database=/"], 4),
        (["--set", 'prompt.user="{{ body }}{{ 1e400 | int }}"'], 5),
        (["--only", "failed"], 2),
    ],
)
def test_odd_settings_have_a_message(folder: JobFolder, arguments: list[str], expected: int) -> None:
    folder.write_documents(make_documents(3))
    found = bulkinfer("run", folder.write_job(), *arguments)
    assert found.returncode == expected, found.stderr
    assert "Traceback" not in found.stderr


def test_a_text_that_does_not_fit_its_tag_has_a_message(folder: JobFolder) -> None:
    folder.job_path.write_text('name: a\nsampling: {max_tokens: !!int "_"}\n')
    found = bulkinfer("run", folder.job_path)
    assert found.returncode == 2
    assert "Traceback" not in found.stderr


def test_a_working_folder_that_is_gone_has_a_message(done: JobFolder) -> None:
    found = shell("mkdir gone && cd gone && rmdir ../gone && $B run ../job.yaml", done)
    assert found.returncode == 2
    assert "Traceback" not in found.stderr
