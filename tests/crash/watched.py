"""DuckDB's connection with methods that can be wrapped: its own are in C, and between two calls is a point too."""

from typing import Any

import duckdb


class Connection:
    """A real connection; begin, commit and checkpoint go through Python."""

    def __init__(self, real: duckdb.DuckDBPyConnection) -> None:
        self._real = real

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_error: object) -> None:
        self._real.close()

    def begin(self) -> None:
        self._real.begin()

    def commit(self) -> None:
        self._real.commit()

    def checkpoint(self) -> None:
        self._real.execute("checkpoint")

    def execute(self, sql: str, *parameters: object) -> object:
        if sql == "checkpoint":
            self.checkpoint()
            return self
        return self._real.execute(sql, *parameters)


def watch_duckdb() -> None:
    """From now on `duckdb.connect` returns these."""
    create: Any = duckdb.connect

    def connect(*arguments: object, **named: object) -> Connection:
        return Connection(create(*arguments, **named))

    duckdb.connect = connect  # type: ignore[assignment]  # it has what bulkinfer calls
