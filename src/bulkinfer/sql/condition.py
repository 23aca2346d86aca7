"""A condition over the columns of one row, as it stands behind `where`: parsed, checked, and evaluated row by row.

The same row gets the same judgement whatever is read beside it: no functions of chance, no subqueries, and the clock
only where the rows are looked at anew each time (`is_stable`).
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from operator import and_
from typing import Any

import duckdb
import orjson
import pyarrow as pa

from bulkinfer.errors import JobError
from bulkinfer.sql.clauses import Clauses, Join, Joint, Node, Truth, find_truth, take_apart
from bulkinfer.sql.sandbox import describe_error, open_closed_sandbox, open_sandbox, quote_name

_READ_ROWS = 10_000
_CLOCK = frozenset({
    "age", "current_date", "current_localtime", "current_localtimestamp", "current_time", "current_timestamp",
    "get_current_time", "get_current_timestamp", "localtime", "localtimestamp", "now", "today",
    "transaction_timestamp",
})  # fmt: skip
_COARSE_TIMES = {"TIMESTAMP": ("TIMESTAMP_MS", "TIMESTAMP_S")}
"""What DuckDB calls times of Arrow that it reads of Parquet as finer ones; they compare alike."""
_VOLATILE = "select function_name from duckdb_functions() where stability = 'VOLATILE'"


@dataclass(frozen=True, slots=True)
class Condition:
    """One that can be parsed."""

    text: str
    names: tuple[str, ...]
    """What it may name of columns, in the order in which they come up; some may be names of its own (lambdas)."""
    takes_all: bool
    """Whether it speaks of all columns, by a star."""
    is_stable: bool
    """Whether it holds for the same rows tomorrow."""
    clauses: Clauses
    is_filter: bool
    """Whether DuckDB can filter by it, in the order that it likes: where that goes through, it has judged rightly."""

    @staticmethod
    @lru_cache(maxsize=8)  # one text for ten thousand files, and DuckDB is slow to list its functions
    def parse(text: str) -> "Condition":
        """Raises JobError for what is no condition over one row."""
        if not text.strip():
            raise _wrong("expected a condition, found nothing")
        with open_closed_sandbox() as connection:
            tree = _parse(connection, text)
            volatile = {name for (name,) in connection.execute(_VOLATILE).fetchall()}
            clauses = take_apart(tree, partial(_write, connection))
        parts = list(_walk(tree))
        kinds = [part.get("class") for part in parts]
        if "SUBQUERY" in kinds:
            raise _wrong("a subquery sees more than one row; put it into input.sql")
        if "POSITIONAL_REFERENCE" in kinds:
            raise _wrong("a column by its place, such as #1, is another one in each format; write its name")
        called = {str(part["function_name"]).lower() for part in parts if part.get("class") == "FUNCTION"}
        if chance := sorted(called & volatile):
            raise _wrong(f"{chance[0]}() would choose other rows each time; input.sample draws the same ones")
        paths = [part["column_names"] for part in parts if part.get("class") == "COLUMN_REF"]
        names = [path[1] if len(path) > 1 and path[0].lower() == "input" else path[0] for path in paths]
        clock = _CLOCK & (called | {name.lower() for name in names})
        takes_all = "STAR" in kinds
        # A star stands for several conditions, and what is joined within a clause has an order of its own.
        whole = Clauses((text,))
        apart = whole if clauses is None or takes_all else clauses
        num_joined = sum(isinstance(step, Join) and step.joint is not Joint.NOT for step in apart.steps)
        return Condition(
            text,
            tuple(name for name in dict.fromkeys(names) if name.lower() not in _CLOCK),
            takes_all=takes_all,
            is_stable=not clock,
            clauses=apart,
            is_filter=not takes_all and num_joined == kinds.count("CONJUNCTION"),
        )

    def find_columns(self, known: Sequence[str]) -> tuple[list[str], list[str]]:
        """Which of the columns it names, and which of the names are no column. Upper and lower case are the same."""
        if self.takes_all:
            return list(known), []
        by_lower: dict[str, list[str]] = {}
        for name in known:
            by_lower.setdefault(name.lower(), []).append(name)
        found: dict[str, None] = {}
        missing = []
        for name in self.names:
            alike = by_lower.get(name.lower(), [])
            if not alike:
                missing.append(name)
            for column in [name] if name in alike else alike:
                found[column] = None
        return list(found), missing

    def check(self, schema: pa.Schema) -> None:
        """Raise JobError for one that rows with these columns cannot be judged by."""
        named = {name.lower() for name in self.names} - {name.lower() for name in schema.names}
        if "input" in named:
            raise _wrong("input stands for the whole row; name columns")
        with Judge(self) as judge:
            judge.check(schema)


class Judge:
    """Evaluates a condition over tables. For one thread; use it in a `with` statement."""

    def __init__(self, condition: Condition) -> None:
        self._condition = condition
        self._sandbox = open_closed_sandbox()
        self._connection: duckdb.DuckDBPyConnection | None = None

    def __enter__(self) -> "Judge":
        self._connection = self._sandbox.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._sandbox.__exit__(None, None, None)

    def check(self, schema: pa.Schema) -> None:
        """Raise JobError when the columns do not fit the condition."""
        try:
            self._filter(schema.empty_table())
        except duckdb.Error as error:
            raise _wrong(describe_error(error)) from error

    def judge(self, rows: pa.Table) -> Mapping[int, bool]:
        """Of the rows of a table, by their place in it from 0, those that are kept, ascending.

        True where the condition holds; False where it cannot be evaluated, as for a text that is no number. Rows for
        which it does not hold are not in it. Raises JobError where DuckDB has no memory left.
        """
        if self._condition.is_filter:
            with suppress(duckdb.Error):  # raised for some row that cannot be judged: which?
                return dict.fromkeys(self._filter(rows), True)
        truth = find_truth(self._condition.clauses, partial(self._evaluate, rows))
        fails = (truth.is_false | truth.is_null).tolist()
        return {place: not fails[place] for place in truth.is_true.nonzero()[0].tolist()}

    def _filter(self, rows: pa.Table) -> list[int]:
        place = _free_name(self._condition, rows.schema.names)
        numbered = rows.append_column(place, pa.array(range(rows.num_rows), pa.int64()))
        statement = f"select {place} from input where (\n{self._condition.text}\n)"
        return sorted(found for (found,) in self._select(statement, numbered))

    def _evaluate(self, rows: pa.Table, clause: str) -> Truth:
        """A clause alone, row by row where it fails."""
        table = rows if rows.num_columns else pa.table({"": pa.nulls(rows.num_rows)})
        try:
            found = self._select(f"select try([(\n{clause}\n)::boolean]) from input", table)
        except (duckdb.OutOfMemoryException, duckdb.FatalException, duckdb.InterruptException) as error:
            raise _wrong(describe_error(error)) from error
        except duckdb.Error:  # for no row: its values have other types than the clause takes
            found = [(None,)] * rows.num_rows
        columns = [
            Truth.of([value and value[0] for value in values], [value is None for value in values])
            for values in zip(*found, strict=True)
        ] or [Truth.of([], [])]
        return reduce(and_, columns)  # a star stands for one column after the other, and all are meant

    def _select(self, statement: str, rows: pa.Table) -> list[tuple[Any, ...]]:
        connection = self._connection
        assert connection is not None, "used outside its with statement"
        connection.register("input", rows)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.unregister("input")


@dataclass(frozen=True, slots=True)
class ParquetFile:
    """One that DuckDB can read by itself."""

    path: str
    schema: pa.Schema
    filesystem: Any = None
    """Of fsspec, which has the file at this path and no other; None: it lies on a disk."""


def iter_matching_parquet(file: ParquetFile, condition: Condition) -> Iterator[int]:
    """The numbers of the rows of a Parquet file for which the condition holds, from 1, ascending.

    DuckDB reads the file, only the columns that the condition names, and leaves out row groups whose statistics say
    that none of their rows can match. A column that it lacks is null. Raises CannotMatch where a row cannot be judged,
    or DuckDB cannot read the file; the numbers before are right.
    """
    known = file.schema.names
    columns, missing = condition.find_columns(known)
    alike = Counter(name.lower() for name in known)
    if not condition.is_filter or any(alike[name.lower()] > 1 for name in columns):
        raise CannotMatch("its columns cannot be told by name")
    number = _free_name(condition, known)
    listed = [*map(quote_name, columns), *(f"null::varchar as {quote_name(name)}" for name in missing)]
    statement = f"""
        select {number}
        from (
            select {", ".join([f"file_row_number + 1 as {number}", *listed])}
            -- what a folder is called (year=2024) must not stand for what the file holds
            from read_parquet($path, file_row_number = true, hive_partitioning = false)
        ) as input
        where (\n{condition.text}\n)
    """
    with open_sandbox([file.path], file.filesystem) as connection:
        try:
            _check_types(connection, file, columns)
            found = connection.execute(statement, {"path": file.path})
            while rows := found.fetchmany(_READ_ROWS):
                yield from (row for (row,) in rows)
        except duckdb.Error as error:
            raise CannotMatch(type(error).__name__) from error


def _check_types(connection: duckdb.DuckDBPyConnection, file: ParquetFile, columns: Sequence[str]) -> None:
    """Raise CannotMatch where DuckDB has a column in another type than Arrow: a duration would be a whole number."""
    if not columns:
        return
    listed = ", ".join(map(quote_name, columns))
    connection.register("input", pa.schema([file.schema.field(name) for name in columns]).empty_table())
    try:
        connection.execute(f"describe select {listed} from input")
        expected = [kind for _, kind, *_ in connection.fetchall()]
    finally:
        connection.unregister("input")
    connection.execute(
        f"describe select {listed} from read_parquet($path, hive_partitioning = false)", {"path": file.path}
    )
    for theirs, (_, ours, *_) in zip(expected, connection.fetchall(), strict=True):
        if theirs not in (ours, *_COARSE_TIMES.get(ours, ())):
            raise CannotMatch("a type that DuckDB reads in its own way")


class CannotMatch(Exception):
    """DuckDB cannot go through the file by itself; it has to be judged batch by batch."""


def _parse(connection: duckdb.DuckDBPyConnection, text: str) -> dict[str, Any]:
    """The condition's syntax tree."""
    statement = f"select 1 from input where (\n{text}\n)"
    tree = _serialize(connection, statement)
    if tree["error"]:
        raise _wrong(tree["error_message"])
    node = tree["statements"][0]["node"] if len(tree["statements"]) == 1 else {}
    others = [node.get(key) for key in ("modifiers", "group_expressions", "having", "sample", "qualify")]
    table = node.get("from_table", {})
    if table.get("table_name") != "input" or any(others) or "where_clause" not in node:
        raise _wrong("more than one condition; give what stands behind WHERE, and no more")
    clause: dict[str, Any] = node["where_clause"]
    return clause


