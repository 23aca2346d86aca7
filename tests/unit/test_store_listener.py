"""A live store answers other processes' questions through its socket, can only be read through it, and never hangs."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

import duckdb
import pytest

from bulkinfer.errors import JobError, StoreError, StoreLocked
from bulkinfer.framing import read_frame, send_frame
from bulkinfer.store import (
    Form,
    RemoteReader,
    RunSelection,
    Store,
    iter_listed,
    lookups,
    open_reader,
    read_holder,
    read_listed_run,
)
from bulkinfer.store.listener import MAX_CLIENTS, Listener, _Client
from bulkinfer.store.paths import reach_socket, socket_path
from bulkinfer.store.wire import Ask, Lines, Question, Refused, Reply, Working, decode_reply, encode_question
from tests.unit.store_support import TASK, hash_of, make_failure, make_file, make_result, make_rows, make_run, select

LIMIT_S = 20.0
Connect = Callable[[], socket.socket]
FOR_EVER = "select count(*) from range(1000000) a, range(1000000) b where a.range * b.range % 7 = 3"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "a.duckdb"


@pytest.fixture
def store(database: Path) -> Iterator[Store]:
    """A run in the middle: one answer and one failure on disk."""
    store = Store.open(database)
    [scan] = store.begin_run(make_run(), TASK, [make_file()], "body")
    store.listen(5.0)
    store.add_rows(make_rows(scan, ["a", "b"]))
    store.add([make_result("a", output="answer"), make_failure("b", row=2)])
    store.flush()
    yield store
    store.close()


def wait_until(condition: Callable[[], object], what: str) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until_s, f"waited {LIMIT_S} s for {what}"
        time.sleep(0.01)


def ask(database: Path, sql: str, timeout_s: float = LIMIT_S) -> list[tuple[object, ...]]:
    with open_reader(database, timeout_s) as reader:
        assert isinstance(reader, RemoteReader)
        return list(reader.query(sql).rows)


def test_a_live_run_is_asked_through_its_socket(store: Store, database: Path) -> None:
    assert ask(database, "select document_id, output from answers") == [("a@1", "answer")]
    store.add([make_result("c", output="later")])
    store.flush()
    assert ask(database, "select count(*) from results") == [(2,)]


def test_reports_and_export_of_a_live_run(store: Store, database: Path) -> None:
    with open_reader(database) as reader:
        assert reader.names() == ["job"]
        [summary] = reader.summary("job")
        assert (summary.num_rows, summary.num_answered, summary.status) == (2, 1, None)
        assert [failure.document_id for failure in reader.failures()] == ["b@2"]
        run = read_listed_run(reader, "job")
        found = list(iter_listed(reader, run, run.scans, Form(("output",))))
    assert [status for lines in found for status in lines.column("status").to_pylist()] == ["answered", "failed"]


def test_many_rows_arrive_in_order_and_whole(store: Store, database: Path) -> None:
    assert ask(database, "select range, sum(range) over () from range(2500)") == [(n, 3123750) for n in range(2500)]


def test_the_status_is_that_of_this_moment(store: Store, database: Path) -> None:
    store.status_source = lambda: {"documents": {"read": 7}}
    reader = open_reader(database)
    assert isinstance(reader, RemoteReader)
    assert reader.status()["documents"] == {"read": 7}


@pytest.mark.parametrize(
    "sql",
    [
        "insert into meta values ('a', 'b')",
        "delete from results",
        "drop table results",
        "with gone as (delete from results returning *) select * from gone",
        "create table t(a int)",
        "attach '/etc/hostname' as h",
        "copy results to 'x.csv'",
        "select * from read_text('/etc/hostname')",
        "select * from '/etc/hostname'",
        "load httpfs",
        "install httpfs",
        "set memory_limit = '1TB'",
        "pragma enable_profiling",
        "call enable_logging('QueryLog')",
        "select * from enable_logging('QueryLog')",
        "begin transaction",
        "checkpoint",
        "select * from force_checkpoint()",
        "select 1; drop table results",
        "select nothing from nowhere",
    ],
)
@pytest.mark.parametrize("kind", [Ask.QUERY, Ask.SELECT, Ask.ARROW])
def test_nothing_but_reading_goes_through_the_socket(store: Store, database: Path, kind: Ask, sql: str) -> None:
    reader = open_reader(database)
    assert isinstance(reader, RemoteReader)
    before = ask(database, "select (select count(*) from results), (select count(*) from meta)")
    with pytest.raises((JobError, StoreError)):
        list(reader._ask(Question(kind, sql, {}, 10)))
    assert ask(database, "select (select count(*) from results), (select count(*) from meta)") == before
    store.add([make_result("d")])
    store.flush()


def test_only_the_owner_may_connect_and_the_socket_goes_with_the_run(store: Store, database: Path) -> None:
    mode = socket_path(database).stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    store.close()
    assert not socket_path(database).exists()
    assert select(database, "select count(*) from results") == [(1,)]


def test_a_path_longer_than_a_socket_address(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    store = Store.open(folder / "a.duckdb")
    store.begin_run(make_run(), TASK, [make_file()], "body")
    store.listen(5.0)
    assert ask(folder / "a.duckdb", "select 1") == [(1,)]
    store.close()


@pytest.mark.parametrize("num_chars", [70, 80, 190])
def test_a_database_name_longer_than_a_socket_address(tmp_path: Path, num_chars: int) -> None:
    database = tmp_path / f"{'d' * num_chars}.duckdb"
    store = Store.open(database)
    store.begin_run(make_run(), TASK, [make_file()], "body")
    store.listen(5.0)
    assert ask(database, "select 1") == [(1,)]
    store.close()
    assert not socket_path(database).exists()


def test_clients_come_and_go_while_the_writer_reopens_the_database(store: Store, database: Path) -> None:
    """Neither may the writer fail at a list that changes, nor a client at a connection that is gone."""
    unexpected: list[BaseException] = []
    is_over = threading.Event()

    def come_and_go() -> None:
        while not is_over.is_set():
            try:
                reader = store.create_reader()
                list(reader.query("select count(*) from results").rows)
                reader.close()
            except StoreError:
                continue
            except BaseException as error:  # noqa: BLE001 - shown below
                unexpected.append(error)
                return

    clients = [threading.Thread(target=come_and_go) for _ in range(4)]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for client in clients:
            client.start()
        for number in range(60):
            store._connections.close()
            store.add([make_result(f"again {number}")])
            store.flush()
    finally:
        sys.setswitchinterval(interval_s)
        is_over.set()
        for client in clients:
            client.join(LIMIT_S)
    assert unexpected == []
    store.close()
    assert select(database, "select count(*) from results") == [(61,)]


def test_large_answers_arrive_in_bounded_pieces(store: Store, database: Path) -> None:
    sql = "select repeat('x', 300000) as x from range(20)"
    assert [len(str(text)) for (text,) in ask(database, sql)] == [300_000] * 20
    reader = open_reader(database)
    assert isinstance(reader, RemoteReader)
    batches = list(reader.iter_arrow(sql, {}, 20_000))
    assert sum(batch.num_rows for batch in batches) == 20
    assert max(batch.nbytes for batch in batches) < 2 * 1024 * 1024


def test_the_socket_of_a_dead_run_blocks_nobody(database: Path) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from bulkinfer.store import Store
from tests.unit.store_support import TASK, make_file, make_run
store = Store.open(Path(sys.argv[1]))
store.begin_run(make_run(), TASK, [make_file()], "body")
store.listen(5.0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    dead = subprocess.run([sys.executable, "-c", code, str(database)], timeout=60, check=False)
    assert dead.returncode == -signal.SIGKILL
    assert stat.S_ISSOCK(socket_path(database).stat().st_mode)
    with open_reader(database) as reader:
        assert list(reader.query("select count(*) from runs").rows) == [(1,)]
    store = Store.open(database)
    store.begin_run(make_run(), TASK, [make_file()], "body")
    store.listen(5.0)
    assert ask(database, "select count(*) from runs") == [(2,)]
    store.close()


def test_a_file_in_the_sockets_place_is_left_alone(database: Path) -> None:
    store = Store.open(database)
    store.begin_run(make_run(), TASK, [make_file()], "body")
    socket_path(database).write_text("mine")
    with pytest.raises(StoreError, match=r"a\.duckdb\.sock: no socket can be made"):
        store.listen(5.0)
    store.close()
    assert socket_path(database).read_text() == "mine"


def test_a_run_without_a_socket_is_named(database: Path) -> None:
    store = Store.open(database)
    with pytest.raises(StoreLocked, match=f"pid {os.getpid()}"):
        open_reader(database)
    store.close()


@pytest.fixture
def connect(database: Path) -> Iterator[Callable[[], socket.socket]]:
    """A bare connection to the live store's socket; closed after the test."""
    connections: list[socket.socket] = []

    def connect() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connections.append(connection)
        connection.settimeout(LIMIT_S)
        with reach_socket(socket_path(database)) as address:
            connection.connect(address)
        return connection

    yield connect
    for connection in connections:
        connection.close()


