"""However a log is damaged, what was committed before is kept, in order and once, and the log is set aside."""

import bisect
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from pathlib import Path

import duckdb
import pytest

from bulkinfer.errors import ExitCode, StoreError, StoreLocked
from bulkinfer.store import Reader, Repair, RepairOutcome, Store, has_remains, read_status, repair, repair_database
from bulkinfer.store.paths import find_kept_logs, status_path, trial_path, wal_path
from bulkinfer.store.trial import Content
from tests.unit.store_support import run_job, select

NUM_COMMITS = 10
TEXTS = [f"bad {number}" if number % 9 == 0 else f"document {number}" for number in range(20 * NUM_COMMITS)]
ENDS = (
    "select document_hash, output from results order by document_hash",
    "select document_hash, code, message from failures order by document_hash",
    "select document_id, row, output from answers order by row",
)
Spoil = Callable[[bytes, random.Random], bytes]

# A run before, whose commits are in the file; then one that is killed, whose commits are in the log. It prints how long
# the log is after each commit.
_KILLED_RUN = """
import os, signal, sys
from pathlib import Path
from bulkinfer.store import Store
from tests.unit.store_support import TASK, answer, make_file, make_rows, make_run
from tests.unit.test_store_repair import NUM_COMMITS, TEXTS
database = Path(sys.argv[1])
Store.open(database).close()
store = Store.open(database)
[scan] = store.begin_run(make_run(), TASK, [make_file()], "body")
rows = make_rows(scan, TEXTS)
for first in range(0, len(TEXTS), len(TEXTS) // NUM_COMMITS):
    part = slice(first, first + len(TEXTS) // NUM_COMMITS)
    store.add_rows(rows[part])
    store.add([answer(text) for text in TEXTS[part]])
    store.flush()
    print(os.stat(f"{database}.wal").st_size)
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


Rows = list[tuple[object, ...]]


@dataclass(frozen=True)
class Killed:
    """The database of a killed run, whole; take copies."""

    database: Path
    undisturbed: list[Rows]
    """The results, failures and answers of the same run, not killed."""
    commit_ends: tuple[int, ...]
    """The length of the log after each commit."""

    def copy_to(self, folder: Path, log: bytes | None = None) -> Path:
        """A copy, with another log if one is given."""
        database = folder / "a.duckdb"
        for path in self.database.parent.iterdir():
            shutil.copy(path, folder / path.name)
        if log is not None:
            wal_path(database).write_bytes(log)
        return database

    def count_before(self, log: bytes) -> int:
        """Commits that end before the first byte in which a log differs from the good one."""
        good = wal_path(self.database).read_bytes()
        differing = (index for index, (one, other) in enumerate(zip(good, log, strict=False)) if one != other)
        return bisect.bisect(self.commit_ends, next(differing, min(len(good), len(log))))


@pytest.fixture(scope="session")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """A run of ten commits that was killed."""
    return kill_a_run(tmp_path_factory.mktemp("killed"))


def kill_a_run(folder: Path) -> Killed:
    database = folder / "a.duckdb"
    found = subprocess.run(
        [sys.executable, "-c", _KILLED_RUN, str(database)], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == -signal.SIGKILL, found.stderr
    commit_ends = tuple(map(int, found.stdout.split()))
    assert len(commit_ends) == NUM_COMMITS
    undisturbed = folder.with_suffix(".duckdb")
    run_job(undisturbed, {"a.jsonl": TEXTS})
    return Killed(database, select_all(undisturbed, ENDS), commit_ends)


def flip_a_bit(log: bytes, dice: random.Random) -> bytes:
    spoiled = bytearray(log)
    spoiled[dice.randrange(len(log))] ^= 1 << dice.randrange(8)
    return bytes(spoiled)


def flip_in_the_middle(log: bytes) -> bytes:
    spoiled = bytearray(log)
    spoiled[len(log) // 2] ^= 1
    return bytes(spoiled)


def flip_a_bit_of_an_entry_size(log: bytes, dice: random.Random) -> bytes:
    """The one damage that looks like an interrupted write: DuckDB opens, silently, without the rest."""
    positions = [log.index(b"\xff\xff") + 2]  # after the first entry, which alone has no size and no checksum
    while positions[-1] < len(log):
        positions.append(positions[-1] + 16 + int.from_bytes(log[positions[-1] :][:8], "little"))
    spoiled = bytearray(log)
    spoiled[dice.choice(positions[:-1]) + 6] ^= 1
    return bytes(spoiled)


def zero_a_block(log: bytes, dice: random.Random) -> bytes:
    return overwrite(log, bytes(512), dice)


def zero_the_end(log: bytes, dice: random.Random) -> bytes:
    length = dice.randrange(len(log))
    return log[:length] + bytes(len(log) - length)


def write_garbage(log: bytes, dice: random.Random) -> bytes:
    return overwrite(log, dice.randbytes(700), dice)


def cut(log: bytes, dice: random.Random) -> bytes:
    return log[: dice.randrange(1, len(log))]


def cut_out(log: bytes, dice: random.Random) -> bytes:
    first = dice.randrange(len(log) - 4096)
    return log[:first] + log[first + 4096 :]


def overwrite(log: bytes, block: bytes, dice: random.Random) -> bytes:
    first = dice.randrange(len(log) - len(block))
    return log[:first] + block + log[first + len(block) :]


SPOILS: Sequence[tuple[Spoil, int]] = [
    (flip_a_bit, 8),
    (flip_a_bit_of_an_entry_size, 4),
    (zero_a_block, 4),
    (zero_the_end, 4),
    (write_garbage, 4),
    (cut, 4),
    (cut_out, 3),
]


@pytest.mark.parametrize(
    ("spoil", "seed"),
    [pytest.param(spoil, seed, id=f"{spoil.__name__}-{seed}") for spoil, count in SPOILS for seed in range(count)],
)
def test_what_was_committed_before_the_damage_is_kept(tmp_path: Path, killed: Killed, spoil: Spoil, seed: int) -> None:
    log = spoil(wal_path(killed.database).read_bytes(), random.Random(f"{spoil.__name__} {seed}"))
    database = killed.copy_to(tmp_path, log)
    num_good = killed.count_before(log)
    with pytest.raises(StoreError, match="bulkinfer repair"):
        Store.open(database)
    assert wal_path(database).read_bytes() == log

    found = repair_database(database)
    check_report(found, database, num_good)
    assert [path.read_bytes() for path in found.kept_logs] == [log]
    check_next_run(database, num_good, killed)


def check_report(found: Repair, database: Path, num_good: int) -> None:
    """What the repair says is what is there."""
    assert found.outcome is RepairOutcome.REPAIRED
    assert (found.num_commits, found.num_recovered_commits) == (num_good, num_good)
    assert found.num_lost_commits == NUM_COMMITS - num_good
    ((num_answers,),) = select(database, "select count(*) from results")
    assert found.num_answers == found.num_recovered_answers == num_answers
    assert num_good == 0 or not wal_path(database).exists()
    assert not trial_path(database).exists()


def check_next_run(database: Path, num_good: int, killed: Killed) -> None:
    """The first commits are there, once and in order; the next run asks the rest, and ends as an undisturbed one."""
    kept = TEXTS[: num_good * len(TEXTS) // NUM_COMMITS]
    assert select_all(
        database, ["select seq from commits order by rowid", "select row from document_rows order by rowid"]
    ) == [[(seq,) for seq in range(1, num_good + 1)], [(row,) for row in range(1, len(kept) + 1)]]
    assert run_job(database, {"a.jsonl": TEXTS}) == set(TEXTS) - set(kept)
    results, failures, answers = select_all(database, ENDS)
    assert [results, failures, answers] == killed.undisturbed
    assert len(results) + len(failures) == len(TEXTS)


def select_all(database: Path, statements: Sequence[str]) -> list[Rows]:
    """The rows of several statements."""
    with Reader.open(database) as reader:
        return [list(reader.query(sql).rows) for sql in statements]


def test_log_of_another_database_is_set_aside(tmp_path: Path, killed: Killed) -> None:
    (tmp_path / "other").mkdir()
    log = wal_path(kill_a_run(tmp_path / "other").database).read_bytes()
    database = killed.copy_to(tmp_path, log)
    found = repair_database(database)
    check_report(found, database, 0)
    assert [path.read_bytes() for path in found.kept_logs] == [log]
    check_next_run(database, 0, killed)


def test_damaged_log_whose_commits_are_in_the_file_already_doubles_nothing(tmp_path: Path, killed: Killed) -> None:
    """Killed in a checkpoint, after the file was written and before the log was deleted."""
    database = killed.copy_to(tmp_path)
    with duckdb.connect(database) as connection:
        connection.execute("pragma disable_checkpoint_on_shutdown")
        connection.execute("set debug_checkpoint_abort = 'before_truncate'")
        with pytest.raises(duckdb.FatalException):
            connection.execute("checkpoint")
    log = bytearray(wal_path(database).read_bytes())
    log[len(log) // 3] ^= 1
    wal_path(database).write_bytes(log)
    with pytest.raises(StoreError, match="bulkinfer repair"):
        Store.open(database)
    found = repair_database(database)
    assert (found.outcome, found.num_commits, found.num_recovered_commits) == (RepairOutcome.REPAIRED, NUM_COMMITS, 0)
    assert found.num_lost_commits == 0
    assert "lost: no commit that was finished" in "\n".join(found.describe())
    check_next_run(database, NUM_COMMITS, killed)


def test_end_of_a_log_that_was_no_whole_commit_is_no_damage(tmp_path: Path, killed: Killed) -> None:
    """A kill leaves such a log: the next run opens it."""
    log = wal_path(killed.database).read_bytes()
    database = killed.copy_to(tmp_path, log + log[: killed.commit_ends[0] // 2])
    before = read_files(tmp_path)
    found = repair_database(database)
    assert (found.outcome, found.num_commits, found.num_lost_commits) == (RepairOutcome.INTACT, NUM_COMMITS, 0)
    assert read_files(tmp_path) == before
    check_next_run(database, NUM_COMMITS, killed)


def read_files(folder: Path) -> dict[str, bytes]:
    """All files but the lock, which says who looked last."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}


