"""Reading the database of a live run: the run is asked through its socket, and answers from a connection of its own."""

import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from bulkinfer.errors import JobError, StoreLocked
from bulkinfer.framing import read_frame, send_frame
from bulkinfer.records import JsonValue
from bulkinfer.store.database import check_no_orphaned_log
from bulkinfer.store.lock import Holder, locked_error, read_holder
from bulkinfer.store.paths import reach_socket, resolve_database, socket_path
from bulkinfer.store.reader import DatabaseBlank, QueryResult, Reader
from bulkinfer.store.reports import Reports
from bulkinfer.store.wire import (
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
    decode_reply,
    encode_question,
)

DEFAULT_TIMEOUT_S = 30.0
_SOCKET_WAIT_S = 2.0
_SOCKET_PAUSE_S = 0.05


def open_reader(path: Path, timeout_s: float = DEFAULT_TIMEOUT_S) -> "Reader | RemoteReader":
    """Read a database, whether a run writes it or not.

    Raises StoreError as `Reader.open` does, and StoreLocked when a run holds the database and has no socket.
    """
    database = resolve_database(path)
    until_s = time.monotonic() + _SOCKET_WAIT_S
    while (holder := read_holder(database)) is not None:
        reader = RemoteReader(database, holder, timeout_s)
        if reader.is_listened_to():
            return reader
        if time.monotonic() > until_s:  # a run has none in its first and last moments
            raise locked_error(database, holder)
        time.sleep(_SOCKET_PAUSE_S)
    return Reader.open(database)


def open_reader_if_any(path: Path, timeout_s: float = DEFAULT_TIMEOUT_S) -> "Reader | RemoteReader | None":
    """The same; None where there is no database yet, or one that is blank.

    Raises StoreError as well when the database is gone and has left its log.
    """
    database = resolve_database(path)
    if read_holder(database) is None and not database.exists():
        check_no_orphaned_log(database)
        return None
    try:
        return open_reader(path, timeout_s)
    except DatabaseBlank:
        return None


class RemoteReader(Reports):
    """What `Reader` is, on the database of a run that lives. Each question is a connection of its own.

    Every question raises StoreLocked when the run cannot be asked, gives no sign of life within `timeout_s` seconds, or
    ends meanwhile: what was asked can be asked again. `query` also raises JobError as `Reader.query` does.
    """

    def __init__(self, path: Path, holder: Holder, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.path = path
        self._holder = holder
        self._timeout_s = timeout_s
        self._open: set[socket.socket] = set()

    def __enter__(self) -> "RemoteReader":
        """The reader itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Give up questions that are not answered to their end; the run stops working on them."""
        while self._open:
            self._open.pop().close()

    def is_listened_to(self) -> bool:
        """Whether there is a run behind the socket."""
        try:
            self._connect().close()
        except StoreLocked:
            return False
        return True

    def status(self) -> Mapping[str, JsonValue]:
        """How the run stands at this moment; {} before it has anything to tell."""
        replies = list(self._ask(Question(Ask.STATUS)))
        return next((reply.status for reply in replies if isinstance(reply, Standing)), {})

    def query(self, sql: str) -> QueryResult:
        """Run one statement that reads."""
        replies = self._ask(Question(Ask.QUERY, sql))
        first = next(replies, None)
        return QueryResult(first.names if isinstance(first, Columns) else (), _iter_rows(replies))

    def select(self, sql: str, parameters: Mapping[str, JsonValue]) -> Iterator[tuple[Any, ...]]:
        """Run bulkinfer's own SQL."""
        return _iter_rows(self._ask(Question(Ask.SELECT, sql, parameters)))

    def iter_arrow(self, sql: str, parameters: Mapping[str, JsonValue], num_rows: int) -> Iterator[pa.RecordBatch]:
        """Run bulkinfer's own SQL; batches of about `num_rows` rows."""
        for reply in self._ask(Question(Ask.ARROW, sql, parameters, num_rows)):
            if isinstance(reply, Lines):
                yield reply.lines

    def _ask(self, question: Question) -> Iterator[Reply]:
        """The replies, without signs of life and the last."""
        connection = self._connect()
        self._open.add(connection)
        try:
            send_frame(connection, encode_question(question))
            with connection.makefile("rb") as stream:
                while (body := read_frame(stream)) is not None:
                    reply = decode_reply(body)
                    match reply:
                        case Done():
                            return
                        case Refused():
                            raise JobError(reply.message) if reply.is_statement else self._unavailable(reply.message)
                        case Working():
                            continue
                    yield reply
            raise self._unavailable("it ended meanwhile; try again")
        except TimeoutError as error:
            raise self._unavailable(f"it gave no sign of life for {self._timeout_s:g} s; is it stopped?") from error
        except (OSError, ValueError) as error:
            raise self._unavailable("it ended meanwhile; try again") from error
        finally:
            self._open.discard(connection)
            connection.close()

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(self._timeout_s)
        try:
            with reach_socket(socket_path(self.path)) as address:
                connection.connect(address)
        except OSError as error:
            connection.close()
            raise locked_error(self.path, self._holder) from error
        return connection

    def _unavailable(self, why: str) -> StoreLocked:
        return StoreLocked(f"{self.path}: the run that writes it ({self._holder.describe()}) did not answer: {why}")


def _iter_rows(replies: Iterator[Reply]) -> Iterator[tuple[Any, ...]]:
    for reply in replies:
        if isinstance(reply, Rows):
            yield from reply.rows
