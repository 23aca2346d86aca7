"""Parquet, row group by row group, in batches of bounded size and only the columns that are needed."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, repeat
from typing import Any, BinaryIO

import pyarrow as pa
from pyarrow import parquet as pq

from bulkinfer.errors import InputError
from bulkinfer.records import Document, JsonValue, SourceFile, UnreadableRow
from bulkinfer.sources.base import check_unchanged, name_origin
from bulkinfer.sources.values import Reading, UnsupportedTypeError, convert_all, plan_reading

_MAX_BATCH_ROWS = 512
_BATCH_BYTES = 4 << 20
_BUFFER_BYTES = 1 << 20
"""Read ahead for each column. Without a buffer Arrow reads a column of a whole row group at once."""
_MAGIC = b"PAR1"
_ENCRYPTED_MAGIC = b"PARE"
_DAMAGE = (pa.ArrowException, OSError)


class ParquetSource:
    """A Parquet file. Rows are numbered from 1 over all row groups. A column that the file lacks is an absent field."""

    def __init__(self, file: SourceFile, fields: frozenset[str], id_field: str | None) -> None:
        """Read the schema. Raises InputError when the file is not Parquet, or a needed column cannot be read."""
        self._file = file
        self._id_field = id_field
        self._num_rows_read = 0
        with self._open() as parquet:
            schema = parquet.schema_arrow
            self._num_rows: int = parquet.metadata.num_rows
        self._names = frozenset(schema.names)
        self._columns = [
            _plan_column(file, schema, name)
            for name in sorted(fields if id_field is None else fields | {id_field})
            if name in self._names
        ]
        self._fields = [column for column in self._columns if column.name in fields]

    def iter_rows(self, wanted: Iterator[int] | None = None) -> Iterator[Document | UnreadableRow]:
        """Yield one row for each row of the table, or for the wanted ones. Raises InputError; see `Source`.

        A row group without a wanted row is not read at all.
        """
        self._num_rows_read = 0
        numbers = _Wanted(wanted)
        with self._open() as parquet:
            for index in range(parquet.metadata.num_row_groups):
                last_row = self._num_rows_read + parquet.metadata.row_group(index).num_rows
                batches = self._iter_batches(parquet, index)
                while self._num_rows_read < last_row and numbers.is_any_to(last_row):
                    yield from self._read_batch(next(batches), index, numbers)
                self._num_rows_read = last_row
        check_unchanged(self._file)

    def bytes_read(self) -> int:
        """The share of the rows that was read, as a share of the file's size; see `Source`."""
        return self._file.size_bytes * self._num_rows_read // max(self._num_rows, 1)

    def read_field_names(self) -> frozenset[str]:
        """The names of all columns; see `Source`."""
        return self._names

    @contextmanager
    def _open(self) -> Iterator[pq.ParquetFile]:
        check_unchanged(self._file)
        # Opened here and not by Arrow, which takes no name that is not UTF-8.
        try:
            stream = self._file.path.open("rb")
        except OSError as error:
            raise InputError(f"{self._file.name}: cannot be read ({error.strerror}). Check its permissions") from error
        with stream:
            _check_magic(self._file, stream)
            try:
                # The checksums of pages are there in few files, and cost little.
                parquet = pq.ParquetFile(
                    stream, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
                )
                _ = parquet.schema_arrow.names  # decoded only when they are asked for
            except (*_DAMAGE, UnicodeDecodeError) as error:
                raise InputError(
                    f"{self._file.name}: the footer of the Parquet file cannot be read ({type(error).__name__}). "
                    "Write or copy the file again"
                ) from error
            with parquet:
                yield parquet

    def _iter_batches(self, parquet: pq.ParquetFile, index: int) -> Iterator[pa.RecordBatch]:
        """The batches of one row group. Raises InputError at the first that is damaged."""
        row_group = parquet.metadata.row_group(index)
        columns = [column.name for column in self._columns]
        batch_rows = _choose_batch_rows(row_group)
        batches = parquet.iter_batches(batch_rows, row_groups=[index], columns=columns, use_threads=False)
        num_left = row_group.num_rows
        while num_left:
            try:
                batch = next(batches, None)
            except _DAMAGE as error:
                raise self._damaged(index, min(num_left, batch_rows), type(error).__name__) from error
            if batch is None:
                raise self._damaged(index, num_left, "rows are missing")
            num_left -= batch.num_rows
            yield batch

    def _damaged(self, index: int, num_rows: int, fault: str) -> InputError:
        check_unchanged(self._file)
        first = self._num_rows_read + 1
        return InputError(
            f"{self._file.name}: rows {first} to {first + num_rows - 1}, in row group {index + 1}, cannot be read "
            f"({fault}). The rows before were read; write or copy the file again, then run again"
        )

    def _read_batch(
        self, batch: pa.RecordBatch, row_group: int, wanted: "_Wanted"
    ) -> Iterator[Document | UnreadableRow]:
        first = self._num_rows_read + 1
        self._num_rows_read += batch.num_rows
        for numbers in _split(wanted.take_to(first, self._num_rows_read)):
            # Slices, because Arrow cannot take single rows of every type: not of a string view, nor of a list of them.
            rows = batch.slice(numbers.start - first, len(numbers))
            try:
                yield from self._read_rows(rows, numbers)
            except _DAMAGE as error:  # an index that points outside the dictionary is found only here
                self._num_rows_read = first - 1
                raise self._damaged(row_group, batch.num_rows, type(error).__name__) from error

    def _read_rows(self, batch: pa.RecordBatch, numbers: range) -> Iterator[Document | UnreadableRow]:
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


class _Wanted:
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


def _split(numbers: Sequence[int]) -> Iterator[range]:
    """Ascending numbers as stretches without a gap."""
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


def _choose_batch_rows(row_group: pq.RowGroupMetaData) -> int:
    """So many rows that they unpack to about 4 MiB; to more where a dictionary repeats values, hence the upper limit.

    All columns count, though few are read: asking for the size of one aborts Python when the footer is damaged.
    """
    row_bytes = row_group.total_byte_size // max(row_group.num_rows, 1) + 1
    return int(max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // row_bytes)))


def _check_magic(file: SourceFile, stream: BinaryIO) -> None:
    """Tell a file of another kind, and one that is cut off, from one with a broken footer. Raises InputError."""
    head = stream.read(4)
    stream.seek(-min(4, file.size_bytes), 2)
    tail = stream.read(4)
    stream.seek(0)
    if _ENCRYPTED_MAGIC in {head, tail}:
        raise InputError(f"{file.name}: the Parquet file is encrypted. Decrypt it first")
    if head != _MAGIC:
        held = "is empty" if not head else "does not begin as Parquet does"
        raise InputError(f"{file.name}: not a Parquet file: it {held}. Rename it to what it is, or write it again")
    if tail != _MAGIC:
        raise InputError(
            f"{file.name}: the Parquet file is cut off at {file.size_bytes} bytes: it begins as one but has no end. "
            "Copy or write it again"
        )