def _write(connection: duckdb.DuckDBPyConnection, node: Node) -> str | None:
    """A part of the tree as SQL; None for one that would not be read again as it is."""
    tree = _serialize(connection, "select 1")
    tree["statements"][0]["node"]["select_list"] = [node]
    try:
        given = json.dumps(tree)
    except RecursionError:
        return None
    ((statement,),) = connection.execute("select json_deserialize_sql($tree::json)", {"tree": given}).fetchall()
    read = _serialize(connection, statement)
    is_same = list(map(_list_values, _walk(read))) == list(map(_list_values, _walk(tree)))
    return str(statement).removeprefix("SELECT ") if is_same else None


def _list_values(node: Node) -> Mapping[str, Any]:
    """What a node says itself, but for where it stood and whether a function was written as an operator."""
    return {
        key: value
        for key, value in node.items()
        if not isinstance(value, dict)
        and not (isinstance(value, list) and any(isinstance(part, dict) for part in value))
        and not key.startswith(("query_location", "is_operator"))
    }


def _free_name(condition: Condition, columns: Sequence[str]) -> str:
    """For a column that the condition cannot see: neither it nor the table has the name."""
    taken = {name.lower() for name in (*condition.names, *columns)}
    name = "bulkinfer_row"
    while name in taken:
        name += "_"
    return name


def _serialize(connection: duckdb.DuckDBPyConnection, statement: str) -> dict[str, Any]:
    ((found,),) = connection.execute("select json_serialize_sql($sql::varchar)", {"sql": statement}).fetchall()
    tree: dict[str, Any] = orjson.loads(found)
    return tree


def _walk(tree: object) -> Iterator[dict[str, Any]]:
    """All its nodes. With a stack of its own: a condition may be nested deeper than Python calls."""
    stack = [tree]
    while stack:
        match stack.pop():
            case dict() as node:
                yield node
                stack.extend(reversed(node.values()))
            case list() as nodes:
                stack.extend(reversed(nodes))


def _wrong(fault: str) -> JobError:
    return JobError(f"input.where: {fault}", "input.where")
