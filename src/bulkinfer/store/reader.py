"""Reading a database: the user's SQL and our own. It can write nothing.

Without a live run it opens the file read-only. While a run writes, DuckDB refuses that; the run's own
`Store.create_reader` gives the same reader on a connection of the run.
"""

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb
import pyarrow as pa

from bulkinfer.errors import JobError, StoreError
from bulkinfer.records import JsonValue
from bulkinfer.store.database import check_schema, connect_read_only, explain_error, explain_open_error
from bulkinfer.store.lock import locked_error, read_holder
from bulkinfer.store.paths import check_is_database, resolve_database
from bulkinfer.store.reports import Reports

_MAX_FETCH_ROWS = 1_000
_FETCH_CHARS = 1024 * 1024
_READING = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}
_ACTING = re.compile(r"(checkpoint|truncate_duckdb_logs|write_log)\"?\s*\(", re.IGNORECASE)
"""Functions of a SELECT that change something all the same. Looked for in the text: `query` runs SQL within SQL."""
_USER_ERRORS = (
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ParserException,
    duckdb.PermissionException,
    duckdb.SyntaxException,
    duckdb.TransactionException,
)
"""Those whose text tells of the statement and the tables; the text of any other may quote what is stored."""


class DatabaseBlank(StoreError):
    """There is a database without a table: a run was killed while it made it, and the next makes it whole."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The columns of an answer, and its rows as they are read: walk them before the reader is used again."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[object, ...]]


class Reader(Reports):
    """One connection, for one thread. Close it, or use it in a `with` statement."""

    def __init__(self, path: Path, connection: duckdb.DuckDBPyConnection, close: Callable[[], None]) -> None:
        """Over a connection that is open already, and what closes it; `open` is for everybody else."""
        self.path = path
        self.close = close
        """Close the connection. Safe twice."""
        self._connection = connection

    @classmethod
    def open(cls, path: Path) -> "Reader":
        """Open a database read-only.

        Raises StoreError when it is missing, not a database of bulkinfer or damaged, and its DatabaseBlank; StoreLocked
        naming the run that writes it.
        """
        database = resolve_database(path)
        holder = read_holder(database)
        if holder is not None:
            raise locked_error(database, holder)
        check_is_database(database)
        with ExitStack() as stack:
            # Spilled answers are nobody else's business: the folder has mode 0700.
            spill_path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bulkinfer-")))
            connection = stack.enter_context(_connect(database, spill_path))
            if check_schema(connection, database):
                raise DatabaseBlank(f"{database}: is empty; `bulkinfer run` fills it")
            return cls(database, connection, stack.pop_all().close)

    def __enter__(self) -> "Reader":
        """The reader itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def interrupt(self) -> None:
        """End a query that runs in another thread; that thread gets a StoreError."""
        with suppress(duckdb.ConnectionException):  # closed already
            self._connection.interrupt()

    def query(self, sql: str) -> QueryResult:
        """Run one statement that reads. Rows come as they are read, in bounded memory.

        Raises JobError when it is not exactly one SELECT or EXPLAIN without parameters, and for any error in it; so
        does walking the rows. Raises StoreError when the reader is interrupted or closed meanwhile.
        """
        statement = self._parse(sql)
        with self._told_to_user():
            self._begin_read_only()
            self._connection.execute(statement)
            columns = tuple(str(column[0]) for column in self._connection.description or ())
        return QueryResult(columns, self._iter_rows())

    def iter_arrow(self, sql: str, parameters: Mapping[str, JsonValue], num_rows: int) -> Iterator[pa.RecordBatch]:
        """Run bulkinfer's own SQL; batches of about `num_rows` rows, as they are read. Raises StoreError."""
        with self._told_as_ours():
            self._check_reads(sql)
            self._begin_read_only()
            try:
                yield from self._connection.sql(sql, params=dict(parameters)).to_arrow_reader(num_rows)
            except (OSError, pa.ArrowException) as error:  # Arrow's, for whatever DuckDB raised; its text may quote
                kind = type(error).__name__
                raise StoreError(
                    f"{self.path}: reading ended with {kind}: it was interrupted, or memory or the disk failed"
                ) from None

    def select(self, sql: str, parameters: Mapping[str, JsonValue]) -> Iterator[tuple[Any, ...]]:
        """Run bulkinfer's own SQL; rows as DuckDB gives them, each column in its own Python type. Raises StoreError."""
        with self._told_as_ours():
            self._check_reads(sql)
            self._begin_read_only()
            self._connection.execute(sql, dict(parameters))
            yield from self._fetch()

    def _parse(self, sql: str) -> duckdb.Statement:
        with self._told_to_user():
            statement = self._check_reads(sql)
        if statement.named_parameters:
            raise JobError("the statement has parameters ($name, ?); write their values into it")
        return statement

    def _check_reads(self, sql: str) -> duckdb.Statement:
        statements = self._connection.extract_statements(sql)
        if len(statements) != 1:
            raise JobError(f"expected one SQL statement, found {len(statements)}")
        if statements[0].type not in _READING:
            raise JobError(f"only statements that read are run: SELECT or EXPLAIN, not {statements[0].type.name}")
        if found := _ACTING.search(sql):
            raise JobError(f"only statements that read are run, and {found[1]}() does more")
        return statements[0]

    def _begin_read_only(self) -> None:
        """A SELECT can hold an INSERT (in a WITH); on a run's own connection only the transaction forbids that."""
        self._end_transaction()
        self._connection.execute("begin transaction read only")

    def _end_transaction(self) -> None:
        with suppress(duckdb.TransactionException):  # there was none
            self._connection.rollback()

    def _iter_rows(self) -> Iterator[tuple[object, ...]]:
        with self._told_to_user():
            yield from self._fetch()

    def _fetch(self) -> Iterator[tuple[Any, ...]]:
        """Few rows at a time where they are long: what is fetched is held in memory, and nothing interrupts that."""
        num_rows = 1
        while rows := self._connection.fetchmany(num_rows):
            num_chars = sum(len(value) for row in rows for value in row if isinstance(value, str | bytes))
            yield from rows
            num_rows = max(1, min(_MAX_FETCH_ROWS, 4 * num_rows, len(rows) * _FETCH_CHARS // max(1, num_chars)))

    @contextmanager
    def _told_to_user(self) -> Iterator[None]:
        """DuckDB's errors in a user's statement, as the user's errors."""
        with _interruptible():
            try:
                yield
            except _USER_ERRORS as error:
                raise JobError(f"the SQL statement cannot be run: {error}") from error
            except (OverflowError, ValueError, TypeError) as error:
                kind = type(error).__name__
                raise JobError(f"a value of the answer does not fit Python ({kind}); cast it to varchar") from None
            except duckdb.Error as error:
                if isinstance(error, duckdb.InterruptException) or self._is_closed():
                    raise StoreError("the SQL statement was interrupted") from error
                kind = type(error).__name__
                # Such a text may quote an answer ("could not convert string '...'"), and nothing stored goes into
                # messages.
                raise JobError(
                    f"the SQL statement failed while it ran ({kind}); no details: they may quote documents"
                ) from None

    def _is_closed(self) -> bool:
        """Whether somebody has closed the connection under a statement: DuckDB then raises one error or another."""
        try:
            self._connection.interrupt()
        except duckdb.ConnectionException:
            return True
        return False

    @contextmanager
    def _told_as_ours(self) -> Iterator[None]:
        with _interruptible():
            try:
                yield
            except duckdb.Error as error:
                raise explain_error(error, self.path, "reading") from error


def _connect(database: Path, spill_path: Path) -> duckdb.DuckDBPyConnection:
    try:
        return connect_read_only(database, spill_path)
    except duckdb.Error as error:
        holder = read_holder(database)  # a run may have begun meanwhile
        if holder is not None:
            raise locked_error(database, holder) from error
        raise explain_open_error(error, database, spill_path, for_writing=False) from error


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C within a query reaches Python as a bare RuntimeError, not as the KeyboardInterrupt that it is."""
    try:
        yield
    except RuntimeError as error:
        raise KeyboardInterrupt from error