def test_a_client_that_says_nothing_is_dropped(database: Path, connect: Connect) -> None:
    store = Store.open(database)
    store.begin_run(make_run(), TASK, [make_file()], "body")
    store.listen(1.0)
    silent = connect()
    assert silent.recv(1) == b"", "the run has hung up"
    assert ask(database, "select 1") == [(1,)]
    store.close()


def test_a_client_that_does_not_read_is_dropped(database: Path, connect: Connect) -> None:
    store = Store.open(database)
    store.begin_run(make_run(), TASK, [make_file()], "body")
    store.listen(1.0)
    lazy = connect()
    send_frame(lazy, encode_question(Question(Ask.QUERY, "select repeat('x', 100000) from range(1000)")))
    assert store._listener is not None
    wait_until(lambda: not store._listener._clients, "the client to be dropped")  # type: ignore[union-attr]
    store.add([make_result("a")])
    store.flush()
    store.close()


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b"\xff\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n"])
def test_nonsense_is_answered_by_hanging_up(store: Store, database: Path, body: bytes, connect: Connect) -> None:
    connection = connect()
    connection.sendall(len(body).to_bytes(4, "big") + body if body[:1] != b"G" else body)
    with connection.makefile("rb") as stream:
        assert read_frame(stream) is None
    assert ask(database, "select 1") == [(1,)]


