"""Disks that fill up, forbid or hang under a run: what was acknowledged is there, it is said what to do, and the next
run completes."""

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bulkinfer.store import read_status
from tests.cli_support import bulkinfer, wait_until
from tests.conftest import JobFolder, make_documents
from tests.disk_support import Disk, Ended, drive, mount_disk, start
from tests.unit.store_support import select

NUM_DOCUMENTS = 300
ANSWERS = "select document_id, output, (select count(*) from results) from answers order by document_id"
SLOW = {
    "clock": "real",
    "in_child": True,
    "seconds_per_output_token": 0.02,
    "output_tokens": 8,
    "seconds_per_prompt_token": 0,
}


@pytest.fixture
def disk(folder: JobFolder) -> Iterator[Disk]:
    """A small disk in the job's folder, and a job of some seconds whose database is on it."""
    folder.write_documents(make_documents(NUM_DOCUMENTS))
    with mount_disk(folder.path / "disk", 8_000) as disk:
        folder.database = folder.path / "disk" / "out.duckdb"
        write_job(folder)
        yield disk


def write_job(folder: JobFolder, **simulated: float) -> None:
    folder.write_job(
        engine={"simulated": SLOW | simulated},
        limits={"max_concurrency": 16},
        output={"database": str(folder.database)},
    )


def wait_for_commit(disk: Disk, number: int = 1) -> None:
    wait_until(lambda: disk.read_status().get("num_commits", 0) >= number, f"commit {number}")


def check_failed(disk: Disk, folder: JobFolder, ended: Ended) -> None:
    """Exit code 4, what to do, and the same from `status`; what the run counted as written is in the database."""
    assert ended.returncode == 4, ended.stderr
    assert "Traceback" not in ended.stderr
    summary = ended.summary
    assert (summary["status"], summary["exit_code"]) == ("failed", 4)
    assert str(folder.database) in summary["error"]
    assert summary["error"] in ended.stderr
    status = disk.call("status", folder.job_path, "--json").summary
    assert (status["status"], status["runs"][0]["exit_code"]) == ("failed", 4)
    assert status["runs"][0]["summary"]["error"] == summary["error"]
    [counts] = query(disk, folder, "select count(*) n, count(distinct document_hash) d from results")
    assert counts["n"] == counts["d"] >= summary["documents"]["succeeded"]
    assert counts["n"] >= disk.read_status()["documents"]["succeeded"]


def query(disk: Disk, folder: JobFolder, sql: str) -> list[dict[str, Any]]:
    found = disk.call("query", folder.job_path, sql, "--format", "json")
    assert found.returncode == 0, found.stderr
    rows: list[dict[str, Any]] = json.loads(found.stdout)
    return rows


