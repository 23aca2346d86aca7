"""DuckDB for the job's own SQL: in memory, with no way to files but those that are named, and no way back."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

import duckdb

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "memory_limit": "600MB",
    "threads": 1,  # rows come in the same order each time
    "enable_external_file_cache": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
}
_SPEAKING = (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException, duckdb.SyntaxException)
"""Errors whose text is about the statement and quotes no value of a row."""
_EXPLAINED: dict[type[duckdb.Error], str] = {
    duckdb.PermissionException: "it may read nothing but the input",
    duckdb.ConversionException: "a value does not fit the type that it is cast to; try_cast makes null of such a one",
    duckdb.OutOfRangeException: "a number is beyond what its type holds",
    duckdb.OutOfMemoryException: f"it needs more memory than {_SETTINGS['memory_limit']} at once",
}
"""What the others mean, whose text may quote values."""


@contextmanager
def open_sandbox(paths: Sequence[str] = (), filesystem: Any = None) -> Iterator[duckdb.DuckDBPyConnection]:  # noqa: ANN401
    """A database in memory that may read the files at `paths` and nothing else. What does not fit goes to a folder.

    `filesystem`: one of fsspec, for paths that are URLs of its protocol.
    """
    with ExitStack() as stack:
        spill = stack.enter_context(tempfile.TemporaryDirectory(prefix="bulkinfer-"))
        yield stack.enter_context(_connect(paths, spill, filesystem))


@contextmanager
def open_closed_sandbox() -> Iterator[duckdb.DuckDBPyConnection]:
    """The same without a way to any file or folder, for a few rows at a time.

    The process has one such database, and each who asks a connection: to open a database takes as long as to judge
    ten thousand rows, and an input may have ten thousand files.
    """
    with _open_closed().cursor() as connection:
        yield connection


@lru_cache(maxsize=1)
def _open_closed() -> duckdb.DuckDBPyConnection:
    return _connect((), "")


def _connect(paths: Sequence[str], spill: str, filesystem: Any = None) -> duckdb.DuckDBPyConnection:  # noqa: ANN401
    connection = duckdb.connect(":memory:", config={**_SETTINGS, "temp_directory": spill})
    if filesystem is not None:
        connection.register_filesystem(filesystem)
    connection.execute("set global timezone = 'UTC'")
    connection.execute("set allowed_paths = $paths", {"paths": list(paths)})
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")
    return connection


def is_about_statement(error: duckdb.Error) -> bool:
    """Whether the statement is wrong, whatever the rows are."""
    return isinstance(error, _SPEAKING)


def describe_error(error: duckdb.Error) -> str:
    """In one line, and without any value of a row."""
    if not is_about_statement(error):
        kind = type(error).__name__
        return next((f"{said} ({kind})" for known, said in _EXPLAINED.items() if isinstance(error, known)), kind)
    return str(error).partition("\n")[0].partition(": ")[2].rstrip("!.")


def quote_name(name: str) -> str:
    """A column's name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'
