"""Killed at any moment, the store has lost nothing that it acknowledged, doubled nothing, kept no half of a commit."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bulkinfer.store import CommitLimits, RunSelection, Store
from tests.unit.store_support import TASK, hash_of, make_file, make_run, select

NUM_KILLS = 15
COMMIT_SIZE = 100

# Each process starts where the acknowledged documents end, less one commit: it submits again what is there already.
_RUN = """
import sys
from pathlib import Path
from bulkinfer.store import CommitLimits, Store, samples
from tests.unit.store_support import TASK, make_failure, make_file, make_result, make_rows, make_run, make_sample

begin, size = int(sys.argv[2]), int(sys.argv[3])
store = Store.open(Path(sys.argv[1]), limits=CommitLimits(max_outcomes=size, max_wait_s=60))
[scan] = store.begin_run(make_run(), TASK, [make_file()], "body")
samples.SHORTEST_INTERVAL_S = 0.0
store.samples.source = lambda: (make_sample(store._seq), {})
for first in range(begin, 10**9, size):
    texts = [f"{number}" for number in range(first, first + size)]
    store.add([make_failure(t, row=int(t)) if t.endswith("7") else make_result(t, output=t * 200) for t in texts])
    store.flush()
    print(first + size, flush=True)
"""


@pytest.mark.timeout(240)
def test_killed_at_random_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    moments = random.Random(20260101)
    num_acknowledged = 0
    for _ in range(NUM_KILLS):
        begin = max(0, num_acknowledged - COMMIT_SIZE)
        num_acknowledged = max(num_acknowledged, run_and_kill(database, begin, moments.randrange(1, 15), moments))
        check(database, num_acknowledged)
    assert num_acknowledged > NUM_KILLS * COMMIT_SIZE


def run_and_kill(database: Path, begin: int, num_lines: int, moments: random.Random) -> int:
    """Run a writer, kill it somewhere in the commit after its `num_lines`-th; return what it acknowledged last."""
    arguments = [str(database), str(begin), str(COMMIT_SIZE)]
    with subprocess.Popen([sys.executable, "-c", _RUN, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(num_lines):
            assert process.stdout.readline()
        for _ in range(moments.randrange(200_000)):  # a few milliseconds at most: any point of a commit
            pass
        process.kill()
        lines = process.stdout.readlines()
        assert process.wait(timeout=20) == -signal.SIGKILL
    whole = [line for line in lines if line.endswith("\n")]
    return int(whole[-1]) if whole else begin + num_lines * COMMIT_SIZE


def check(database: Path, num_acknowledged: int) -> None:
    """Compare the reopened database with what was acknowledged."""
    ((num_results, num_distinct),) = select(database, "select count(*), count(distinct document_hash) from results")
    assert num_results == num_distinct
    assert isinstance(num_results, int)
    ((num_failures, num_failed),) = select(database, "select count(*), count(distinct document_hash) from failures")
    assert isinstance(num_failed, int)
    num_stored = num_results + num_failed
    assert num_stored >= num_acknowledged
    assert num_stored % COMMIT_SIZE == 0
    assert num_failed == num_stored // 10
    assert select(database, "select sum(rows), sum(failed) from commits") == [(num_results, num_failures)]
    assert select(database, "select run_id, seq from samples order by all") == select(
        database, "select run_id, seq from commits order by all"
    )
    store = Store.open(database)
    store.begin_run(make_run(), TASK, [make_file()], "body")
    hashes = [hash_of(str(number)) for number in range(num_acknowledged)]
    assert store.find_done(hashes, RunSelection()) == frozenset(hashes)
    store.close()


_FORK = """
import os, signal, sys
from pathlib import Path
from bulkinfer.errors import StoreError
from bulkinfer.store import Store
from tests.unit.store_support import TASK, make_file, make_result, make_run

store = Store.open(Path(sys.argv[1]))
store.begin_run(make_run(), TASK, [make_file()], "body")
store.add([make_result("before")])
store.flush()
child = os.fork()
if child == 0:
    for attempt in (lambda: store.add([make_result("child")]), store.flush, store.create_reader):
        try:
            attempt()
        except StoreError:
            continue
        os._exit(3)
    store.close()
    del store
    sys.exit(0)
pid, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), Path(sys.argv[1] + ".wal").exists(), flush=True)
for number in range(5):
    store.add([make_result(f"after {number}")])
    store.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_forked_child_that_ends_takes_nothing_with_it(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    process = subprocess.run(
        [sys.executable, "-c", _FORK, str(database)], capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == -signal.SIGKILL
    assert process.stdout == "0 True\n"
    assert select(database, "select count(*) from results") == [(6,)]


_FORK_AND_COLLECT = """
import gc, os, sys
from pathlib import Path
from bulkinfer.store.connections import Connections

connections = Connections(Path(sys.argv[1]), 0.0, ())
connections.write(lambda connection: connection.execute("insert into meta values ('a', 'b')"), "a test")
child = os.fork()
if child == 0:
    del connections
    gc.collect()
    sys.exit(0)
pid, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), Path(sys.argv[1] + ".wal").exists(), flush=True)
os._exit(0)
"""


def test_forked_child_that_frees_the_connections_leaves_the_log(tmp_path: Path) -> None:
    """DuckDB's destructor, run in a forked child, would checkpoint and delete the log, then crash."""
    database = tmp_path / "a.duckdb"
    process = subprocess.run(
        [sys.executable, "-c", _FORK_AND_COLLECT, str(database)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (process.returncode, process.stdout) == (0, "0 True\n")
    assert select(database, "select value from meta where key = 'a'") == [("b",)]


def test_killed_before_its_first_commit_leaves_a_database(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    run = _RUN.replace("for first in", "print('begun', flush=True)\nsys.stdin.read()\nfor first in")
    with subprocess.Popen(
        [sys.executable, "-c", run, str(database), "0", "10"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.kill()
    store = Store.open(database, limits=CommitLimits())
    store.close()
    assert select(database, "select count(*) from results") == [(0,)]
    assert select(database, "select count(*) from runs") == [(1,)]
