"""What is broken on purpose is found: a check that cannot fail proves nothing."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import duckdb
import pytest

from bulkinfer.errors import ExitCode
from tests.conftest import JobFolder
from tests.crash.evidence import TAG, Findings, compare, count_differences, find_living, read_snapshot, wait_for_end
from tests.crash.points import PLACES, Orders, Point
from tests.crash.trial import LIMIT_S, PlainRunFailedError, Trial, write_documents, write_simulated_job

NUM_DIFFERENT = 240
NOTHING = Findings()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of a run that nobody disturbed."""
    trial = make_trial(tmp_path_factory.mktemp("finished"), 0)
    assert trial.complete() == NOTHING
    return trial.folder.database


def make_trial(path: Path, seconds_per_token: float) -> Trial:
    folder = JobFolder(path)
    write_documents(folder, NUM_DIFFERENT)
    write_simulated_job(folder, seconds_per_token=seconds_per_token, max_tokens=8)
    return Trial(folder)


FAILED_TOO = """
    insert into failures by name
    select task_fingerprint, document_hash, run_id, 'empty_prompt' as code from results where rowid = 5
"""
BREAKS = (
    ("delete from results where rowid = 5", "lost", 1),
    ("delete from failures where rowid = 5", "lost", 1),
    ("insert into results select * from results where rowid = 5", "doubled", 1),
    ("insert into failures select * from failures where rowid = 5", "doubled", 1),
    (FAILED_TOO, "doubled", 1),
    ("update results set output = 'another' where rowid = 5", "changed", 0),
    ("update results set attempts = attempts + 1 where rowid = 5", "changed", 0),
    ("update failures set message = 'another' where rowid = 5", "changed", 0),
    ("delete from document_rows where row = 7", "", 1),
)


@pytest.mark.parametrize(("sql", "finding", "num_uncounted"), BREAKS)
def test_one_broken_row_is_found(sql: str, finding: str, num_uncounted: int, finished: Path, tmp_path: Path) -> None:
    before = read_snapshot(finished)
    broken = break_copy(finished, tmp_path, sql)
    findings = compare(before, frozenset(), read_snapshot(broken))
    documents = {name: len(getattr(findings, name)) for name in ("lost", "doubled", "changed", "repeated")}
    assert {name: count for name, count in documents.items() if count} == ({finding: 1} if finding else {})
    assert findings.num_uncounted == num_uncounted


def test_what_is_sound_is_called_so(finished: Path, tmp_path: Path) -> None:
    copy = break_copy(finished, tmp_path, "select 1")
    assert compare(read_snapshot(finished), frozenset(), read_snapshot(copy)) == NOTHING
    assert set(count_differences(copy, finished).values()) == {0}


def test_a_document_that_is_asked_again_is_found(finished: Path) -> None:
    snapshot = read_snapshot(finished)
    again = frozenset(sorted(snapshot.documents)[:2])
    assert compare(snapshot, again, snapshot) == Findings(repeated=again)


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("delete from results where rowid = 5", {"results", "answers"}),
        ("update results set output = 'another' where rowid = 5", {"results", "answers"}),
        ("delete from failures where rowid = 5", {"failures"}),
        ("delete from document_rows where row = 7", {"documents", "answers"}),
        ("insert into document_rows select * from document_rows where row = 7", {"documents", "answers"}),
    ],
)
def test_one_other_row_is_found(sql: str, tables: set[str], finished: Path, tmp_path: Path) -> None:
    broken = break_copy(finished, tmp_path, sql)
    differences = count_differences(broken, finished)
    assert {table for table, count in differences.items() if count} == tables


def break_copy(database: Path, folder: Path, sql: str) -> Path:
    copy = folder / database.name
    shutil.copy(database, copy)
    with duckdb.connect(copy) as connection:
        connection.execute(sql)
    return copy


def test_a_log_that_is_deleted_after_a_kill_is_found(tmp_path: Path) -> None:
    """By the check, and by the next run, which refuses to go on."""
    trial = make_trial(tmp_path, 0.002)
    acknowledged = kill(trial, Orders((Point(PLACES["acknowledged"], 3),)))
    assert len(acknowledged) >= 3 * 40
    trial.folder.database.with_name("out.duckdb.wal").unlink()
    assert compare(trial.snapshot, acknowledged, read_snapshot(trial.folder.database)).lost == acknowledged
    with pytest.raises(PlainRunFailedError) as failed:
        trial.complete()
    assert failed.value.returncode == ExitCode.STORE


def test_a_store_that_acknowledges_before_it_commits_is_found(tmp_path: Path) -> None:
    """The one killed in its third commit has told of it, and has it not."""
    trial = make_trial(tmp_path, 0.002)
    acknowledged = kill(trial, Orders((Point(PLACES["commit record written"], 3),), is_premature=True))
    findings = compare(trial.snapshot, acknowledged, read_snapshot(trial.folder.database))
    assert len(findings.lost) >= 40
    assert findings.lost < acknowledged


def kill(trial: Trial, orders: Orders) -> frozenset[str]:
    killed = trial.start(orders)
    try:
        assert killed.process.wait(LIMIT_S) == -signal.SIGKILL, killed.read_errors()
        assert wait_for_end(killed.tag) == []
    finally:
        killed.end()
    return killed.read_journal().acknowledged


def test_a_process_that_outlives_its_parent_is_found() -> None:
    tag = uuid4().hex
    script = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'])"
    read_end, write_end = os.pipe()
    subprocess.run([sys.executable, "-c", script], stdin=read_end, env={**os.environ, TAG: tag}, check=True)
    os.close(read_end)
    (orphan,) = wait_for_end(tag, limit_s=0.5)
    os.close(write_end)
    assert wait_for_end(tag, limit_s=LIMIT_S) == []
    assert find_living(tag) == []
    assert orphan != os.getpid()
