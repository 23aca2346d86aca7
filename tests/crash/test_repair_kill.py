"""A repair is killed at each of its steps: nothing is lost, and one started again ends as an undisturbed one."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bulkinfer.store import RepairOutcome, Store, repair_database
from bulkinfer.store.paths import find_kept_logs, trial_path, wal_path
from tests.unit.test_store_repair import ENDS, NUM_COMMITS, flip_in_the_middle, kill_a_run, select_all

MAX_STEPS = 60

# A step is whatever Python does to the database's folder, except for the many readings and copies of the log within
# a trial; and DuckDB's checkpoint and closing. The process is killed before the step of the number given.
_KILLED_REPAIR = """
import os, signal, sys
from pathlib import Path
import duckdb
from bulkinfer.store import repair, repair_database
database, last_step = Path(sys.argv[1]), int(sys.argv[2])
num_steps = 0

def count(what):
    global num_steps
    num_steps += 1
    if num_steps == last_step:
        print(what, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

def look(event, arguments):
    if event in {"open", "os.link", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.chmod", "os.truncate"}:
        path = str(arguments[0])
        is_of_a_trial = event == "open" and (".repair/" in path or path.endswith(".wal"))
        if path.startswith(str(database.parent)) and not is_of_a_trial:
            count(f"{event} {Path(path).name}")

class Checkpointing:
    def __init__(self, connection):
        self.connection = connection
    def __enter__(self):
        return self
    def __exit__(self, *_):
        count("closing")
        self.connection.close()
    def execute(self, sql, *rest):
        if sql == "checkpoint":
            count("checkpoint")
        return self.connection.execute(sql, *rest)

open_for_writing = repair.open_for_writing
repair.open_for_writing = lambda *arguments: Checkpointing(open_for_writing(*arguments))
sys.addaudithook(look)
repair_database(database)
"""


@pytest.mark.timeout(240)
def test_killed_at_each_step_a_repair_can_be_started_again(tmp_path: Path) -> None:
    (tmp_path / "killed").mkdir()
    killed = kill_a_run(tmp_path / "killed")
    log = flip_in_the_middle(wal_path(killed.database).read_bytes())
    num_good = killed.count_before(log)
    assert 0 < num_good < NUM_COMMITS
    (tmp_path / "whole").mkdir()
    whole = killed.copy_to(tmp_path / "whole", log)
    repair_database(whole)
    expected = select_all(whole, ENDS)

    steps: list[str] = []
    for number in range(1, MAX_STEPS):
        folder = tmp_path / str(number)
        folder.mkdir()
        database = killed.copy_to(folder, log)
        step = kill_at(database, number)
        if step is None:
            break
        steps.append(step)
        assert log in {path.read_bytes() for path in (wal_path(database), *find_kept_logs(database)) if path.exists()}
        check_again(database, log, num_good)
        assert select_all(database, ENDS) == expected
    assert number == len(steps) + 1, "the last was not killed"
    told = " ".join(steps)
    for step in ("os.link a.duckdb", "os.link a.duckdb.wal", "os.rename trial.duckdb.wal", "checkpoint", "closing"):
        assert step in told
    assert "os.rename a.duckdb.status.json.tmp" in told


def kill_at(database: Path, number: int) -> str | None:
    """Repair, and kill it at the step of this number; returns the step, or None when it ended before."""
    found = subprocess.run(
        [sys.executable, "-c", _KILLED_REPAIR, str(database), str(number)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if found.returncode == 0:
        return None
    assert found.returncode == -signal.SIGKILL, found.stderr
    return found.stdout.strip()


def check_again(database: Path, log: bytes, num_good: int) -> None:
    """Repair once more, to the end: the log is kept once, and a run can begin."""
    found = repair_database(database)
    assert found.num_commits == num_good
    if found.outcome is not RepairOutcome.INTACT:  # which it is once the status file says what there is
        assert found.num_lost_commits == NUM_COMMITS - num_good
    assert [path.read_bytes() for path in found.kept_logs] == [log]
    assert not trial_path(database).exists()
    assert not wal_path(database).exists()
    Store.open(database).close()
