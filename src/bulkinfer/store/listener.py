"""The run's side of the socket `<database>.sock`: answers read-only questions while the run writes.

It may cost a run time and memory, and changes nothing in it: each client has a connection of its own that cannot write
and a limit on how long it may take to ask or to read. Clients share the writer's memory limit; a statement that uses it
up makes a commit or a lookup of the run fail, which then ends all statements and is tried again. DuckDB does not
count the texts that a statement makes (`repeat`, say) towards that limit: about two thousand rows of them at a time.
"""

import os
import select
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from bulkinfer.errors import JobError, StoreError
from bulkinfer.framing import FrameTooLongError, read_frame, send_frame
from bulkinfer.records import JsonValue
from bulkinfer.store.paths import reach_socket, socket_path
from bulkinfer.store.reader import Reader
from bulkinfer.store.wire import (
    MAX_REQUEST_BYTES,
    Ask,
    Columns,
    Done,
    Lines,
    Question,
    Refused,
    Reply,
    Rows,
    Standing,
    Working,
    decode_question,
    encode_reply,
)

MAX_CLIENTS = 8
_BACKLOG = 32
_TURN_S = 0.25
_PAUSE_S = 0.01
_SIGN_OF_LIFE_EVERY_S = 0.5
_JOIN_LIMIT_S = 5.0
_TELL_LIMIT_S = 1.0
_ROWS_PER_FRAME = 1_000
_FRAME_BYTES = 1024 * 1024
"""About: a frame is held in memory several times while it is made."""
_GONE = "the run ended or had to reopen its database meanwhile; try again"


@dataclass(slots=True, eq=False)
class _Client:
    """One connection and its thread. The lock keeps two threads' frames apart."""

    connection: socket.socket
    reader: Reader | None = None
    is_asked: bool = False
    is_over: bool = False
    told_s: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, reply: Reply) -> None:
        """Send. Raises OSError when the client is gone or does not read."""
        with self.lock:
            send_frame(self.connection, encode_reply(reply))
            self.told_s = time.monotonic()

    def is_late(self, limit_s: float) -> bool:
        """Whether its question should have come: in pieces, it could take for ever."""
        return not self.is_asked and time.monotonic() - self.told_s > limit_s

    def give_sign_of_life(self) -> None:
        """Unless its own thread is sending; a client that is gone is found by that thread."""
        if self.is_asked and time.monotonic() - self.told_s > _SIGN_OF_LIFE_EVERY_S and self.lock.acquire(timeout=0):
            try:
                if not self.is_over and select.select([], [self.connection], [], 0)[1]:
                    send_frame(self.connection, encode_reply(Working()))
                    self.told_s = time.monotonic()
            except (OSError, ValueError):
                self.interrupt(can_still_be_told=False)
            finally:
                self.lock.release()

    def interrupt(self, *, can_still_be_told: bool) -> None:
        """End what it waits for: a statement, a question that does not come, or a client that does not read."""
        reader = self.reader
        if reader is not None:
            reader.interrupt()
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RD if can_still_be_told else socket.SHUT_RDWR)


