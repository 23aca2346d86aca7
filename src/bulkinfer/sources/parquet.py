"""Parquet, row group by row group, in batches of bounded size and only the columns that are needed."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

import pyarrow as pa
from pyarrow import parquet as pq

from bulkinfer.errors import InputError
from bulkinfer.records import Document, SourceFile, UnreadableRow
from bulkinfer.sources.base import check_unchanged
from bulkinfer.sources.columns import Columns, Wanted
from bulkinfer.sources.remote_faults import RemoteFault, explain_reading
from bulkinfer.sources.streams import open_raw

_MAX_BATCH_ROWS = 512
_BATCH_BYTES = 4 << 20
_BUFFER_BYTES = 1 << 20
"""Read ahead for each column. Without a buffer Arrow reads a column of a whole row group at once."""
_MAGIC = b"PAR1"
_ENCRYPTED_MAGIC = b"PARE"
_DAMAGE = (pa.ArrowException, OSError)


class ParquetSource:
    """A Parquet file. Rows are numbered from 1 over all row groups. A column that the file lacks is an absent field."""

    def __init__(self, file: SourceFile, fields: frozenset[str] | None, id_field: str | None) -> None:
        """Read the schema. Raises InputError when the file is not Parquet, or a needed column cannot be read."""
        self._file = file
        self._num_rows_read = 0
        with self.open_table() as parquet:
            self.schema: pa.Schema = parquet.schema_arrow
            self._columns = Columns(file, self.schema, fields, id_field)
            self._num_rows: int = parquet.metadata.num_rows

    def iter_rows(self, wanted: Iterator[int] | None = None) -> Iterator[Document | UnreadableRow]:
        """Yield one row for each row of the table, or for the wanted ones. Raises InputError; see `Source`.

        A row group without a wanted row is not read at all.
        """
        self._num_rows_read = 0
        numbers = Wanted(wanted)
        with self.open_table() as parquet:
            for index in range(parquet.metadata.num_row_groups):
                last_row = self._num_rows_read + parquet.metadata.row_group(index).num_rows
                batches = self._iter_batches(parquet, index, self._columns.names, self._num_rows_read + 1)
                while self._num_rows_read < last_row and numbers.is_any_to(last_row):
                    yield from self._read_batch(next(batches), index, numbers)
                self._num_rows_read = last_row
        check_unchanged(self._file)

    def iter_columns(self, names: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch | range]]:
        """Yield batches of these columns; see `TableSource`."""
        with self.open_table() as parquet:
            first = 1
            for index in range(parquet.metadata.num_row_groups):
                for batch in self._iter_batches(parquet, index, names, first):
                    yield first, batch
                    first += batch.num_rows

    def bytes_read(self) -> int:
        """The share of the rows that was read, as a share of the file's size; see `Source`."""
        return self._file.size_bytes * self._num_rows_read // max(self._num_rows, 1)

    def read_field_names(self) -> frozenset[str]:
        """The names of all columns; see `Source`."""
        return self._columns.all_names

    @contextmanager
    def open_table(self) -> Iterator[pq.ParquetFile]:
        """The file as Arrow's reader sees it. Raises InputError when it is not Parquet, or not as it was found."""
        # Opened here and not by Arrow, which takes no name that is not UTF-8.
        with io.BufferedReader(open_raw(self._file)) as stream:
            try:
                _check_magic(self._file, stream)
                # The checksums of pages are there in few files, and cost little.
                parquet = pq.ParquetFile(
                    stream, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
                )
                _ = parquet.schema_arrow.names  # decoded only when they are asked for
            except RemoteFault as fault:
                raise explain_reading(self._file.name, fault) from fault
            except (*_DAMAGE, UnicodeDecodeError) as error:
                raise InputError(
                    f"{self._file.name}: the footer of the Parquet file cannot be read ({type(error).__name__}). "
                    "Write or copy the file again"
                ) from error
            with parquet:
                yield parquet

    def _iter_batches(
        self, parquet: pq.ParquetFile, index: int, names: Sequence[str], first: int
    ) -> Iterator[pa.RecordBatch]:
        """The batches of one row group, which begins with row `first`. Raises InputError at the first damaged one."""
        row_group = parquet.metadata.row_group(index)
        batch_rows = _choose_batch_rows(row_group)
        batches = parquet.iter_batches(batch_rows, row_groups=[index], columns=list(names), use_threads=False)
        num_left = row_group.num_rows
        while num_left:
            try:
                batch = next(batches, None)
            except RemoteFault as fault:
                raise explain_reading(self._file.name, fault) from fault
            except _DAMAGE as error:
                raise self._damaged(index, first, min(num_left, batch_rows), type(error).__name__) from error
            if batch is None:
                raise self._damaged(index, first, num_left, "rows are missing")
            num_left -= batch.num_rows
            first += batch.num_rows
            yield batch

    def _damaged(self, index: int, first: int, num_rows: int, fault: str) -> InputError:
        check_unchanged(self._file)
        return InputError(
            f"{self._file.name}: rows {first} to {first + num_rows - 1}, in row group {index + 1}, cannot be read "
            f"({fault}). The rows before were read; write or copy the file again, then run again"
        )

    def _read_batch(self, batch: pa.RecordBatch, row_group: int, wanted: Wanted) -> Iterator[Document | UnreadableRow]:
        first = self._num_rows_read + 1
        self._num_rows_read += batch.num_rows
        for numbers in wanted.split_to(first, self._num_rows_read):
            # Slices, because Arrow cannot take single rows of every type: not of a string view, nor of a list of them.
            rows = batch.slice(numbers.start - first, len(numbers))
            try:
                yield from self._columns.read_rows(rows, numbers)
            except _DAMAGE as error:  # an index that points outside the dictionary is found only here
                self._num_rows_read = first - 1
                raise self._damaged(row_group, first, batch.num_rows, type(error).__name__) from error


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
