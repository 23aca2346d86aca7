"""The DAG in jobs/ under a real Airflow: interrupted and resumed, skipped, given up, its summary read from XCom.

`airflow dags test` runs it as the scheduler would: the same operators, retries and retry delays, XCom in the database.
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from bulkinfer.store import Reader, read_holder, read_status
from tests.conftest import ROOT, JobFolder, make_documents

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]

AIRFLOW = ROOT / ".airflow" / "venv" / "bin" / "airflow"
BULKINFER = Path(sys.executable).parent / "bulkinfer"
DAG = ROOT / "jobs" / "airflow_dag.py"
LIMIT_S = 120.0
NUM_DOCUMENTS = 400

# 8 at a time take about 0.4 s: all would take 20 s, so that no try ends before it is interrupted.
SLOW: dict[str, Any] = {"seconds_per_output_token": 0.05}
FAST: dict[str, Any] = {"seconds_per_output_token": 0}
ENDLESS: dict[str, Any] = {"seconds_per_output_token": 60}


@dataclass(frozen=True, slots=True)
class Tried:
    """What Airflow's database says of a task of the newest DAG run."""

    state: str
    num_tries: int
    xcom: Any
    """What the task returned, or None."""


@dataclass(frozen=True, slots=True)
class Airflow:
    """A home of its own for Airflow: its database, its logs, the DAG."""

    home: Path

    def environment(self, job: Path, **more: str) -> dict[str, str]:
        """Nothing of the machine's owner's Airflow; no examples; retries after a second instead of minutes."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "_AIRFLOW"))}
        return kept | {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.home / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__MAX_TASK_RETRY_DELAY": "1",
            "AIRFLOW_VAR_BULKINFER_COMMAND": str(BULKINFER),
            "AIRFLOW_VAR_BULKINFER_JOB": str(job),
            "PYTHONPATH": str(ROOT / "src"),
            **more,
        }

    def migrate(self) -> None:
        """Make Airflow's database, and put the DAG where a user would."""
        (self.home / "dags").mkdir(parents=True)
        shutil.copy(DAG, self.home / "dags")
        command = [str(AIRFLOW), "db", "migrate"]
        environment = self.environment(Path("no-job.yaml"))
        done = subprocess.run(
            command, env=environment, cwd=self.home, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    @contextmanager
    def running(self, job: Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
        """`airflow dags test`, started; at the end of the block nothing of it is left."""
        command = [str(AIRFLOW), "dags", "test", "bulkinfer"]
        with (self.home / "test.log").open("wb") as log:
            started = subprocess.Popen(
                command, env=self.environment(job, **more), cwd=self.home, stdout=log, stderr=subprocess.STDOUT
            )
            try:
                yield started
            finally:
                kill_tree(started)

    def run(self, job: Path, **more: str) -> int:
        """`airflow dags test` to its end; returns its exit code."""
        with self.running(job, **more) as started:
            return started.wait(timeout=LIMIT_S)

    def tried(self, task_id: str) -> Tried:
        """How the newest DAG run went on with a task."""
        newest = "select run_id from dag_run order by id desc limit 1"
        with closing(sqlite3.connect(self.home / "airflow.db")) as database:
            [(state, num_tries)] = database.execute(
                f"select state, try_number from task_instance where task_id = ? and run_id = ({newest})", (task_id,)
            ).fetchall()
            xcoms = database.execute(
                f"select value from xcom where task_id = ? and key = 'return_value' and run_id = ({newest})", (task_id,)
            ).fetchall()
        return Tried(state, num_tries, json.loads(xcoms[0][0]) if xcoms else None)

    def log(self) -> str:
        """What the newest `dags test` printed."""
        return (self.home / "test.log").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Airflow:
    """Airflow with an empty database."""
    assert AIRFLOW.exists(), f"{AIRFLOW} is not there: make test-airflow installs it"
    found = Airflow(tmp_path_factory.mktemp("airflow"))
    found.migrate()
    return found


@pytest.fixture
def job(folder: JobFolder) -> Iterator[JobFolder]:
    """400 documents that take 20 s; no run is left behind."""
    folder.write_documents(make_documents(NUM_DOCUMENTS))
    write_job(folder, SLOW)
    yield folder
    holder = read_holder(folder.database)
    if holder is not None:
        os.kill(holder.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("victim", "number", "first_end"),
    [
        ("task", signal.SIGTERM, [("interrupted", 143)]),  # as Airflow ends a task: on_kill tells bulkinfer
        ("bulkinfer", signal.SIGTERM, [("interrupted", 143)]),
        ("bulkinfer", signal.SIGKILL, []),
    ],
)
def test_a_try_that_is_interrupted_is_resumed_by_the_next(
    airflow: Airflow, job: JobFolder, victim: str, number: signal.Signals, first_end: list[tuple[str, int]]
) -> None:
    with airflow.running(job.job_path) as started:
        wait_until(lambda: count_committed(job) > 0, "the first answers on disk", started)
        num_committed = count_committed(job)
        write_job(job, FAST)  # no other task; the try that runs has read its job file
        os.kill(started.pid if victim == "task" else find_runner(job), number)
        assert started.wait(timeout=LIMIT_S) == 0, airflow.log()

    run_job = airflow.tried("run_job")
    assert (run_job.state, run_job.num_tries) == ("success", 2), airflow.log()
    ends = select(job, "select status, exit_code, summary from runs left join run_ends using (run_id) order by seq")
    assert len(ends) == 2
    assert [(status, code) for status, code, _ in ends[:1] if status is not None] == first_end
    assert ends[1][:2] == ("completed", 0)

    documents = run_job.xcom["documents"]
    assert run_job.xcom == json.loads(str(ends[1][2]))
    assert documents["already_done"] >= num_committed > 0
    assert documents["succeeded"] > 0
    answered = select(job, "select count(*) from results group by run_id order by min(completed_at)")
    assert answered == [(documents["already_done"],), (documents["succeeded"],)]
    assert select(job, "select count(*), count(distinct document_hash) from results") == [(NUM_DOCUMENTS,) * 2]
    if first_end:
        first = json.loads(str(ends[0][2]))["documents"]
        assert first["succeeded"] + documents["succeeded"] == NUM_DOCUMENTS, "what was in flight was not asked again"

    told = f"{documents['succeeded']} answered, 0 failed, {documents['already_done']} before"
    assert airflow.tried("report") == Tried("success", 1, told)


def test_a_job_that_runs_elsewhere_is_skipped(airflow: Airflow, job: JobFolder) -> None:
    with holding(job):
        assert airflow.run(job.job_path) == 0, airflow.log()
    assert airflow.tried("run_job") == Tried("skipped", 1, None)
    assert airflow.tried("report") == Tried("skipped", 0, None)


def test_a_retry_waits_for_the_run_that_holds_the_database(airflow: Airflow, job: JobFolder) -> None:
    with airflow.running(job.job_path, AIRFLOW__CORE__MAX_TASK_RETRY_DELAY="8") as started:
        wait_until(lambda: count_committed(job) > 0, "the first answers on disk", started)
        psutil.Process(find_runner(job)).kill()
        with holding(job):
            wait_until(lambda: airflow.log().count("another run still holds") > 0, "the second try", started)
            write_job(job, FAST)
        assert started.wait(timeout=LIMIT_S) == 0, airflow.log()
    run_job = airflow.tried("run_job")
    assert (run_job.state, run_job.num_tries, run_job.xcom["status"]) == ("success", 3, "completed")
    assert select(job, "select count(*), count(distinct document_hash) from results") == [(NUM_DOCUMENTS,) * 2]


def test_too_many_failures_are_not_tried_again(airflow: Airflow, folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": ""}, {"id": "b", "body": "b"}])
    assert airflow.run(folder.write_job(limits={"max_failures": 0})) != 0
    assert airflow.tried("run_job") == Tried("failed", 1, None)
    assert "exit code 5: more documents failed" in airflow.log()
    assert select(folder, "select status, exit_code from run_ends") == [("failed", 5)]


@pytest.mark.parametrize(("command", "expected"), [(BULKINFER, "exit code 2:"), (Path("/nowhere"), "exit code 127:")])
def test_what_another_try_cannot_mend_is_not_tried_again(
    airflow: Airflow, tmp_path: Path, command: Path, expected: str
) -> None:
    assert airflow.run(tmp_path / "nowhere.yaml", AIRFLOW_VAR_BULKINFER_COMMAND=str(command)) != 0
    assert airflow.tried("run_job") == Tried("failed", 1, None)
    assert expected in airflow.log()


def write_job(folder: JobFolder, speed: dict[str, Any]) -> None:
    simulated = {"clock": "real", "in_child": True, "seconds_per_prompt_token": 0, "output_tokens": 8}
    folder.write_job(limits={"max_concurrency": 8}, engine={"kind": "simulated", "simulated": simulated | speed})


def count_committed(folder: JobFolder) -> int:
    """Answers that the live run has on disk."""
    status: Any = read_status(folder.database) or {"documents": {}}
    return int(status["documents"].get("succeeded", 0))


def find_runner(folder: JobFolder) -> int:
    """The process of the run that holds the database."""
    holder = read_holder(folder.database)
    assert holder is not None
    return holder.pid


@contextmanager
def holding(folder: JobFolder) -> Iterator[None]:
    """A run of the job by hand that does not end, from when it has the database to the end of the block."""
    write_job(folder, ENDLESS)
    command = [str(BULKINFER), "run", str(folder.job_path), "--quiet"]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}) as run:
        try:
            wait_until(lambda: is_held_by(folder, run.pid), "the run by hand", run)
            yield
        finally:
            run.kill()
            run.wait(timeout=LIMIT_S)


def is_held_by(folder: JobFolder, pid: int) -> bool:
    holder = read_holder(folder.database)
    return holder is not None and holder.pid == pid


def wait_until(is_true: Callable[[], bool], what: str, running: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not is_true():
        assert running.poll() is None, f"it ended before {what}"
        assert time.monotonic() < until_s, f"waited {LIMIT_S} s for {what}"
        time.sleep(0.02)


def kill_tree(started: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started; does nothing when it has ended and left nothing."""
    children = [] if started.poll() is not None else psutil.Process(started.pid).children(recursive=True)
    for child in children:
        child.kill()
    started.kill()
    started.wait(timeout=LIMIT_S)


def select(folder: JobFolder, sql: str) -> list[tuple[object, ...]]:
    with Reader.open(folder.database) as reader:
        return list(reader.query(sql).rows)