def test_a_client_that_leaves_ends_its_statement(store: Store, database: Path, connect: Connect) -> None:
    leaving = connect()
    send_frame(leaving, encode_question(Question(Ask.QUERY, FOR_EVER)))
    assert store._listener is not None
    clients = store._listener._clients
    wait_until(lambda: any(client.reader for client in clients), "the statement to run")
    leaving.close()
    wait_until(lambda: not clients, "the statement to end")


def test_a_long_statement_gives_signs_of_life(
    store: Store, database: Path, monkeypatch: pytest.MonkeyPatch, connect: Connect
) -> None:
    monkeypatch.setattr("bulkinfer.store.listener._SIGN_OF_LIFE_EVERY_S", 0.1)
    monkeypatch.setattr("bulkinfer.store.listener._TURN_S", 0.1)
    connection = connect()
    send_frame(connection, encode_question(Question(Ask.QUERY, FOR_EVER)))
    with connection.makefile("rb") as stream:
        signs = [read_frame(stream) for _ in range(3)]
    connection.close()
    assert signs == [b"W"] * 3


def test_the_end_of_the_run_ends_a_statement_and_says_so(store: Store, database: Path) -> None:
    told: list[str] = []

    def wait_for_answer() -> None:
        try:
            ask(database, FOR_EVER)
        except StoreLocked as error:
            told.append(str(error))

    client = threading.Thread(target=wait_for_answer)
    client.start()
    assert store._listener is not None
    clients = store._listener._clients
    wait_until(lambda: any(each.reader for each in clients), "the statement to run")
    store.close()
    client.join(LIMIT_S)
    assert [("try again" in text) for text in told] == [True]
    assert select(database, "select count(*) from results") == [(1,)]


