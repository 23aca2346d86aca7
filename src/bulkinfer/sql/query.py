"""A query of the job's own over its whole input, as the table `input`: loaded, run, and given out as a stream."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb
import orjson
import pyarrow as pa

from bulkinfer.errors import JobError
from bulkinfer.sql.sandbox import describe_error, is_about_statement, open_sandbox

_BATCH_ROWS = 10_000
_NO_SELECT = "not implemented"
"""DuckDB's word for the kind of error that a statement of another kind is."""
_FAULTS = pa.schema([("document_id", pa.string()), ("reason", pa.string()), ("digest", pa.string())])


class QueryFault(JobError):
    """A query that failed while it ran, for its own reasons or for those of the files that it read."""


class Query:
    """The tables that a query sees. What does not fit into memory lies in a temporary folder. For one thread."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, paths: Sequence[Path]) -> None:
        """`paths`: files of Parquet whose names are plain."""
        self._connection = connection
        self._paths = paths
        self._insert("create table faults as select * from pending", _FAULTS.empty_table())

    def view_parquet(self) -> None:
        """Let `input` be the rows of the Parquet files, which are read as the query needs them. Raises JobError."""
        listed = ", ".join("'" + str(path).replace("'", "''") + "'" for path in self._paths)
        with _explained():
            self._connection.execute(
                # What a folder is called (year=2024) must not stand for what the file holds.
                "create view input as select * "
                f"from read_parquet([{listed}], union_by_name = true, hive_partitioning = false)"
            ).fetchall()

    def create(self, schema: pa.Schema) -> None:
        """Let `input` be a table of these columns. Raises JobError where two names differ only in their case."""
        self._insert("create table input as select * from pending", schema.empty_table())

    def add(self, rows: pa.Table) -> None:
        """Rows for it; columns are told by name."""
        self._insert("insert into input by name select * from pending", rows)

    def add_faults(self, faults: Sequence[tuple[str, str, str]]) -> None:
        """Rows that cannot be read: id, reason and digest in hexadecimal."""
        columns = [pa.array(column, pa.string()) for column in zip(*faults, strict=True)]
        if columns:
            self._insert("insert into faults select * from pending", pa.table(columns, schema=_FAULTS))

    def run(self, text: str) -> pa.RecordBatchReader:
        """The rows that it gives. Raises JobError; so may reading the rows."""
        with _explained():
            rows = self._connection.sql(text).to_arrow_reader(_BATCH_ROWS)
        twice = [name for name, number in Counter(rows.schema.names).items() if number > 1]
        if twice:
            raise JobError(
                f"input.sql: two columns are named {twice[0]}; give one of them another name with AS", "input.sql"
            )
        return rows

    def iter_faults(self) -> Iterator[pa.RecordBatch]:
        """What `add_faults` was given."""
        yield from self._connection.sql("select * from faults").to_arrow_reader(_BATCH_ROWS)

    def _insert(self, statement: str, rows: pa.Table) -> None:
        self._connection.register("pending", rows)
        try:
            with _explained():
                self._connection.execute(statement).fetchall()
        finally:
            self._connection.unregister("pending")


@contextmanager
def open_query(text: str, paths: Sequence[Path]) -> Iterator[Query]:
    """Check the query and make room for its tables; it may read the files at `paths`. Raises JobError."""
    with tempfile.TemporaryDirectory(prefix="bulkinfer-") as folder:
        # By other names: DuckDB would take a file's own for a glob where it has a star or brackets.
        links = [Path(folder, f"{number}.parquet") for number in range(len(paths))]
        for link, path in zip(links, paths, strict=True):
            link.symlink_to(path.absolute())
        with open_sandbox([str(link) for link in links]) as connection:
            _check(connection, text)
            yield Query(connection, links)


@contextmanager
def explained_query() -> Iterator[None]:
    """Around the reading of a query's rows: its errors as JobError."""
    with _explained():
        yield


def _check(connection: duckdb.DuckDBPyConnection, text: str) -> None:
    ((found,),) = connection.execute("select json_serialize_sql($sql::varchar)", {"sql": text}).fetchall()
    tree = orjson.loads(found)
    if tree["error"] and tree["error_type"] != _NO_SELECT:
        raise JobError(f"input.sql: {tree['error_message']}", "input.sql")
    if tree["error"]:
        raise JobError("input.sql: expected one SELECT statement, found another kind of statement", "input.sql")
    if len(tree["statements"]) != 1:
        raise JobError("input.sql: expected one SELECT statement, found none or several", "input.sql")


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        kind = JobError if is_about_statement(error) else QueryFault
        raise kind(f"input.sql: {describe_error(error)}", "input.sql") from error
    except pa.ArrowException as error:  # what DuckDB raises while its rows are read as a stream
        raise QueryFault(
            f"input.sql: the query failed while its rows were read ({type(error).__name__})", "input.sql"
        ) from error
