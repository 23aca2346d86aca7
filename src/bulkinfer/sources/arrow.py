"""Arrow IPC, as a file (Feather 2) or as a stream, record batch by record batch, only the columns that are needed."""

import hashlib
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import pyarrow as pa
from pyarrow import ipc

from bulkinfer.errors import InputError
from bulkinfer.records import Document, SourceFile, UnreadableRow
from bulkinfer.sources.base import check_unchanged, name_origin
from bulkinfer.sources.columns import Columns, Wanted
from bulkinfer.sources.remote_faults import RemoteFault, explain_reading
from bulkinfer.sources.streams import RawFile, open_raw

_MAX_ROWS = 512
"""Of a batch that become Python values at a time."""
_MAX_TABLE_ROWS = 4096
_BUFFER_BYTES = 1 << 16
_MAGIC = b"ARROW1"
_FEATHER_1_MAGIC = b"FEA1"
_CONTINUATION = b"\xff\xff\xff\xff"
"""How a stream begins."""
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)


class ArrowSource:
    """An Arrow file or stream. Rows are numbered from 1. A column that it lacks is an absent field.

    Memory holds one record batch of the needed columns, as large as its writer made it.
    """

    def __init__(self, file: SourceFile, fields: frozenset[str] | None, id_field: str | None) -> None:
        """Read the schema. Raises InputError when the file is not Arrow's, or a needed column cannot be read."""
        self._file = file
        self._raw: RawFile | None = None
        with self._open(open_raw(file)) as (schema, _):
            self.schema: pa.Schema = schema
            self._columns = Columns(file, schema, fields, id_field)

    def iter_rows(self, wanted: Iterator[int] | None = None) -> Iterator[Document | UnreadableRow]:
        """Yield one row for each row of the table, or for the wanted ones. Raises InputError; see `Source`."""
        numbers = Wanted(wanted)
        raw = open_raw(self._file)
        self._raw = raw
        with self._open(raw, self._columns.names) as (_, batches):
            last_row = 0
            for batch in self._iter_batches(batches):
                first = last_row + 1
                last_row += batch.num_rows
                for stretch in numbers.split_to(first, last_row):
                    yield from self._read_rows(batch, first, stretch)
                if not numbers.is_any_to(1 << 62):
                    break
        check_unchanged(self._file)

    def iter_columns(self, names: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch | range]]:
        """Yield batches of these columns; see `TableSource`."""
        with self._open(open_raw(self._file), names) as (_, batches):
            last_row = 0
            for batch in self._iter_batches(batches):
                first = last_row + 1
                last_row += batch.num_rows
                for start in range(0, batch.num_rows, _MAX_TABLE_ROWS):
                    yield from _split_valid(first + start, batch.slice(start, _MAX_TABLE_ROWS))

    def bytes_read(self) -> int:
        """Bytes of the file as it lies on disk; see `Source`."""
        return 0 if self._raw is None else min(self._raw.num_bytes_read, self._file.size_bytes)

    def read_field_names(self) -> frozenset[str]:
        """The names of all columns; see `Source`."""
        return self._columns.all_names

    @contextmanager
    def open_table(self) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
        """Schema and batches with all columns; a row with a value that is not valid is null. Raises InputError."""
        with self._open(open_raw(self._file)) as (schema, batches):
            yield schema, map(_drop_invalid, self._iter_batches(batches))

    @contextmanager
    def _open(self, raw: RawFile, names: Sequence[str] | None = None) -> Iterator[tuple[pa.Schema, Iterator[Any]]]:
        with _BoundedReader(raw, _BUFFER_BYTES) as stream:
            stream.num_bytes = self._file.size_bytes
            head = stream.peek(8)[:8]
            self._check_magic(head)
            try:
                reader = _open_reader(stream, head, self._find_places(names))
                schema = reader.schema
                _ = schema.names  # decoded only when they are asked for
            except RemoteFault as fault:
                raise explain_reading(self._file.name, fault) from fault
            except _DAMAGE as error:
                raise InputError(
                    f"{self._file.name}: the Arrow schema cannot be read ({type(error).__name__}): the file is damaged "
                    "or cut off. Write or copy it again"
                ) from error
            yield schema, _iter_batches(reader)

    def _find_places(self, names: Sequence[str] | None) -> list[int] | None:
        """Of columns in the schema; without any of them a batch would not tell how many rows it has."""
        if names is None or not self.schema.names:
            return None
        return sorted(self.schema.get_field_index(name) for name in names) or [0]

    def _iter_batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        num_rows = 0
        while True:
            try:
                batch = next(batches, None)
                if batch is None:
                    return
                batch.validate()
            except RemoteFault as fault:
                raise explain_reading(self._file.name, fault) from fault
            except _DAMAGE as error:
                check_unchanged(self._file)
                raise InputError(
                    f"{self._file.name}: the record batch after row {num_rows} cannot be read "
                    f"({type(error).__name__}). The rows before were read; write or copy the file again, then run again"
                ) from error
            num_rows += batch.num_rows
            yield batch

    def _read_rows(self, batch: pa.RecordBatch, first: int, stretch: range) -> Iterator[Document | UnreadableRow]:
        for start in range(stretch.start, stretch.stop, _MAX_ROWS):
            numbers = range(start, min(start + _MAX_ROWS, stretch.stop))
            rows = batch.slice(numbers.start - first, len(numbers))
            if _is_valid(rows):
                yield from self._columns.read_rows(rows, numbers)
                continue
            for index, number in enumerate(numbers):
                row = rows.slice(index, 1)
                if _is_valid(row):
                    yield from self._columns.read_rows(row, range(number, number + 1))
                else:
                    yield self._unreadable(number)

    def _unreadable(self, number: int) -> UnreadableRow:
        """Its values may lie outside the file's buffers and cannot be looked at: its place tells it from others."""
        name = self._file.name
        digest = hashlib.sha256(f"invalid value at {name}:{number}".encode()).digest()[:16]
        reason = f"{name}, row {number}: a value that is not valid, such as text that is not UTF-8"
        return UnreadableRow(name_origin(name, number, None), digest, reason)

    def _check_magic(self, head: bytes) -> None:
        name = self._file.name
        if head[:4] == _FEATHER_1_MAGIC:
            raise InputError(f"{name}: Feather version 1, which Arrow reads no more. Write it again as Feather 2")
        if not head.startswith((_MAGIC, _CONTINUATION)):
            held = "is empty" if not head else "does not begin as Arrow's files and streams do"
            raise InputError(f"{name}: not an Arrow file: it {held}. Rename it to what it is, or write it again")