def test_a_lookup_that_lacks_the_memory_of_a_client_ends_the_client_not_the_run(
    store: Store, database: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All share the limit, and what an aggregate such as `list` holds goes to no disk."""
    connection = connect()
    held = "(select list(range) as held from range(100000))"
    statement = f"select sum(len(held) + range) from {held}, range(1000000000000)"
    send_frame(connection, encode_question(Question(Ask.QUERY, statement)))
    assert store._listener is not None
    clients = store._listener._clients
    wait_until(lambda: any(each.reader for each in clients), "the statement to run")
    find_done = lookups.find_done

    def find_done_with_all_memory(
        cursor: duckdb.DuckDBPyConnection, run_id: UUID, task: UUID, hashes: Sequence[bytes], selection: RunSelection
    ) -> frozenset[bytes]:
        if clients:
            raise duckdb.OutOfMemoryException("could not allocate block of size 256 KiB")
        return find_done(cursor, run_id, task, hashes, selection)

    monkeypatch.setattr(lookups, "find_done", find_done_with_all_memory)
    store.add([make_result("c")])
    assert store.find_done([hash_of("a"), hash_of("d")], RunSelection()) == {hash_of("a")}
    assert isinstance(read_replies(connection)[-1], Refused)
    store.add([make_result("d")])
    store.flush()
    assert ask(database, "select count(*) from results") == [(3,)]


@pytest.mark.parametrize("kind", [Ask.QUERY, Ask.SELECT, Ask.ARROW])
def test_reopening_the_database_ends_statements_and_loses_no_commit(
    store: Store, database: Path, connect: Connect, kind: Ask
) -> None:
    """What the writer does after a failed commit: nobody else may keep the dead database open."""
    connection = connect()
    send_frame(connection, encode_question(Question(kind, FOR_EVER, {}, 10)))
    assert store._listener is not None
    clients = store._listener._clients
    wait_until(lambda: any(each.reader for each in clients), "the statement to run")
    reopen_and_commit(store)
    frames = read_replies(connection)
    assert isinstance(frames[-1], Refused)
    assert not frames[-1].is_statement
    assert ask(database, "select count(*) from results") == [(2,)]


def test_reopening_the_database_ends_an_export_half_way_and_loses_no_commit(
    store: Store, database: Path, connect: Connect
) -> None:
    """Its end is a refusal or the connection's, and never `Done`: half an export must not look whole."""
    connection = connect()
    rows = "select range, repeat('x', 1000) from range(1000000)"
    send_frame(connection, encode_question(Question(Ask.ARROW, rows, {}, 100)))
    with connection.makefile("rb") as stream:
        replies = iter_replies(stream)
        assert isinstance(next(replies), Lines)
        last: list[Reply] = []
        client = threading.Thread(target=lambda: last.extend(one for one in replies if not isinstance(one, Lines)))
        client.start()
        reopen_and_commit(store)
        client.join(LIMIT_S)
    assert not client.is_alive()
    ends = [one for one in last if not isinstance(one, Working)]
    assert [isinstance(one, Refused) and not one.is_statement for one in ends] in ([], [True])
    assert ask(database, "select count(*) from results") == [(2,)]


def reopen_and_commit(store: Store) -> None:
    store._connections.close()
    store.add([make_result("after")])
    store.flush()


def read_replies(connection: socket.socket) -> list[Reply]:
    with connection.makefile("rb") as stream:
        return list(iter_replies(stream))


def iter_replies(stream: BinaryIO) -> Iterator[Reply]:
    """Replies until the connection's end."""
    while (body := read_frame(stream)) is not None:
        yield decode_reply(body)


def test_too_many_clients_are_told_so(store: Store, database: Path, connect: Connect) -> None:
    waiting = [connect() for _ in range(MAX_CLIENTS)]
    assert store._listener is not None
    clients = store._listener._clients
    wait_until(lambda: len(clients) == MAX_CLIENTS, "all of them")
    with pytest.raises(StoreLocked, match="try again"):
        ask(database, "select 1")
    for connection in waiting:
        connection.close()
    wait_until(lambda: not clients, "their end")
    assert ask(database, "select 1") == [(1,)]


def test_a_run_that_is_stopped_does_not_hang_its_clients(database: Path) -> None:
    code = """
import sys
from pathlib import Path
from bulkinfer.store import Store
from tests.unit.store_support import TASK, make_file, make_run
store = Store.open(Path(sys.argv[1]))
store.begin_run(make_run(), TASK, [make_file()], "body")
store.listen(5.0)
print("ready", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code, str(database)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            assert run.stdout.readline() == "ready\n"
            run.send_signal(signal.SIGSTOP)
            holder = read_holder(database)
            assert holder is not None
            with pytest.raises(StoreLocked, match=r"no sign of life for 0\.3 s"):
                list(RemoteReader(database, holder, 0.3).query("select 1").rows)
        finally:
            run.kill()


def test_a_listener_needs_its_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no socket can be made"):
        Listener(tmp_path / "gone" / "a.duckdb", lambda: pytest.fail("nobody asks"), dict, 1.0)


def test_a_question_that_is_too_long_is_refused_before_it_is_read(
    store: Store, database: Path, connect: Connect
) -> None:
    connection = connect()
    connection.sendall((2**31).to_bytes(4, "big"))
    assert connection.recv(1) == b""
    assert json.dumps(ask(database, "select 1")) == "[[1]]"


def is_sending(client: _Client) -> bool:
    """Whether a client's thread has been busy sending for half a second."""
    is_free = client.lock.acquire(timeout=0.5)
    if is_free:
        client.lock.release()
    return not is_free


def test_an_export_that_nobody_reads_does_not_keep_the_database_from_reopening(
    database: Path, connect: Connect
) -> None:
    store = Store.open(database)
    store.begin_run(make_run(), TASK, [make_file()], "body")
    store.listen(60.0)
    lazy = connect()
    rows = "select range, repeat('x', 1000) from range(1000000)"
    send_frame(lazy, encode_question(Question(Ask.ARROW, rows, {}, 100)))
    assert store._listener is not None
    clients = store._listener._clients
    wait_until(lambda: any(map(is_sending, clients)), "a full pipe")
    reopen_and_commit(store)
    assert ask(database, "select count(*) from results") == [(1,)]
    store.close()