@pytest.mark.parametrize("has_log", [True, False])
def test_nothing_is_changed_where_nothing_is_damaged(tmp_path: Path, killed: Killed, has_log: bool) -> None:
    database = killed.copy_to(tmp_path)
    if not has_log:
        Store.open(database).close()
    before = read_files(tmp_path)
    found = repair_database(database)
    assert (found.outcome, found.num_commits, found.num_lost_commits) == (RepairOutcome.INTACT, NUM_COMMITS, 0)
    assert found.kept_logs == ()
    assert read_files(tmp_path) == before


def test_log_that_was_removed_is_accepted_and_still_fits_later(tmp_path: Path, killed: Killed) -> None:
    database = killed.copy_to(tmp_path)
    kept = wal_path(database).rename(tmp_path / "kept")
    with pytest.raises(StoreError, match=r"10 commits are missing.*bulkinfer repair"):
        Store.open(database)
    found = repair_database(database)
    assert (found.outcome, found.num_commits) == (RepairOutcome.LOSS_ACCEPTED, 0)
    assert found.num_lost_commits == NUM_COMMITS
    assert repair_database(database).outcome is RepairOutcome.INTACT
    kept.rename(wal_path(database))
    assert select(database, "select count(*) from commits") == [(NUM_COMMITS,)]
    wal_path(database).unlink()
    check_next_run(database, 0, killed)


