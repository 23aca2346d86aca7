"""Exports that are tables: Parquet, Arrow and CSV."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Protocol

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from bulkinfer.errors import JobError
from bulkinfer.export.columns import Columns, as_text_or_nothing, fit
from bulkinfer.export.rows import Stretch
from bulkinfer.export.vectors import iter_vectors, write_vector
from bulkinfer.records import ExportFormat
from bulkinfer.sources import Originals
from bulkinfer.store import VECTOR


class _ArrowWriter(Protocol):
    """What Arrow's writers of Parquet, CSV and its own file have in common; they have no types."""

    def write_table(self, table: pa.Table) -> None:
        """Write one table."""


class TableWriter:
    """Writes stretches as tables of one schema."""

    def __init__(self, columns: Columns, writer: _ArrowWriter) -> None:
        self._columns = columns
        self._writer = writer

    def write(self, stretch: Stretch, originals: Originals | None) -> None:
        """Write one stretch.

        Raises InputError when its rows cannot be read any more, JobError for a value that the format cannot hold.
        """
        table = make_table(self._columns, stretch, originals)
        try:
            self._writer.write_table(table)
        except pa.ArrowInvalid:
            raise JobError(_explain(self._columns.originals)) from None


def make_table(columns: Columns, stretch: Stretch, originals: Originals | None) -> pa.Table:
    """The rows of a stretch with all columns of the export."""
    num_rows = len(stretch.rows)
    table = None if originals is None else originals.take(stretch.rows)
    # By place: to look a name up in a table passes over all of its columns.
    own = {} if table is None else dict(zip(table.schema.names, table.columns, strict=True))
    arrays = []
    for field in columns.originals:
        column = own.get(field.name)
        if column is None:
            arrays.append(pa.nulls(num_rows, field.type))
        else:
            arrays.append(fit(field.name, column.combine_chunks(), field.type))
    for (_, name), kind in zip(columns.answers, columns.types, strict=True):
        match name:
            case "source":
                arrays.append(pa.array([stretch.part.name] * num_rows, pa.string()))
            case "row":
                arrays.append(pa.array(stretch.rows, pa.int64()))
            case "vector" if pa.types.is_string(kind):
                arrays.append(_write_vectors(stretch.answers.column(VECTOR)))
            case _:
                arrays.append(fit(name, stretch.answers.column(name).combine_chunks(), kind))
    return pa.Table.from_arrays(arrays, schema=columns.schema)


def _explain(schema: pa.Schema) -> str:
    """Which column it is that Parquet has no room for: it keeps times in milliseconds at the coarsest."""
    types = pa.types
    times = [field for field in schema if types.is_timestamp(field.type) or types.is_duration(field.type)]
    names = " or ".join(f"{field.name} ({field.type})" for field in times) or "one of the columns"
    return (
        f"a value of the input's column {names} is beyond what the format can hold; leave the column out with "
        "--columns, or export to JSONL"
    )


def _write_vectors(column: pa.ChunkedArray) -> pa.Array:
    texts = (None if vector is None else write_vector(vector).decode() for vector in iter_vectors(column))
    return pa.array(texts, pa.string())


@contextmanager
def open_table_writer(export_format: ExportFormat, columns: Columns, stream: IO[bytes]) -> Iterator[TableWriter]:
    """A writer of one of the three."""
    schema = columns.schema
    match export_format:
        case ExportFormat.PARQUET:
            writer = pyarrow.parquet.ParquetWriter(stream, schema, compression="zstd")
        case ExportFormat.ARROW:
            options = pyarrow.ipc.IpcWriteOptions(compression="lz4")  # as Feather has it
            writer = pyarrow.ipc.new_file(stream, schema, options=options)
        case _:
            writer = pyarrow.csv.CSVWriter(stream, schema)
    with writer:
        yield TableWriter(columns, writer)


def choose_table_type(export_format: ExportFormat, kind: pa.DataType) -> pa.DataType | None:
    """What a column of this type is written as; None where it cannot be written at all."""
    match export_format:
        case ExportFormat.PARQUET:
            is_known = _is_parquet(kind)
        case ExportFormat.ARROW:
            is_known = True
        case _:
            is_known = _is_csv(kind)
    return kind if is_known else as_text_or_nothing(kind)


def _is_parquet(kind: pa.DataType) -> bool:
    """Whether Parquet has such a type: asked of its writer, which alone knows."""
    try:
        pyarrow.parquet.ParquetWriter(pa.BufferOutputStream(), pa.schema([("x", kind)])).close()
    except (pa.ArrowException, OSError):
        return False
    return True


def _is_csv(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_float32(kind)
        or types.is_float64(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_date32(kind)
        or (types.is_timestamp(kind) and kind.tz in {None, "UTC"})
        or types.is_null(kind)
    )
