"""Arrow record batches as documents: which columns are read, and the rows of a batch as JSON values.

What Parquet and Arrow files have in common. A value that cannot be read makes its row an `UnreadableRow`.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, repeat
from typing import Any

import pyarrow as pa

from bulkinfer.errors import InputError
from bulkinfer.records import Document, JsonValue, SourceFile, UnreadableRow
from bulkinfer.sources.base import name_origin
from bulkinfer.sources.values import Reading, UnsupportedTypeError, convert_all, plan_reading


class Columns:
    """The columns of one file that documents need."""

    def __init__(
        self, file: SourceFile, schema: pa.Schema, fields: frozenset[str] | None, id_field: str | None
    ) -> None:
        """Plan how to read them; None for `fields`: all that can be. Raises InputError when a needed one cannot."""
        self._file = file
        self._id_field = id_field
        self.all_names: frozenset[str] = frozenset(schema.names)
        needed = list(dict.fromkeys(schema.names))
        if fields is not None:
            needed = sorted(self.all_names & (fields if id_field is None else fields | {id_field}))
            self._columns = [_plan_column(file, schema, name) for name in needed]
        else:
            self._columns = [column for name in needed if (column := _plan_if_possible(file, schema, name)) is not None]
        self._fields = [column for column in self._columns if fields is None or column.name in fields]

    @property
    def names(self) -> list[str]:
        """Of the columns to read."""
        return [column.name for column in self._columns]

    def read_rows(self, batch: pa.RecordBatch, numbers: range) -> Iterator[Document | UnreadableRow]:
        """The rows of a batch, which are those of these numbers in the file. Raises what Arrow does for damage."""
        faults: dict[int, str] = {}
        values = {column.name: _read_column(batch.column(column.name), column, faults) for column in self._columns}
        names = [column.name for column in self._fields]
        id_values = values.get(self._id_field) if self._id_field is not None else None
        rows = zip(*(values[name] for name in names), strict=True) if names else repeat(())
        for index, number, row in zip(count(), numbers, rows, strict=False):
            if index in faults:
                yield self._unreadable(batch, index, number, faults[index])
            else:
                origin = name_origin(self._file.name, number, id_values[index] if id_values else None)
                yield Document(origin, dict(zip(names, row, strict=True)))

    def _unreadable(self, batch: pa.RecordBatch, index: int, row: int, fault: str) -> UnreadableRow:
        raw = [
            (column.name, batch.column(column.name).slice(index, 1).cast(column.careful.storage).to_pylist())
            for column in self._columns
        ]
        digest = hashlib.sha256(repr(raw).encode()).digest()[:16]
        return UnreadableRow(name_origin(self._file.name, row, None), digest, f"{self._file.name}, row {row}: {fault}")


class Wanted:
    """The numbers of the rows to read, with a look at the next; all when no numbers are given."""

    def __init__(self, numbers: Iterator[int] | None) -> None:
        self._numbers = numbers
        self._next = 0 if numbers is None else next(numbers, None)

    def is_any_to(self, last: int) -> bool:
        """Whether any wanted row is left up to this one."""
        return self._next is not None and self._next <= last

    def take_to(self, first: int, last: int) -> Sequence[int]:
        """Those of the rows `first` to `last` that are wanted."""
        if self._numbers is None:
            return range(first, last + 1)
        taken = []
        while self._next is not None and self._next <= last:
            taken.append(self._next)
            self._next = next(self._numbers, None)
        return taken

    def split_to(self, first: int, last: int) -> Iterator[range]:
        """The same as stretches without a gap."""
        numbers = self.take_to(first, last)
        begin = 0
        for index in range(1, len(numbers) + 1):
            if index == len(numbers) or numbers[index] != numbers[index - 1] + 1:
                yield range(numbers[begin], numbers[index - 1] + 1)
                begin = index


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    fast: Reading
    careful: Reading
    """Taken when the fast one failed on a value of the batch."""


def _plan_if_possible(file: SourceFile, schema: pa.Schema, name: str) -> _Column | None:
    try:
        return _plan_column(file, schema, name)
    except InputError:
        return None


def _plan_column(file: SourceFile, schema: pa.Schema, name: str) -> _Column:
    if len(schema.get_all_field_indices(name)) > 1:
        raise InputError(f"{file.name}: two columns are named {name!r}. Rename one of them")
    arrow_type = schema.field(name).type
    try:
        column = _Column(name, plan_reading(arrow_type), plan_reading(arrow_type, is_careful=True))
        for reading in (column.fast, column.careful):
            pa.nulls(0, arrow_type).cast(reading.storage)
    except (UnsupportedTypeError, pa.ArrowException) as error:
        raise InputError(
            f"{file.name}: column {name!r} has the type {arrow_type}, which has no JSON value. Convert the column first"
        ) from error
    return column


def _read_column(array: pa.Array, column: _Column, faults: dict[int, str]) -> Sequence[JsonValue]:
    """The JSON values of one column of a batch. Rows whose value cannot be read go into `faults`."""
    try:
        return convert_all(column.fast.convert, _to_list(array, column.fast))
    except (UnicodeDecodeError, OverflowError):
        return [
            _read_value(index, value, column, faults) for index, value in enumerate(_to_list(array, column.careful))
        ]


def _to_list(array: pa.Array, reading: Reading) -> list[Any]:
    storage: list[Any] = (array if array.type == reading.storage else array.cast(reading.storage)).to_pylist()
    return storage


def _read_value(index: int, value: object, column: _Column, faults: dict[int, str]) -> JsonValue:
    try:
        return convert_all(column.careful.convert, [value])[0]
    except UnicodeDecodeError:
        faults[index] = f"column {column.name!r} holds bytes that are not UTF-8"
    except OverflowError:
        faults[index] = f"column {column.name!r} holds a day outside the years 1 to 9999"
    return None
