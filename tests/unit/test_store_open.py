"""Whatever can be wrong with a database's place, file or log is one clear error, and changes nothing."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

from bulkinfer.errors import ExitCode, StoreError, StoreLocked
from bulkinfer.store import Reader, Store, is_database, paths, repair_database
from bulkinfer.store.paths import find_locking_pid, prepare_folder, wal_path
from tests.unit.store_support import QUICK, TASK, make_file, make_result, make_run, run_job, select

_KILLED_RUN = """
import os, signal, sys
from pathlib import Path
from bulkinfer.store import Store
from tests.unit.store_support import TASK, make_file, make_result, make_run
store = Store.open(Path(sys.argv[1]))
store.begin_run(make_run(), TASK, [make_file()], "body")
for number in range(int(sys.argv[2])):
    store.add([make_result(f"{number}-{k}") for k in range(50)])
    store.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
_OPEN_AS_NOBODY = """
import os, sys
from pathlib import Path
from bulkinfer.errors import StoreError
from bulkinfer.store import Store
Store.open(Path(sys.argv[2])).close()  # Python's own files may be closed to others: import all that is imported late
if os.getuid() == 0:
    os.setuid(65534)
try:
    Store.open(Path(sys.argv[1])).close()
except StoreError as error:
    print(error)
"""


# A version that knows no scan_ends leaves a log; then one that does is killed once it has made the table.
_KILLED_ADDITION = """
import os, signal, sys
from pathlib import Path
from bulkinfer.store import Store, database

class Killed:
    def __init__(self, connection):
        self.connection = connection
    def execute(self, sql):
        if sql == "checkpoint":
            os.kill(os.getpid(), signal.SIGKILL)
        return self.connection.execute(sql)

add_missing_tables = database._add_missing_tables
database._add_missing_tables = lambda connection, path: add_missing_tables(Killed(connection), path)
Store.open(Path(sys.argv[1]))
"""
_KILLED_OLD_RUN = f"""
from bulkinfer.store import database, runs
database._add_missing_tables = lambda *_: None
runs._find_last_rows = lambda *_: {{}}
{_KILLED_RUN}"""
_KILLED_LONG_RUN = """
import os, random, signal, sys
from pathlib import Path
from bulkinfer.store import Store, database
from bulkinfer.store.paths import wal_path
from tests.unit.store_support import TASK, make_file, make_result, make_run

dice = random.Random(1)
store = Store.open(Path(sys.argv[1]))
store.begin_run(make_run(), TASK, [make_file()], "body")
for first in range(0, 1500, 100):
    store.add([make_result(f"{first} {number}", output=dice.randbytes(10_000).hex()) for number in range(100)])
    store.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
_OPEN_WITH_LITTLE_MEMORY = """
import sys
from pathlib import Path
from bulkinfer.store import Store, database