def test_without_a_status_file_nobody_knows_what_is_lost(tmp_path: Path, killed: Killed) -> None:
    log = wal_path(killed.database).read_bytes()
    database = killed.copy_to(tmp_path, log[:-1000] + bytes([log[-1000] ^ 1]) + log[-999:])
    status_path(database).unlink()
    found = repair_database(database)
    assert (found.num_commits, found.num_lost_commits) == (NUM_COMMITS - 1, None)
    assert "nobody knows how many commits" in "\n".join(found.describe())
    status = read_status(database)
    assert status is not None
    assert status["num_commits"] == NUM_COMMITS - 1


def test_second_damaged_log_is_kept_beside_the_first(
    tmp_path: Path, killed: Killed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the same second, too."""
    log = flip_in_the_middle(wal_path(killed.database).read_bytes())
    database = killed.copy_to(tmp_path, log)
    monkeypatch.setattr(repair, "datetime", StoppedClock)
    repair_database(database)
    log = flip_in_the_middle(wal_path(killed.database).read_bytes()[:-100])
    (tmp_path / "again").mkdir()
    for path in killed.copy_to(tmp_path / "again", log).parent.iterdir():
        path.replace(tmp_path / path.name)
    found = repair_database(database)
    names = ["a.duckdb.wal.corrupt-20260102T030405Z", "a.duckdb.wal.corrupt-20260102T030405Z-2"]
    assert [path.name for path in found.kept_logs] == names
    assert found.kept_logs[1].read_bytes() == log


class StoppedClock(datetime):
    """Always the same second."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "StoppedClock":
        return cls(2026, 1, 2, 3, 4, 5)


def remove(database: Path) -> None:
    database.unlink()
    wal_path(database).unlink()


def write_text(database: Path) -> None:
    database.write_text("no database at all " * 500)


def write_other_tables(database: Path) -> None:
    remove(database)
    duckdb.connect(database).execute("create table t(a integer)").close()


def write_newer_schema(database: Path) -> None:
    wal_path(database).unlink()
    with duckdb.connect(database) as connection:
        connection.execute("update meta set value = '2' where key = 'schema_version'")


def write_newer_schema_and_damage(database: Path) -> None:
    write_newer_schema(database)
    wal_path(database).write_bytes(bytes(range(256)) * 10)


def damage_file(database: Path) -> None:
    """The headers: it does not open at all."""
    content = bytearray(database.read_bytes())
    content[4096:12288] = b"\x5a" * 8192
    database.write_bytes(content)


def damage_file_without_log(database: Path) -> None:
    damage_file(database)
    wal_path(database).unlink()


def damage_block(database: Path) -> None:
    """It opens, but not all of it can be read."""
    Store.open(database).close()
    with duckdb.connect(database, read_only=True) as connection:
        ((block,),) = connection.execute(
            "select any_value(block_id) from pragma_storage_info('results') "
            "where column_name = 'output' and segment_type = 'VARCHAR'"
        ).fetchall()
    content = bytearray(database.read_bytes())
    content[3 * 4096 + block * 262144 + 100] ^= 1
    database.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (remove, "there is no database yet"),
        (lambda database: database.unlink(), "put the database back beside it"),
        (write_text, "is not a DuckDB database"),
        (write_other_tables, "not bulkinfer's"),
        (write_newer_schema, "schema version 2"),
        (write_newer_schema_and_damage, "schema version 2"),
        (damage_file, "cannot be repaired.*Restore it"),
        (damage_file_without_log, "cannot be repaired.*Restore it"),
        (damage_block, "cannot be repaired.*Restore it"),
    ],
)
def test_what_cannot_be_repaired_is_said_and_left_as_it_is(
    tmp_path: Path, killed: Killed, spoil: Callable[[Path], None], message: str
) -> None:
    database = killed.copy_to(tmp_path)
    spoil(database)
    before = read_files(tmp_path)
    with pytest.raises(StoreError, match=message) as caught:
        repair_database(database)
    assert caught.value.exit_code is ExitCode.STORE
    assert str(database) in str(caught.value)
    assert read_files(tmp_path) == before