def check_next_run(disk: Disk, folder: JobFolder, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A plain run completes; the answers are those of an undisturbed one."""
    write_job(folder, seconds_per_output_token=0)
    ended = disk.call("run", folder.job_path, "--json")
    assert ended.returncode == 0, ended.stderr
    documents = ended.summary["documents"]
    assert documents["already_done"] + documents["succeeded"] == NUM_DOCUMENTS
    undisturbed = JobFolder(tmp_path_factory.mktemp("undisturbed"))
    undisturbed.write_documents(make_documents(NUM_DOCUMENTS))
    undisturbed.run(engine={"simulated": SLOW | {"clock": "virtual", "in_child": False}})
    assert [tuple(row.values()) for row in query(disk, folder, ANSWERS)] == select(undisturbed.database, ANSWERS)


def test_full_at_a_commit(disk: Disk, folder: JobFolder, tmp_path_factory: pytest.TempPathFactory) -> None:
    with disk.start("run", folder.job_path, "--json") as run:
        wait_for_commit(disk, 2)  # the first has rows alone
        disk.fill()
        ended = run.wait()
    assert "attempt failed: TransactionException" in ended.stderr
    assert "is the disk full" in ended.stderr
    assert ended.summary["documents"]["succeeded"] > 0
    check_failed(disk, folder, ended)
    assert f"error: {ended.summary['error']}" in disk.call("status", folder.job_path).stdout
    disk.free()
    check_next_run(disk, folder, tmp_path_factory)


def test_full_at_a_checkpoint(disk: Disk, folder: JobFolder, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The log still has room, the file has none: the commit is on disk, and DuckDB gives the whole database up."""
    with disk.start("run", folder.job_path, "--json", database={"wal_autocheckpoint": "20KB"}) as run:
        wait_for_commit(disk)
        disk.fill(leave_kb=100)
        ended = run.wait()
    assert "attempt failed: FatalException" in ended.stderr
    assert "is the disk full" in ended.stderr
    check_failed(disk, folder, ended)
    disk.free()
    check_next_run(disk, folder, tmp_path_factory)


def test_full_at_the_last_checkpoint(disk: Disk, folder: JobFolder, tmp_path_factory: pytest.TempPathFactory) -> None:
    with disk.start("run", folder.job_path, "--json") as run:
        wait_for_commit(disk)
        disk.fill(leave_kb=200)
        ended = run.wait()
    assert "attempt failed" not in ended.stderr
    assert "the last checkpoint (all commits are on disk) failed" in ended.stderr
    assert ended.summary["documents"]["succeeded"] == NUM_DOCUMENTS
    check_failed(disk, folder, ended)
    disk.free()
    check_next_run(disk, folder, tmp_path_factory)


def test_full_for_a_while_the_run_goes_on(
    disk: Disk, folder: JobFolder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with disk.start("run", folder.job_path, "--json", limits={"max_wait_s": 0.1}) as run:
        wait_for_commit(disk)
        disk.fill()
        run.wait_for("attempt failed")
        disk.free()
        ended = run.wait()
    assert ended.returncode == 0, ended.stderr
    assert ended.summary["documents"]["succeeded"] == NUM_DOCUMENTS
    check_next_run(disk, folder, tmp_path_factory)


def test_full_before_the_tables_are_made(
    disk: Disk, folder: JobFolder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    disk.fill(leave_kb=100)
    ended = disk.call("run", folder.job_path, "--json")
    assert ended.returncode == 4, ended.stderr
    assert "is the disk full" in ended.stderr
    disk.free()
    assert disk.call("run", folder.job_path, "--limit", "1").returncode == 0
    check_next_run(disk, folder, tmp_path_factory)


def test_too_small_a_disk_is_refused_before_anything_is_written(disk: Disk, folder: JobFolder) -> None:
    ended = disk.call("run", folder.job_path, "--json", more="paths.MIN_FREE_BYTES = 512 * 2**20")
    assert ended.returncode == 4
    assert "only 7 MB are free" in ended.stderr
    assert "free some space or put the database elsewhere" in ended.stderr
    assert disk.shell("ls -A") == ""


def test_only_the_status_file_has_no_room(folder: JobFolder, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A disk without an inode left: open files grow, no new one can be made."""
    folder.write_documents(make_documents(NUM_DOCUMENTS))
    with mount_disk(folder.path / "disk", 8_000, num_inodes=10) as disk:
        folder.database = folder.path / "disk" / "out.duckdb"
        write_job(folder)
        with disk.start("run", folder.job_path, "--json") as run:
            wait_for_commit(disk)
            disk.shell("for i in 1 2 3 4 5 6 7 8 9; do echo > filler$i; done 2>/dev/null || true")
            ended = run.wait()
        assert ended.returncode == 0, ended.stderr
        assert disk.read_status()["status"] == "running", "an old one"
        disk.shell("rm filler*")
        assert disk.call("status", folder.job_path, "--json").summary["status"] == "completed"
        check_next_run(disk, folder, tmp_path_factory)


def test_read_only_disk_is_refused(disk: Disk, folder: JobFolder) -> None:
    disk.shell("cd / && mount -o remount,ro " + str(disk.path))
    ended = disk.call("run", folder.job_path, "--json")
    assert ended.returncode == 4
    assert "cannot write in the folder" in ended.stderr
    assert "Read-only file system" in ended.stderr


LITTLE_MEMORY = {"memory_limit": "16MB"}
MANY_COMMITS = """
import duckdb
with duckdb.connect("out.duckdb") as connection:
    connection.execute("pragma disable_checkpoint_on_shutdown")
    connection.execute("set wal_autocheckpoint = \\"1GB\\"")
    for _ in range(80):
        connection.execute(
            "insert into document_rows select (select any_value(scan_id) from scans), 1, uuid(), "
            "repeat(uuid()::varchar, 5) from range(2000)"
        )
"""


@pytest.mark.parametrize("command", ["run", "repair"])
def test_log_that_fits_neither_into_memory_nor_into_the_temporary_folder_is_not_taken_for_damaged(
    folder: JobFolder, command: str
) -> None:
    folder.write_documents(make_documents(100))
    with mount_disk(folder.path / "disk", 150_000) as disk:
        folder.database = folder.path / "disk" / "out.duckdb"
        folder.write_job(output={"database": str(folder.database)})
        assert disk.call("run", folder.job_path).returncode == 0
        disk.shell(f"{sys.executable} -c '{MANY_COMMITS}'")
        before = disk.shell("sha256sum out.duckdb out.duckdb.wal")
        disk.shell("mkdir out.duckdb.tmp && mount -t tmpfs -o size=300k tmpfs out.duckdb.tmp")
        more = "database._READ_SETTINGS |= settings['database']"
        ended = disk.call(command, folder.job_path, "--json", more=more, database=LITTLE_MEMORY)
        assert ended.returncode == 4, ended.stderr
        assert f"no room for the rest in {folder.database}.tmp" in ended.stderr
        assert "damaged" not in ended.stderr
        assert "Traceback" not in ended.stderr
        assert disk.shell("sha256sum out.duckdb out.duckdb.wal") == before
        assert "corrupt" not in disk.shell("ls")
        disk.shell(f"cd / && umount {folder.database}.tmp")
        ended = disk.call(command, folder.job_path, "--json", more=more, database=LITTLE_MEMORY)
        assert ended.returncode == 0, ended.stderr
        rows = query(disk, folder, "select count(*) n from document_rows")
        assert rows == [{"n": 160_100}]


HANGS = {
    "in a commit": "from bulkinfer.store import writer\nwriter.commit_pending = hang_in_duckdb",
    "at the last checkpoint": "connections.Connections.checkpoint = hang",
    "while the run is recorded": "from bulkinfer.store import runs\nruns.begin_run = hang",
    "at the status file": "from bulkinfer.store import writer\nwriter.write_status = hang",
    "while it opens": "connections.open_for_writing = hang",
    "at the lock": "from bulkinfer.store import writer\nwriter.prepare_folder = hang",
    "at a lookup": "from bulkinfer.store import lookups\nlookups.find_done = hang",
    "at a count at the end": "from bulkinfer.store import lookups\nlookups.count_open_failures = hang",
    "when it closes": "from bulkinfer.store import writer\nwriter.Store._fold_log_in = hang",
}
HANG = """
def hang(*_arguments, **_options):
    print("hangs", file=sys.stderr, flush=True)
    import threading
    threading.Event().wait()

from bulkinfer.store.queue import CommitQueue
fail_stalled = CommitQueue.fail_stalled

def tell_and_fail(queue):
    print("waited for the whole limit", file=sys.stderr, flush=True)
    return fail_stalled(queue)

CommitQueue.fail_stalled = tell_and_fail

def hang_in_duckdb(connection, *_arguments):
    print("hangs", file=sys.stderr, flush=True)
    connection.execute("select max(i) from range(10000000000000000) s(i)")
"""


@pytest.mark.parametrize("hang", HANGS.values(), ids=HANGS)
def test_a_disk_that_hangs_ends_the_run_in_time_with_its_engine(folder: JobFolder, hang: str) -> None:
    folder.write_documents(make_documents(NUM_DOCUMENTS))
    write_job(folder)
    limits = {"max_wait_s": 0.1, "stall_limit_s": 5.0}
    command = drive("run", folder.job_path, "--json", limits=limits, more=HANG + hang)
    with start(command, folder.path / "stderr") as run:
        run.wait_for("hangs")
        children = psutil.Process(run.process.pid).children()
        ended = run.wait()
    assert ended.returncode == 4, ended.stderr
    assert "did not answer for 5 s" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout.count("\n") == 1
    assert ended.summary["exit_code"] == 4
    has_store = "prepare_folder" not in hang
    assert ended.stderr.count("waited for the whole limit") == has_store, "nobody waits for the dead disk again"
    wait_until(lambda: not any(child.is_running() for child in children), "the end of the engine")
    assert bulkinfer("run", folder.job_path).returncode == 0
    assert select(folder.database, "select count(*), count(distinct document_hash) from results") == [
        (NUM_DOCUMENTS, NUM_DOCUMENTS)
    ]


def test_a_full_disk_whose_last_word_hangs_is_still_exit_code_4(folder: JobFolder) -> None:
    folder.write_documents(make_documents(NUM_DOCUMENTS))
    write_job(folder)
    more = """
import duckdb
from bulkinfer.store import writer
def fail(*_arguments):
    raise duckdb.TransactionException("no space left")
writer.commit_pending = fail
writer.Store.tell_end = lambda self, summary, tell=writer.Store.tell_end: (
    setattr(writer, "write_status", hang), tell(self, summary)
)
"""
    with start(drive("run", folder.job_path, "--json", more=HANG + more), folder.path / "stderr") as run:
        ended = run.wait()
    assert "hangs" in ended.stderr
    assert (ended.returncode, ended.summary["exit_code"]) == (4, 4)
    assert bulkinfer("run", folder.job_path).returncode == 0


# Imports all that a run imports late, then gives root's rights up, which no permission stops.
AS_NOBODY = """
import os
arguments, sys.argv = sys.argv, ["bulkinfer", "run", sys.argv.pop(), "--quiet"]
try:
    main()
except SystemExit as end:
    assert end.code == 0
sys.argv = arguments
if os.getuid() == 0:
    os.setuid(65534)
"""


@pytest.fixture
def open_job() -> Iterator[JobFolder]:
    """A job that somebody without rights can run: pytest's folders are closed to them."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    folder = JobFolder(path)
    folder.write_documents(make_documents(NUM_DOCUMENTS))
    folder.database.parent.joinpath("out").mkdir()
    folder.database = path / "out" / "out.duckdb"
    folder.database.parent.chmod(0o777)
    folder.write_job(
        engine={"simulated": SLOW | {"in_child": False}},
        limits={"max_concurrency": 16},
        output={"database": str(folder.database)},
    )
    yield folder
    folder.database.parent.chmod(0o777)
    shutil.rmtree(path)


@pytest.mark.parametrize(
    ("pattern", "autocheckpoint", "expected", "message"),
    [
        ("out", "256MB", 4, "the last checkpoint (all commits are on disk) failed"),
        ("out", "20KB", 4, "no permission to write to"),
        ("out/*", "256MB", 0, ""),
    ],
)
def test_permission_that_is_lost_under_the_run(
    open_job: JobFolder, folder: JobFolder, pattern: str, autocheckpoint: str, expected: int, message: str
) -> None:
    """What it has open it may go on writing; a log that it may not delete ends it."""
    warm = folder.write_documents(make_documents(1)) and folder.write_job()
    database = {"wal_autocheckpoint": autocheckpoint}
    command = drive("run", open_job.job_path, "--json", warm, more=AS_NOBODY, database=database)
    with start(command, folder.path / "stderr") as run:
        wait_until(lambda: (read_status(open_job.database) or {}).get("num_commits"), "the first commit")
        for path in open_job.path.glob(pattern):
            path.chmod(0o555 if path.is_dir() else 0o000)
        ended = run.wait()
    assert ended.returncode == expected, ended.stderr
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    for path in (open_job.database.parent, *open_job.database.parent.iterdir()):
        path.chmod(0o777)
    status = json.loads(bulkinfer("status", open_job.job_path, "--json").stdout)
    assert (status["status"], status["runs"][0]["exit_code"]) == ("failed" if expected else "completed", expected)
    [(num_before,)] = select(open_job.database, "select count(*) from results")
    assert isinstance(num_before, int)
    assert num_before >= ended.summary["documents"]["succeeded"]
    summary = json.loads(bulkinfer("run", open_job.job_path, "--json").stdout)
    assert summary["documents"]["succeeded"] == NUM_DOCUMENTS - num_before
    assert select(open_job.database, "select count(*), count(distinct document_hash) from results") == [
        (NUM_DOCUMENTS, NUM_DOCUMENTS)
    ]


FLIP = """
from pathlib import Path
path = Path("out.duckdb.wal")
log = bytearray(path.read_bytes())
log[len(log) // 2] ^= 1
path.write_bytes(log)
"""


@pytest.mark.parametrize(
    ("leave_kb", "message"),
    [(0, "its log cannot be copied or replaced: No space left"), (150, "folding the log into it (repair it again)")],
    ids=["for the copy", "for the checkpoint"],
)
def test_repair_without_room_loses_nothing_and_can_be_repeated(
    disk: Disk, folder: JobFolder, tmp_path_factory: pytest.TempPathFactory, leave_kb: int, message: str
) -> None:
    with disk.start("run", folder.job_path, "--json") as run:
        wait_for_commit(disk, 3)
        run.process.kill()
    disk.shell(f"{sys.executable} -c '{FLIP}'")
    damaged = disk.shell("sha256sum < out.duckdb.wal").split()[0]
    disk.fill(leave_kb)
    ended = disk.call("repair", folder.job_path, "--json")
    assert ended.returncode == 4, ended.stderr
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    disk.free()
    ended = disk.call("repair", folder.job_path, "--json")
    assert ended.returncode == 0, ended.stderr
    assert ended.summary["outcome"] == "repaired"
    assert damaged in disk.shell("sha256sum out.duckdb.wal.corrupt-*")
    check_next_run(disk, folder, tmp_path_factory)