database._WRITE_SETTINGS["memory_limit"] = "24MB"
Store.open(Path(sys.argv[1])).close()
"""


def run_script(script: str, database: Path, *arguments: str) -> int:
    return subprocess.run([sys.executable, "-c", script, str(database), *arguments], timeout=60, check=False).returncode


def leave_log(database: Path, num_commits: int = 3) -> Path:
    """A run of some commits that is killed; its commits are in the log only."""
    process = subprocess.run(
        [sys.executable, "-c", _KILLED_RUN, str(database), str(num_commits)], timeout=60, check=False
    )
    assert process.returncode == -signal.SIGKILL
    assert wal_path(database).stat().st_size > 0
    return wal_path(database)


def fill_with_text(database: Path) -> None:
    database.write_text("name: a job file, not a database\n" * 100)


def fill_with_nothing(database: Path) -> None:
    database.touch()


def fill_with_half(database: Path) -> None:
    Store.open(database).close()
    os.truncate(database, 5_000)


def fill_with_junk(database: Path) -> None:
    Store.open(database).close()
    content = bytearray(database.read_bytes())
    content[4096:12288] = b"\x5a" * 8192
    database.write_bytes(content)


def make_folder(database: Path) -> None:
    database.mkdir()


def make_pipe(database: Path) -> None:
    os.mkfifo(database)


def orphan_log(database: Path) -> None:
    leave_log(database)
    database.unlink()


def flip_bit_in_log(database: Path) -> None:
    wal = leave_log(database)
    content = bytearray(wal.read_bytes())
    content[len(content) // 2] ^= 1
    wal.write_bytes(content)


def take_foreign_log(database: Path) -> None:
    other = database.with_name("other.duckdb")
    wal = leave_log(other)
    Store.open(database).close()
    wal_path(database).write_bytes(wal.read_bytes())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (fill_with_text, "is not a DuckDB database"),
        (fill_with_nothing, "is not a DuckDB database"),
        (fill_with_half, "is damaged"),
        (fill_with_junk, "is damaged"),
        (make_folder, "is a folder"),
        (make_pipe, "special file"),
        (orphan_log, "its write-ahead log .*a.duckdb.wal is there"),
        (flip_bit_in_log, "write-ahead log .*a.duckdb.wal is damaged"),
        (take_foreign_log, "write-ahead log .*a.duckdb.wal is damaged"),
    ],
)
def test_spoiled_database_is_refused_and_left_as_it_is(
    tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    database = tmp_path / "a.duckdb"
    spoil(database)
    before = [path.read_bytes() for path in (database, wal_path(database)) if path.is_file()]
    with pytest.raises(StoreError, match=message) as caught:
        Store.open(database, limits=QUICK)
    assert str(database) in str(caught.value)
    assert caught.value.exit_code is ExitCode.STORE
    with pytest.raises(StoreError):
        Reader.open(database)
    assert [path.read_bytes() for path in (database, wal_path(database)) if path.is_file()] == before


def test_log_of_a_killed_run_is_read(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    leave_log(database)
    assert select(database, "select count(*), count(distinct document_hash) from results") == [(150, 150)]
    assert wal_path(database).exists()
    Store.open(database).close()
    assert not wal_path(database).exists()
    assert select(database, "select count(*) from results") == [(150,)]


def test_log_longer_than_the_memory_limit_is_read(tmp_path: Path) -> None:
    """What does not fit goes to the temporary folder."""
    database = tmp_path / "a.duckdb"
    assert run_script(_KILLED_LONG_RUN, database) == -signal.SIGKILL
    assert wal_path(database).stat().st_size > 24_000_000
    assert run_script(_OPEN_WITH_LITTLE_MEMORY, database) == 0
    assert not wal_path(database).exists()
    assert select(database, "select count(*), min(length(output)) from results") == [(1500, 20_000)]


@pytest.mark.parametrize(
    ("drop", "kept"),
    [
        ("drop table scan_ends", "duckdb_tables() where table_name = 'scan_ends'"),
        ("alter table samples drop column gpu_memory_bytes", "duckdb_columns() where column_name = 'gpu_memory_bytes'"),
    ],
)
def test_killed_while_it_adds_a_table_or_a_column_to_a_database_with_a_log_nothing_is_lost(
    tmp_path: Path, drop: str, kept: str
) -> None:
    database = tmp_path / "a.duckdb"
    Store.open(database).close()
    with duckdb.connect(database) as connection:
        connection.execute(drop)
    assert run_script(_KILLED_OLD_RUN, database, "3") == -signal.SIGKILL
    assert select(database, f"select count(*) from {kept}") == [(0,)]
    assert run_script(_KILLED_ADDITION, database) == -signal.SIGKILL
    assert wal_path(database).exists()
    for _ in range(2):
        assert select(database, f"select count(*), (select count(*) from {kept}) from results") == [(150, 1)]
        Store.open(database).close()
    assert not wal_path(database).exists()


def test_log_that_was_removed_is_noticed(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    wal = leave_log(database)
    kept = wal.rename(tmp_path / "kept.wal")
    with pytest.raises(StoreError, match="3 commits are missing") as caught:
        Store.open(database)
    assert str(wal) in str(caught.value)
    kept.rename(wal)
    Store.open(database).close()
    assert select(database, "select count(*) from results") == [(150,)]


def test_loss_can_be_accepted(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    leave_log(database).unlink()
    (tmp_path / "a.duckdb.status.json").unlink()
    assert run_job(database, {"a.jsonl": ["x"]}) == {"x"}


def test_status_of_a_database_that_was_deleted_means_nothing_to_a_new_one(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    run_job(database, {"a.jsonl": ["x"]})
    database.unlink()
    assert run_job(database, {"a.jsonl": ["x"]}) == {"x"}


def test_missing_database_is_created_but_not_by_a_reader(tmp_path: Path) -> None:
    database = tmp_path / "new" / "a.duckdb"
    with pytest.raises(StoreError, match="there is no database yet"):
        Reader.open(database)
    assert not database.parent.exists()
    Store.open(database).close()
    assert is_database(database)


def test_folder_is_created_only_when_one_level_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"the folder .*/new does not exist"):
        Store.open(tmp_path / "new" / "deeper" / "a.duckdb")
    assert list(tmp_path.iterdir()) == []


def test_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot write in the folder"):
        Store.open(tmp_path / "file" / "a.duckdb")


def test_full_disk_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "MIN_FREE_BYTES", 2**62)
    with pytest.raises(StoreError, match=r"only \d+ MB are free in .*, a run needs at least 4398046511104 MB"):
        Store.open(tmp_path / "a.duckdb")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("mode", "path", "message"),
    [
        (0o555, "", "Permission denied"),
        (0o444, "a.duckdb", "no permission to write to it"),
        (0o000, "a.duckdb", "no permission to read it"),
        (0o444, "a.duckdb.lock", "the lock file cannot be opened: Permission denied"),
    ],
)
def test_missing_permission_is_one_error(tmp_path: Path, open_folder: Path, mode: int, path: str, message: str) -> None:
    database = open_folder / "a.duckdb"
    Store.open(database).close()
    for file in open_folder.iterdir():
        file.chmod(0o666)
    assert open_as_nobody(database, tmp_path / "b.duckdb") == ""
    (open_folder / path).chmod(mode)
    said = open_as_nobody(database, tmp_path / "b.duckdb")
    assert said.startswith(f"{database}")
    assert message in said


@pytest.mark.parametrize("mode", [0o444, 0o000])
def test_log_that_may_not_be_written_is_not_taken_for_damaged(tmp_path: Path, open_folder: Path, mode: int) -> None:
    """As one that root left behind."""
    database = open_folder / "a.duckdb"
    leave_log(database)
    for file in open_folder.iterdir():
        file.chmod(0o666)
    wal_path(database).chmod(mode)
    said = open_as_nobody(database, tmp_path / "b.duckdb")
    assert said == f"{database}: no permission to write to {database}.wal\n"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach: those of pytest are closed to them."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    folder.chmod(0o777)
    shutil.rmtree(folder)


def open_as_nobody(database: Path, other: Path) -> str:
    """Open and close a store without root's rights, which no permission stops; returns the error's message."""
    process = subprocess.run(
        [sys.executable, "-c", _OPEN_AS_NOBODY, str(database), str(other)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, "")
    return process.stdout


def test_files_are_readable_for_others(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    mask = os.umask(0o022)
    try:
        run_job(database, {"a.jsonl": ["x"]})
    finally:
        os.umask(mask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"a.duckdb": 0o644, "a.duckdb.lock": 0o644, "a.duckdb.status.json": 0o644}


def test_writer_never_opens_its_database_itself(tmp_path: Path) -> None:
    """Closing any descriptor of the file would drop DuckDB's lock, and this process would not be seen as its holder."""
    database = tmp_path / "a.duckdb"
    store = Store.open(database)
    store.begin_run(make_run(), TASK, [make_file()], "body")
    store.add([make_result("x")])
    store.flush()
    with pytest.raises(StoreLocked):
        Store.open(database)
    with pytest.raises(StoreLocked):
        Reader.open(database)
    probe = "import sys; from pathlib import Path; from bulkinfer.store.paths import find_locking_pid as find\n"
    probe += "print(find(Path(sys.argv[1]), for_writing=True))"
    process = subprocess.run(
        [sys.executable, "-c", probe, str(database)], capture_output=True, text=True, timeout=60, check=True
    )
    assert process.stdout == f"{os.getpid()}\n"
    store.close()
    assert find_locking_pid(database, for_writing=True) is None


@pytest.mark.parametrize("name", ["a?b.duckdb", "a\\b.duckdb", "a\udcff.duckdb", f"{'d' * 220}.duckdb"])
@pytest.mark.parametrize("use", [Store.open, Reader.open, repair_database])
def test_a_path_that_duckdb_would_misread_is_refused(tmp_path: Path, name: str, use: Callable[[Path], object]) -> None:
    with pytest.raises(StoreError, match=r"path cannot hold|name may have 200 bytes"):
        use(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_in_the_spill_folder_is_removed(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    spill = Path(f"{database}.tmp")
    spill.mkdir()
    (spill / "duckdb_temp_storage_DEFAULT-0.tmp").write_bytes(b"an answer")
    (spill / "mine").write_bytes(b"")
    Store.open(database).close()
    assert [path.name for path in spill.iterdir()] == ["mine"]


def test_a_folder_that_is_there_and_takes_no_files_is_not_called_missing() -> None:
    with pytest.raises(StoreError, match="cannot write in the folder /proc"):
        prepare_folder(Path("/proc/out.duckdb"))