def test_database_of_a_live_run_is_left_alone(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    store = Store.open(database)
    with pytest.raises(StoreLocked) as caught:
        repair_database(database)
    assert caught.value.exit_code is ExitCode.LOCKED
    store.close()


def test_database_that_another_process_reads_is_left_alone(
    tmp_path: Path, killed: Killed, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = killed.copy_to(tmp_path)
    monkeypatch.setattr(repair, "_LOCK_WAIT_S", 0.0)
    reader = "import duckdb, sys; c = duckdb.connect(sys.argv[1], read_only=True); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", reader, str(database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        with pytest.raises(StoreLocked, match=f"process {process.pid} has this database open"):
            repair_database(database)
        process.communicate("\n", timeout=60)


def test_what_a_killed_repair_left_is_cleared_away(tmp_path: Path, killed: Killed) -> None:
    log = flip_in_the_middle(wal_path(killed.database).read_bytes())
    database = killed.copy_to(tmp_path, log)
    trial_path(database).mkdir()
    os.link(database, trial_path(database) / "trial.duckdb")
    (trial_path(database) / "trial.duckdb.wal").write_bytes(b"half")
    (trial_path(database) / "trial.tmp").mkdir()
    (trial_path(database) / "trial.tmp" / "duckdb_temp").touch()
    check_report(repair_database(database), database, killed.count_before(log))


def test_folder_of_somebody_else_is_left_alone(tmp_path: Path, killed: Killed) -> None:
    log = flip_in_the_middle(wal_path(killed.database).read_bytes())
    database = killed.copy_to(tmp_path, log)
    trial_path(database).mkdir()
    (trial_path(database) / "notes").touch()
    with pytest.raises(StoreError, match=r"a.duckdb.repair cannot be made: Directory not empty"):
        repair_database(database)
    assert (trial_path(database) / "notes").exists()
    assert wal_path(database).read_bytes() == log


def test_log_keeps_its_mode(tmp_path: Path, killed: Killed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two steps: at the end there is no log."""
    log = wal_path(killed.database).read_bytes()
    database = killed.copy_to(tmp_path, log[:-1000] + bytes([log[-1000] ^ 1]) + log[-999:])
    wal_path(database).chmod(0o640)

    def stop_here(_database: Path) -> Content:
        assert stat.S_IMODE(wal_path(database).stat().st_mode) == 0o640
        raise ZeroDivisionError

    monkeypatch.setattr(repair, "_fold_log_in", stop_here)
    with pytest.raises(ZeroDivisionError):
        repair_database(database)


_REPAIR_AS_NOBODY = """
import os, sys
from pathlib import Path
from bulkinfer.errors import StoreError
from bulkinfer.store import repair_database
import bulkinfer.store.repair, duckdb, pyarrow
if os.getuid() == 0:
    os.setuid(65534)
try:
    repair_database(Path(sys.argv[1]))
except StoreError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("path", "mode", "message"),
    [
        ("", 0o555, "a.duckdb.repair cannot be made: Permission denied"),
        ("a.duckdb", 0o444, "no permission to write to it"),
        ("a.duckdb.lock", 0o444, "the lock file cannot be opened"),
        ("a.duckdb.wal", 0o000, "cannot be copied or replaced: Permission denied"),
    ],
)
def test_missing_permission_changes_nothing(
    open_folder: Path, killed: Killed, path: str, mode: int, message: str
) -> None:
    log = flip_in_the_middle(wal_path(killed.database).read_bytes())
    database = killed.copy_to(open_folder, log)
    for file in open_folder.iterdir():
        file.chmod(0o666)
    before = read_files(open_folder)
    (open_folder / path).chmod(mode)
    found = subprocess.run(
        [sys.executable, "-c", _REPAIR_AS_NOBODY, str(database)], capture_output=True, text=True, timeout=60, check=True
    )
    assert message in found.stdout
    (open_folder / path).chmod(0o777)
    assert read_files(open_folder) == before


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach: those of pytest are closed to them."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    folder.chmod(0o777)
    shutil.rmtree(folder)


def test_no_room_changes_nothing_and_a_second_try_with_room_repairs(tmp_path: Path, killed: Killed) -> None:
    """A limit on file sizes makes writes fail as a full disk does."""
    log = flip_in_the_middle(wal_path(killed.database).read_bytes())
    database = killed.copy_to(tmp_path, log)
    before = read_files(tmp_path)
    script = "import resource, sys; from pathlib import Path; from bulkinfer.store import repair_database; "
    script += "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, -1)); repair_database(Path(sys.argv[1]))"
    found = subprocess.run(
        [sys.executable, "-c", script, str(database)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "its log cannot be copied or replaced: File too large" in found.stderr
    assert read_files(tmp_path) == before
    check_report(repair_database(database), database, killed.count_before(log))


def test_remains_of_a_database_are_known(tmp_path: Path, killed: Killed) -> None:
    database = killed.copy_to(tmp_path)
    assert has_remains(database)
    status_path(database).unlink()
    assert has_remains(database)
    wal_path(database).unlink()
    assert not has_remains(database)
    assert find_kept_logs(database) == []
