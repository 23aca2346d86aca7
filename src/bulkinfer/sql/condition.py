"""A condition over the columns of one row, as it stands behind `where`: parsed, checked, and evaluated row by row.

The same row gets the same judgement whatever is read beside it: no functions of chance, no subqueries, and the clock
only where the rows are looked at anew each time (`is_stable`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa

from bulkinfer.errors import JobError
from bulkinfer.sql.sandbox import describe_error, open_sandbox, quote_name

ROW = "bulkinfer_row"
"""The column of a table that is judged which numbers its rows."""
_READ_ROWS = 10_000
_CLOCK = frozenset({
    "age", "current_date", "current_localtime", "current_localtimestamp", "current_time", "current_timestamp",
    "get_current_time", "get_current_timestamp", "localtime", "localtimestamp", "now", "today",
    "transaction_timestamp",
})  # fmt: skip
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

    @staticmethod
    @lru_cache(maxsize=8)  # one text for ten thousand files, and DuckDB is slow to list its functions
    def parse(text: str) -> "Condition":
        """Raises JobError for what is no condition over one row."""
        if not text.strip():
            raise _wrong("expected a condition, found nothing")
        with open_sandbox() as connection:
            tree = _parse(connection, text)
            volatile = {name for (name,) in connection.execute(_VOLATILE).fetchall()}
        parts = list(_walk(tree))
        kinds = {part.get("class") for part in parts}
        if "SUBQUERY" in kinds:
            raise _wrong("a subquery sees more than one row; put it into input.sql")
        called = {str(part["function_name"]).lower() for part in parts if part.get("class") == "FUNCTION"}
        if chance := sorted(called & volatile):
            raise _wrong(f"{chance[0]}() would choose other rows each time; input.sample draws the same ones")
        paths = [part["column_names"] for part in parts if part.get("class") == "COLUMN_REF"]
        names = [path[1] if len(path) > 1 and path[0].lower() == "input" else path[0] for path in paths]
        clock = _CLOCK & (called | {name.lower() for name in names})
        return Condition(
            text,
            tuple(name for name in dict.fromkeys(names) if name.lower() not in _CLOCK),
            takes_all="STAR" in kinds,
            is_stable=not clock,
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
        with Judge(self, schema.empty_table().append_column(ROW, pa.array([], pa.int64())).schema) as judge:
            judge.check()


class Judge:
    """Evaluates a condition over tables of one schema. For one thread; use it in a `with` statement."""

    def __init__(self, condition: Condition, schema: pa.Schema) -> None:
        self._condition = condition
        self._sandbox = open_sandbox()
        self._schema = schema
        self._connection: duckdb.DuckDBPyConnection | None = None

    def __enter__(self) -> "Judge":
        self._connection = self._sandbox.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._sandbox.__exit__(None, None, None)

    def check(self) -> None:
        """Raise JobError when the columns do not fit the condition."""
        try:
            self._select_holding(self._schema.empty_table())
        except duckdb.Error as error:
            raise _wrong(describe_error(error)) from error

    def judge(self, rows: pa.Table) -> Mapping[int, bool]:
        """Of the rows of a table, by their number in the column ROW, those that are kept.

        True where the condition holds; False where it cannot be evaluated, as for a text that is no number. Rows for
        which it does not hold are not in it. Raises JobError where DuckDB has no memory left.
        """
        with suppress(duckdb.Error):
            return dict.fromkeys(self._select_holding(rows), True)
        try:  # some row cannot be judged: which?
            found = self._select(f"select {ROW}, try((\n{self._condition.text}\n) is true) from input", rows)
        except (duckdb.OutOfMemoryException, duckdb.FatalException, duckdb.InterruptException) as error:
            raise _wrong(describe_error(error)) from error
        except duckdb.Error:  # none can: its values have other types than the condition takes
            return dict.fromkeys(rows[ROW].to_pylist(), False)
        return {row: holds is True for row, holds in found if holds is not False}

    def _select_holding(self, rows: pa.Table) -> list[int]:
        return [row for (row,) in self._select(f"select {ROW} from input where (\n{self._condition.text}\n)", rows)]

    def _select(self, statement: str, rows: pa.Table) -> list[tuple[Any, ...]]:
        connection = self._connection
        assert connection is not None, "used outside its with statement"
        connection.register("input", rows)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.unregister("input")


def iter_matching_parquet(path: Path, condition: Condition, missing: Sequence[str]) -> Iterator[int]:
    """The numbers of the rows of a Parquet file for which the condition holds, from 1, ascending.

    DuckDB reads the file, only the columns that the condition names, and leaves out row groups whose statistics say
    that none of their rows can match. `missing` are names that the file lacks: null. Raises CannotMatch where a row
    cannot be judged, or DuckDB cannot read the file; the numbers before are right.
    """
    nulls = "".join(f", null::varchar as {quote_name(name)}" for name in missing)
    statement = f"""
        select file_row_number + 1
        from (
            -- what a folder is called (year=2024) must not stand for what the file holds
            select *{nulls} from read_parquet($path, file_row_number = true, hive_partitioning = false)
        ) as input
        where (\n{condition.text}\n)
    """
    with open_sandbox([path]) as connection:
        try:
            found = connection.execute(statement, {"path": str(path)})
            while rows := found.fetchmany(_READ_ROWS):
                yield from (row for (row,) in rows)
        except duckdb.Error as error:
            raise CannotMatch(type(error).__name__) from error


class CannotMatch(Exception):
    """DuckDB cannot go through the file by itself; it has to be judged batch by batch."""


def _parse(connection: duckdb.DuckDBPyConnection, text: str) -> dict[str, Any]:
    """The condition's syntax tree."""
    statement = f"select 1 from input where (\n{text}\n)"
    ((found,),) = connection.execute("select json_serialize_sql($sql::varchar)", {"sql": statement}).fetchall()
    tree = orjson.loads(found)
    if tree["error"]:
        raise _wrong(tree["error_message"])
    node = tree["statements"][0]["node"] if len(tree["statements"]) == 1 else {}
    others = [node.get(key) for key in ("modifiers", "group_expressions", "having", "sample", "qualify")]
    table = node.get("from_table", {})
    if table.get("table_name") != "input" or any(others) or "where_clause" not in node:
        raise _wrong("more than one condition; give what stands behind WHERE, and no more")
    clause: dict[str, Any] = node["where_clause"]
    return clause


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
    return JobError(f"input.where: {fault}")
