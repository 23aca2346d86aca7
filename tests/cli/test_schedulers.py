"""Starts by schedulers: the lines of docs/schedulers.md as they are run there, and starts that overlap."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from bulkinfer.errors import ExitCode
from bulkinfer.store import Reader, read_holder, read_status
from tests.cli_support import LIMIT_S, start, wait_until
from tests.conftest import ROOT, JobFolder, make_documents
from tests.metrics_support import read_samples

DOCUMENT = (ROOT / "docs" / "schedulers.md").read_text(encoding="utf-8")
PROGRAM = "/opt/bulkinfer/.venv/bin/bulkinfer"
FOLDER = "/srv/tickets"
TEXTFILES = "/var/lib/node_exporter"
SIMPLE, QUIET, MEASURED = re.findall(r"^ {4}\S+ \S+ \S+ \S+ \S+ (.*/bulkinfer run .*)$", DOCUMENT, re.MULTILINE)
"""The commands of the crontab lines."""
ENDLESS = {"clock": "real", "in_child": True, "seconds_per_output_token": 600}


@dataclass(frozen=True, slots=True)
class Site:
    """Where a line of the document is tried: its paths lead into the folder of a test."""

    job: JobFolder

    def place(self, text: str) -> str:
        """The text with paths that are there."""
        text = text.replace(PROGRAM, str(self.job.path / "bulkinfer"))
        return text.replace(FOLDER, str(self.job.path)).replace(TEXTFILES, str(self.job.path))

    def cron(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command as cron does: with /bin/sh, in the home folder, with next to nothing in the environment."""
        few = {"HOME": str(self.job.path), "LOGNAME": "somebody", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}
        return subprocess.run(
            ["/bin/sh", "-c", self.place(command)],
            env=few,
            cwd=self.job.path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def summaries(self) -> list[Any]:
        """What the starts wrote to the log, one line each."""
        return [json.loads(line) for line in (self.job.path / "runs.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def site(folder: JobFolder) -> Iterator[Site]:
    """A job of 20 documents, and `bulkinfer` beside it; no run is left behind."""
    folder.write_documents(make_documents(20))
    folder.write_job()
    program = folder.path / "bulkinfer"
    paths = f"PYTHONPATH={shlex.quote(str(ROOT / 'src'))}"
    program.write_text(f'#!/bin/sh\nexec env {paths} {shlex.quote(sys.executable)} -m bulkinfer "$@"\n')
    program.chmod(0o755)
    yield Site(folder)
    holder = read_holder(folder.database)
    if holder is not None:
        os.kill(holder.pid, signal.SIGKILL)


@contextmanager
def held(folder: JobFolder) -> Iterator[subprocess.Popen[str]]:
    """Another run holds the database, to the end of the block."""
    folder.write_job(engine={"kind": "simulated", "simulated": ENDLESS})
    run = start("run", folder.job_path, "--quiet")
    try:
        wait_until(lambda: read_holder(folder.database) is not None, "the other run")
        yield run
    finally:
        run.kill()
        run.communicate(timeout=LIMIT_S)


@pytest.mark.parametrize("command", [SIMPLE, QUIET, MEASURED], ids=["simple", "quiet", "measured"])
def test_a_crontab_line_logs_each_start_and_mails_nothing(site: Site, command: str) -> None:
    for _ in range(2):
        found = site.cron(command)
        assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    documents = [summary["documents"] for summary in site.summaries()]
    assert [(count["succeeded"], count["already_done"]) for count in documents] == [(20, 0), (0, 20)]


def test_a_crontab_line_leaves_the_metrics_of_each_start(site: Site) -> None:
    file = site.job.path / "tickets.prom"
    site.cron(MEASURED)
    assert read_samples(file.read_text())["bulkinfer_documents_answered_total"] == 20
    site.job.input.unlink()
    assert site.cron(MEASURED).returncode == ExitCode.USAGE
    assert read_samples(file.read_text())["bulkinfer_run_exit_code"] == ExitCode.USAGE


def test_only_the_quiet_crontab_line_mails_nothing_while_another_run_holds_the_database(site: Site) -> None:
    with held(site.job) as run:
        quiet, simple = site.cron(QUIET), site.cron(SIMPLE)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    assert (simple.returncode, simple.stdout) == (75, "")
    assert f"pid {run.pid} " in simple.stderr
    assert len(simple.stderr.splitlines()) == 1
    assert [(summary["status"], summary["exit_code"]) for summary in site.summaries()] == [("locked", 75)] * 2


def test_a_crontab_line_mails_what_a_person_must_know(site: Site) -> None:
    site.job.write_documents([{"id": "a", "body": ""}, {"id": "b", "body": "b"}])
    site.job.write_job(limits={"max_failures": 0})
    simple, quiet = site.cron(SIMPLE), site.cron(QUIET)
    assert (simple.returncode, simple.stdout) == (5, "")
    assert simple.stderr.startswith("error: 1 of ")
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert quiet.stdout.startswith("exit code 5: error: 1 of ")
    assert [summary["exit_code"] for summary in site.summaries()] == [5, 5]


def test_of_starts_that_overlap_exactly_one_runs(folder: JobFolder) -> None:
    folder.write_documents(make_documents(60))
    simulated = {"clock": "real", "in_child": True, "seconds_per_output_token": 0.01, "output_tokens": 8}
    folder.write_job(engine={"kind": "simulated", "simulated": simulated})
    runs = [start("run", folder.job_path, "--json", "--quiet") for _ in range(6)]
    try:
        wait_until(lambda: read_holder(folder.database) is not None, "one of them to run")
        holder = read_holder(folder.database)
        assert holder is not None
        [winner] = [run for run in runs if run.pid == holder.pid]
        losers = [run for run in runs if run is not winner]
        # However slowly this machine starts the others, it has not ended before they try.
        winner.send_signal(signal.SIGSTOP)
        told = [run.communicate(timeout=LIMIT_S) for run in losers]
        winner.send_signal(signal.SIGCONT)
        stdout, stderr = winner.communicate(timeout=LIMIT_S)
    finally:
        for run in runs:
            run.kill()
            run.wait(timeout=LIMIT_S)
    assert (winner.returncode, stderr) == (0, "")
    assert json.loads(stdout)["documents"]["succeeded"] == 60
    assert [run.returncode for run in losers] == [75] * 5
    for out, err in told:
        assert (json.loads(out)["status"], json.loads(out)["exit_code"]) == ("locked", 75)
        assert f"pid {winner.pid} " in err
    with Reader.open(folder.database) as reader:
        counts = "(select count(*) from runs), (select count(*) from documents), count(distinct document_hash)"
        assert list(reader.query(f"select {counts}, count(*) from results").rows) == [(1, 60, 60, 60)]


def test_the_slurm_script_drains_and_asks_to_be_queued_again(site: Site) -> None:
    """Slurm is not here: a `scontrol` on the path notes what it is asked, and what the run has printed by then."""
    [script] = re.findall(r"^```bash\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    printed, asked = site.job.path / "printed", site.job.path / "asked"
    scontrol = site.job.path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\n(echo "$@"; cat {shlex.quote(str(printed))}) > {shlex.quote(str(asked))}\n')
    scontrol.chmod(0o755)
    site.job.write_documents(make_documents(2_000))
    simulated = {"clock": "real", "in_child": True, "seconds_per_output_token": 0.05, "output_tokens": 8}
    site.job.write_job(engine={"kind": "simulated", "simulated": simulated})
    environment = {**os.environ, "PATH": f"{site.job.path}:{os.environ['PATH']}", "SLURM_JOB_ID": "4711"}
    with printed.open("wb") as stdout:
        run = subprocess.Popen(["bash", "-c", site.place(script)], env=environment, stdout=stdout)
    try:
        wait_until(lambda: count_succeeded(site.job) > 0, "the first answers")
        run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=LIMIT_S) == 143
    finally:
        run.kill()
        run.wait(timeout=LIMIT_S)
    request, summary = asked.read_text(encoding="utf-8").splitlines()
    assert request == "requeue 4711"
    assert (json.loads(summary)["status"], json.loads(summary)["exit_code"]) == ("interrupted", 143)


def count_succeeded(folder: JobFolder) -> int:
    status: Any = read_status(folder.database) or {"documents": {"succeeded": 0}}
    return int(status["documents"]["succeeded"])


def test_the_exit_codes_of_the_document_are_those_of_the_program() -> None:
    cells = re.findall(r"^\| ([0-9, ]+) \| .+ \| .+ \|$", DOCUMENT, re.MULTILINE)
    assert [int(code) for cell in cells for code in cell.split(",")] == sorted(ExitCode)


def test_every_stop_that_is_shown_leaves_time_for_the_drain() -> None:
    [systemd] = re.findall(r"--grace (\d+)\n.*\nTimeoutStopSec=(\d+)", DOCUMENT)
    [slurm] = [(grace, limit) for limit, grace in re.findall(r"TERM@(\d+)(?:.*\n)+?.*--grace (\d+) &", DOCUMENT)]
    [text] = [block for block in re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL) if "CronJob" in block]
    pod = yaml.safe_load(text)["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    kubernetes = (pod["containers"][0]["command"][-1], pod["terminationGracePeriodSeconds"])
    dag = (ROOT / "jobs" / "airflow_dag.py").read_text(encoding="utf-8")
    airflow = re.findall(r"--grace (\d+)(?:.*\n)+?.*retry_delay=timedelta\(seconds=(\d+)\)", dag)[0]
    for grace_s, limit_s in (systemd, slurm, kubernetes, airflow):
        assert int(limit_s) >= int(grace_s) + 30
    assert "\nKillMode=mixed\n" in DOCUMENT, "or systemd would end the engine before the drain"


def test_the_kubernetes_example_knows_what_another_try_cannot_mend() -> None:
    [text] = [block for block in re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL) if "CronJob" in block]
    spec = yaml.safe_load(text)["spec"]
    assert spec["concurrencyPolicy"] == "Forbid"
    rules = spec["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    assert {rule["action"]: rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule} == {
        "FailJob": [ExitCode.USAGE, ExitCode.TOO_MANY_FAILURES],
        "Ignore": [ExitCode.LOCKED, ExitCode.SIGTERM],
    }


def test_nothing_that_is_shown_lies_elsewhere_than_the_tests_look() -> None:
    paths = set(re.findall(r"(?<![\w.])/(?:opt|srv)/[\w./-]+", DOCUMENT))
    assert {path for path in paths if not path.startswith((PROGRAM, FOLDER))} == set()