class _BoundedReader(io.BufferedReader):
    """Asks for no more than there is: a damaged length must not be taken as the size of a buffer."""

    num_bytes = 0

    def read(self, size: int | None = -1, /) -> bytes:
        """Read as BufferedReader does."""
        left = max(0, self.num_bytes - self.tell())
        return super().read(left if size is None or size < 0 else min(size, left))


def _open_reader(stream: BinaryIO, head: bytes, places: list[int] | None) -> Any:  # noqa: ANN401 - two kinds
    options = ipc.IpcReadOptions(use_threads=False, included_fields=places)
    if head.startswith(_MAGIC):
        return ipc.open_file(stream, options=options)
    return ipc.open_stream(stream, options=options)


def _split_valid(first: int, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch | range]]:
    """Rows that begin with row `first`; the numbers of those alone whose values cannot be looked at."""
    if _is_valid(rows):
        yield first, rows
        return
    for index in range(rows.num_rows):
        row = rows.slice(index, 1)
        yield first + index, row if _is_valid(row) else range(first + index, first + index + 1)


def _is_valid(rows: pa.RecordBatch) -> bool:
    """Whether all values lie within their buffers: reading others would end the process."""
    try:
        rows.validate(full=True)
    except pa.ArrowException:
        return False
    return True


def _drop_invalid(batch: pa.RecordBatch) -> pa.RecordBatch:
    if _is_valid(batch):
        return batch
    empty = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in batch.schema], schema=batch.schema)
    rows = (batch.slice(index, 1) for index in range(batch.num_rows))
    return pa.concat_batches([row if _is_valid(row) else empty for row in rows])


def _iter_batches(reader: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - as above
    if isinstance(reader, ipc.RecordBatchFileReader):
        yield from (reader.get_batch(index) for index in range(reader.num_record_batches))
    else:
        yield from reader