class Listener:
    """From its construction to `close`. `client_timeout_s`: how long a client may say nothing, or not read."""

    def __init__(
        self,
        database: Path,
        create_reader: Callable[[], Reader],
        read_status: Callable[[], Mapping[str, JsonValue]],
        client_timeout_s: float,
    ) -> None:
        """Bind and begin to answer. The caller holds the run lock: a socket that is there already is a dead run's.

        Raises StoreError when there can be no socket: the run can do without.
        """
        self._create_reader = create_reader
        self._read_status = read_status
        self._client_timeout_s = client_timeout_s
        self._path = socket_path(database)
        self._socket = _bind(self._path)
        self._clients: list[_Client] = []
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="bulkinfer-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more clients, end those that are there, and remove the socket. Within about ten seconds."""
        self._is_closing = True
        with suppress(OSError):
            self._path.unlink()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._thread.join(_JOIN_LIMIT_S)
        self._socket.close()
        self.drop_clients()

    def drop_clients(self) -> None:
        """End those that are being answered: the writer wants the database for itself. Within about five seconds.

        A client that does not read holds up its thread, and an Arrow reader there keeps the database open, whatever is
        done to its connection: so its socket is shut.
        """
        clients = [client for client in list(self._clients) if client.is_asked]
        began_s = time.monotonic()
        while any(client in self._clients for client in clients):
            waited_s = time.monotonic() - began_s
            if waited_s > _JOIN_LIMIT_S:
                return
            for client in clients:
                client.interrupt(can_still_be_told=waited_s < _TELL_LIMIT_S)
            time.sleep(_PAUSE_S)

    def _run(self) -> None:
        while not self._is_closing:
            self._accept()
            for client in list(self._clients):
                if _has_hung_up(client.connection) or client.is_late(self._client_timeout_s):
                    client.interrupt(can_still_be_told=False)
                client.give_sign_of_life()

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except TimeoutError:
            return
        except OSError:  # the end, or no descriptor is free
            time.sleep(0 if self._is_closing else _TURN_S)
            return
        if len(self._clients) >= MAX_CLIENTS:
            _turn_away(connection)
            return
        connection.settimeout(self._client_timeout_s)
        client = _Client(connection)
        self._clients.append(client)
        threading.Thread(target=self._serve, args=(client,), name="bulkinfer-client", daemon=True).start()

    def _serve(self, client: _Client) -> None:
        """The life of one client."""
        try:
            with suppress(OSError, FrameTooLongError, ValueError), client.connection.makefile("rb") as stream:
                body = read_frame(stream, MAX_REQUEST_BYTES)
                if body is not None:
                    self._answer(client, decode_question(body))
        finally:
            with client.lock:
                client.is_over = True
            client.connection.close()
            self._clients.remove(client)

    def _answer(self, client: _Client, question: Question) -> None:
        client.is_asked = True
        try:
            for reply in self._iter_replies(client, question):
                client.tell(reply)
            client.tell(Done())
        except StoreError:
            client.tell(Refused(is_statement=False, message=_GONE))
        except JobError as error:
            client.tell(Refused(is_statement=True, message=str(error)))

    def _iter_replies(self, client: _Client, question: Question) -> Iterator[Reply]:
        if question.ask is Ask.STATUS:
            yield Standing(self._read_status())
            return
        reader = client.reader = self._create_reader()
        parameters = question.parameters or {}
        try:
            match question.ask:
                case Ask.QUERY:
                    result = reader.query(question.sql)
                    yield Columns(result.columns)
                    yield from _iter_rows(result.rows)
                case Ask.SELECT:
                    yield from _iter_rows(reader.select(question.sql, parameters))
                case Ask.ARROW:
                    for lines in reader.iter_arrow(question.sql, parameters, question.num_rows):
                        yield from _iter_lines(lines)
        finally:
            client.reader = None
            reader.close()


def _iter_rows(rows: Iterator[tuple[object, ...]]) -> Iterator[Rows]:
    gathered: list[tuple[object, ...]] = []
    num_chars = 0
    for row in rows:
        gathered.append(row)
        num_chars += sum(len(value) for value in row if isinstance(value, str | bytes))
        if len(gathered) == _ROWS_PER_FRAME or num_chars > _FRAME_BYTES:
            yield Rows(gathered)
            gathered, num_chars = [], 0
    if gathered:
        yield Rows(gathered)


def _iter_lines(lines: pa.RecordBatch) -> Iterator[Lines]:
    num_rows = max(1, lines.num_rows * _FRAME_BYTES // max(lines.nbytes, 1))
    for first in range(0, lines.num_rows, num_rows):
        yield Lines(lines.slice(first, num_rows))


def _turn_away(connection: socket.socket) -> None:
    refusal = Refused(is_statement=False, message=f"{MAX_CLIENTS} others are asking already; try again")
    with connection, suppress(OSError):
        connection.setblocking(False)  # noqa: FBT003 - positional only
        send_frame(connection, encode_reply(refusal))


def _bind(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        os.fchmod(listening.fileno(), 0o600)  # before it has a name: nobody else may connect, not even for an instant
        with reach_socket(path) as address:
            listening.bind(address)
        listening.listen(_BACKLOG)
        listening.settimeout(_TURN_S)
    except OSError as error:
        listening.close()
        raise StoreError(f"{path}: no socket can be made: {error.strerror}") from error
    return listening


def _remove_stale(path: Path) -> None:
    """The socket of a run that is dead; what is no socket is not ours to remove, and `bind` will refuse."""
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()


def _has_hung_up(connection: socket.socket) -> bool:
    poll = select.poll()
    try:
        poll.register(connection, select.POLLRDHUP)
    except ValueError:  # closed meanwhile
        return False
    return bool(poll.poll(0))
