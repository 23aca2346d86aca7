"""`bulkinfer repair` as people and schedulers meet it."""

import json
from pathlib import Path

import pytest

from bulkinfer.store import Store
from bulkinfer.store.paths import status_path, wal_path
from tests.cli_support import bulkinfer
from tests.conftest import JobFolder, make_documents
from tests.unit.test_store_repair import NUM_COMMITS, Killed, flip_in_the_middle, killed

__all__ = ["killed"]


@pytest.fixture
def damaged(folder: JobFolder, killed: Killed) -> JobFolder:
    """A job whose database was left by a killed run, with a log that is damaged in the middle."""
    folder.write_documents(make_documents(20))
    folder.write_job()
    kept = killed.copy_to(folder.path, flip_in_the_middle(wal_path(killed.database).read_bytes()))
    folder.database = kept.rename(folder.database)
    for path in folder.path.glob("a.duckdb.*"):
        path.rename(path.with_name(path.name.replace("a.duckdb", "out.duckdb")))
    return folder


def test_every_way_to_a_damaged_log_names_repair_and_repair_helps(damaged: JobFolder) -> None:
    for command in ("run", "status", "failures"):
        found = bulkinfer(command, damaged.job_path)
        assert found.returncode == 4
        assert f"`bulkinfer repair {damaged.database}`" in found.stderr
    found = bulkinfer("repair", damaged.job_path)
    assert (found.returncode, found.stderr) == (0, "")
    [kept] = damaged.path.glob("*.corrupt-*")
    first, recovered, inside, lost, where = found.stdout.splitlines()
    assert first.startswith(f"{damaged.database}: repaired")
    assert recovered.startswith("  recovered from the log: 4 commits with")
    assert inside.startswith("  in the database: 4 commits with")
    assert lost == "  lost: 6 commits; the next run asks again what has no answer"
    assert where == f"  damaged log, kept: {kept}"
    found = bulkinfer("run", damaged.job_path, "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["documents"]["succeeded"] == 20


def test_repair_json_is_one_object(damaged: JobFolder) -> None:
    found = bulkinfer("repair", damaged.database, "--json")
    told = json.loads(found.stdout)
    assert (found.returncode, found.stderr) == (0, "")
    assert (told["outcome"], told["num_commits"], told["num_lost_commits"]) == ("repaired", 4, 6)
    assert [Path(path).exists() for path in told["kept_logs"]] == [True]
    again = json.loads(bulkinfer("repair", damaged.database, "--json").stdout)
    assert (again["outcome"], again["num_lost_commits"], again["kept_logs"]) == ("intact", 0, told["kept_logs"])


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "put the database back"), (b"\0" * 9_000, "is not a DuckDB database"), (b"name: x", "is not a DuckDB")],
)
def test_what_is_left_of_a_database_is_not_taken_for_a_job(
    damaged: JobFolder, content: bytes | None, expected: str
) -> None:
    damaged.database.unlink()
    if content is not None:
        damaged.database.write_bytes(content)
    found = bulkinfer("repair", damaged.database, "--json")
    assert found.returncode == 4
    assert expected in found.stderr
    assert json.loads(found.stdout)["exit_code"] == 4


def test_a_log_that_was_removed(damaged: JobFolder) -> None:
    wal_path(damaged.database).rename(damaged.path / "away")
    found = bulkinfer("run", damaged.job_path)
    assert found.returncode == 4
    assert f"{NUM_COMMITS} commits are missing" in found.stderr
    assert f"bulkinfer repair {damaged.database}" in found.stderr
    found = bulkinfer("repair", damaged.database)
    assert found.returncode == 0
    assert "was removed" in found.stdout
    assert f"lost: {NUM_COMMITS} commits" in found.stdout
    assert bulkinfer("run", damaged.job_path).returncode == 0


def test_an_intact_database_is_said_to_be(damaged: JobFolder, killed: Killed) -> None:
    wal_path(damaged.database).write_bytes(wal_path(killed.database).read_bytes())
    status_path(damaged.database).unlink()
    found = bulkinfer("repair", damaged.database)
    assert (found.returncode, found.stderr) == (0, "")
    assert "nothing is missing; nothing was changed" in found.stdout


def test_a_live_run_is_exit_code_75(damaged: JobFolder, killed: Killed) -> None:
    wal_path(damaged.database).write_bytes(wal_path(killed.database).read_bytes())
    store = Store.open(damaged.database)
    found = bulkinfer("repair", damaged.database, "--json")
    store.close()
    assert found.returncode == 75
    assert json.loads(found.stdout)["status"] == "locked"


def test_nothing_there_is_a_message(tmp_path: Path) -> None:
    found = bulkinfer("repair", tmp_path / "nowhere.duckdb")
    assert found.returncode == 2
    assert "nowhere.duckdb" in found.stderr
    assert list(tmp_path.iterdir()) == []
