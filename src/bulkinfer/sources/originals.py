"""All columns of an input file as they stand in it, by the numbers of its rows: what an export puts beside the answers.

A source gives documents: only the fields that a prompt uses, as JSON values. Here nothing is left out, and columns of
Arrow keep their types.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, cast

import pyarrow as pa
import pyarrow.compute
from pyarrow.parquet import ParquetFile

from bulkinfer.errors import InputError
from bulkinfer.records import Document, FormatKind, JsonValue, SourceFile
from bulkinfer.sources.arrow import ArrowSource
from bulkinfer.sources.json_columns import to_json_values, write_json, write_text
from bulkinfer.sources.jsonl import JsonlSource, read_object
from bulkinfer.sources.opening import open_source
from bulkinfer.sources.parquet import ParquetSource
from bulkinfer.sources.remote_faults import RemoteFault, explain_reading
from bulkinfer.sources.spooled import FAULT

T = TypeVar("T")
Fields = Mapping[str, JsonValue]

_MAX_INT64 = 2**63 - 1
_MAX_EXACT = 2**53
"""Up to here a double holds every whole number."""
_BATCH_ROWS = 8_192
_BATCH_BYTES = 16 << 20
_ARROW_ROW_BYTES = 4_096
"""Taken for a row of Arrow, whose files do not say how many they have."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the rows of a file look like."""

    schema: pa.Schema
    """No dictionaries, no views: types that every format of Arrow can write."""
    row_bytes: int
    """Of one row, on average, in memory."""
    unreadable: frozenset[int] = frozenset()
    """Of lines of JSON: the numbers of those that are no objects."""


class Originals(Protocol):
    """The rows of one file, in the order of their numbers."""

    def take(self, rows: Sequence[int]) -> pa.Table:
        """The rows of these numbers, ascending, and behind those of the call before. Raises InputError.

        A row that could not be read, such as a broken line, is null in all columns.
        """

    def take_lines(self, rows: Sequence[int]) -> list[bytes]:
        """The same as JSON objects, one for each row."""


def find_shape(file: SourceFile) -> Shape:
    """Look at a file: of Parquet and Arrow at the schema, of others at every row. Raises InputError as sources do."""
    match file.format.kind:
        case FormatKind.PARQUET:
            return _find_parquet_shape(file)
        case FormatKind.ARROW | FormatKind.QUERY:
            with ArrowSource(file, frozenset(), None).open_table() as (schema, _):
                hidden = FAULT.names if file.format.kind is FormatKind.QUERY else ()
                own = pa.schema([field for field in schema if field.name not in hidden])
                return Shape(_plain_schema(own), _ARROW_ROW_BYTES)
        case FormatKind.JSONL | FormatKind.OPENAI:
            return _find_jsonl_shape(file)
        case _:
            return _find_shape_of(_iter_fields(file))


@contextmanager
def open_originals(file: SourceFile, shape: Shape, schema: pa.Schema, *, is_whole: bool) -> Iterator[Originals]:
    """The rows of a file; `schema` is what is wanted of its shape. Raises InputError.

    `is_whole`: all that the file has is wanted, so that lines of JSON can be given as they stand.
    """
    match file.format.kind:
        case FormatKind.PARQUET:
            with ParquetSource(file, frozenset(), None).open_table() as table:
                yield _TableOriginals(file, _iter_batches(table, schema), schema)
        case FormatKind.ARROW | FormatKind.QUERY:
            with ArrowSource(file, frozenset(), None).open_table() as (_, batches):
                yield _TableOriginals(file, batches, schema)
        case FormatKind.JSONL | FormatKind.OPENAI:
            with closing(JsonlSource(file, frozenset(), None).iter_lines()) as lines:
                yield _JsonlOriginals(file, lines, schema, shape.unreadable if is_whole else None)
        case _:
            with closing(_iter_documents(file)) as rows:
                yield _FieldOriginals(file, rows, schema)


def write_lines(table: pa.Table) -> list[bytes]:
    """Each row as a JSON object."""
    names = table.schema.names
    columns = [to_json_values(column.combine_chunks()) for column in table.columns]
    if not columns:
        return [b"{}"] * table.num_rows
    return [write_json(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def plain_type(arrow_type: pa.DataType) -> pa.DataType:
    """The type of the values of a dictionary or a run-length encoding; of a view, the same without."""
    types = pa.types
    if types.is_dictionary(arrow_type) or types.is_run_end_encoded(arrow_type):
        return plain_type(arrow_type.value_type)
    if types.is_string_view(arrow_type):
        return pa.string()
    return pa.binary() if types.is_binary_view(arrow_type) else arrow_type


def _find_parquet_shape(file: SourceFile) -> Shape:
    with ParquetSource(file, frozenset(), None).open_table() as table:
        metadata = table.metadata
        num_bytes = sum(metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups))
        return Shape(_plain_schema(table.schema_arrow), num_bytes // max(1, metadata.num_rows) + 1)


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """Two columns of one name cannot be told apart by it: the first stands for both."""
    first = {name: schema.field(schema.get_all_field_indices(name)[0]) for name in schema.names}
    return pa.schema([pa.field(name, plain_type(field.type)) for name, field in first.items()])


def _iter_batches(table: ParquetFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    num_rows = max(1, table.metadata.num_rows)
    row_bytes = (
        sum(table.metadata.row_group(index).total_byte_size for index in range(table.num_row_groups)) // num_rows
    )
    batch_rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // (row_bytes + 1)))
    yield from table.iter_batches(batch_rows, columns=schema.names, use_threads=True)


class _TableOriginals:
    def __init__(self, file: SourceFile, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
        self._file = file
        self._batches = batches
        self._schema = schema
        self._batch: pa.RecordBatch | None = None
        self._first_row = 1
        """Of the batch."""

    def take(self, rows: Sequence[int]) -> pa.Table:
        # Slices: Arrow cannot take single rows of every type.
        found = [self._batch_with(first).slice(first - self._first_row, count) for first, count in self._split(rows)]
        arrays = [
            pa.chunked_array([_plain(batch, field) for batch in found], field.type).combine_chunks()
            for field in self._schema
        ]
        return pa.Table.from_arrays(arrays, schema=self._schema) if arrays else _no_columns(len(rows))

    def take_lines(self, rows: Sequence[int]) -> list[bytes]:
        return write_lines(self.take(rows))

    def _split(self, rows: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Stretches without a gap that lie in one batch each: the first row, and how many. Asked for one by one."""
        start = 0
        while start < len(rows):
            last_row = self._first_row + self._batch_with(rows[start]).num_rows - 1
            end = start + 1
            while end < len(rows) and rows[end] == rows[end - 1] + 1 and rows[end] <= last_row:
                end += 1
            yield rows[start], end - start
            start = end

    def _batch_with(self, row: int) -> pa.RecordBatch:
        while self._batch is None or row >= self._first_row + self._batch.num_rows:
            if self._batch is not None:
                self._first_row += self._batch.num_rows
            try:
                self._batch = next(self._batches, None)
            except RemoteFault as fault_elsewhere:
                raise explain_reading(self._file.name, fault_elsewhere) from fault_elsewhere
            except (pa.ArrowException, OSError) as error:
                fault = type(error).__name__
                raise InputError(f"{self._file.name}: row {row} cannot be read ({fault}); write it again") from error
            if self._batch is None:
                raise _too_short(self._file, row)
        return self._batch


class _BigInteger:
    """The type of whole numbers that no column of Arrow takes."""


class _LongInteger:
    """Stands for the type of whole numbers that a double does not hold."""


class _FieldOriginals:
    """Of a format that is read as documents: each with all its fields."""

    def __init__(self, file: SourceFile, rows: Iterator[tuple[int, Fields]], schema: pa.Schema) -> None:
        self._file = file
        self._rows = rows
        self._schema = schema

    def take(self, rows: Sequence[int]) -> pa.Table:
        return _make_table(list(_take(self._file, self._rows, rows)), self._schema)

    def take_lines(self, rows: Sequence[int]) -> list[bytes]:
        return [_write_chosen(fields, self._schema) for fields in _take(self._file, self._rows, rows)]


class _JsonlOriginals:
    """Lines of JSON, which can be given as they stand."""

    def __init__(
        self,
        file: SourceFile,
        lines: Iterator[tuple[int, bytes]],
        schema: pa.Schema,
        unreadable: frozenset[int] | None,
    ) -> None:
        """`unreadable`: the lines that are no objects; None where not all keys are wanted."""
        self._file = file
        self._lines = lines
        self._schema = schema
        self._unreadable = unreadable

    def take(self, rows: Sequence[int]) -> pa.Table:
        return _make_table([read_object(line) or {} for line in _take(self._file, self._lines, rows)], self._schema)

    def take_lines(self, rows: Sequence[int]) -> list[bytes]:
        lines = _take(self._file, self._lines, rows)
        if (bad := self._unreadable) is not None:
            return [b"{}" if row in bad else line.strip() for row, line in zip(rows, lines, strict=True)]
        return [_write_chosen(read_object(line) or {}, self._schema) for line in lines]


def _find_jsonl_shape(file: SourceFile) -> Shape:
    unreadable = set()

    def iter_objects() -> Iterator[tuple[Fields, int]]:
        with closing(JsonlSource(file, frozenset(), None).iter_lines()) as lines:
            for number, line in lines:
                row = read_object(line)
                if row is None:
                    unreadable.add(number)
                yield row or {}, len(line)

    shape = _find_shape_of(iter_objects())
    return replace(shape, unreadable=frozenset(unreadable))


def _iter_fields(file: SourceFile) -> Iterator[tuple[Fields, int]]:
    with closing(_iter_documents(file)) as rows:
        for _, fields in rows:
            yield fields, sum(len(value) for value in fields.values() if isinstance(value, str))


def _iter_documents(file: SourceFile) -> Generator[tuple[int, Fields], None, None]:
    """All rows, whatever of them is chosen; nothing of one that cannot be read."""
    for row in open_source(replace(file, images=None, selection=None), None, None).iter_rows():
        yield row.origin.row, row.fields if isinstance(row, Document) else {}


def _find_shape_of(rows: Iterator[tuple[Fields, int]]) -> Shape:
    kinds: dict[str, set[type]] = {}
    num_rows = num_bytes = 0
    for fields, size in rows:
        num_rows += 1
        num_bytes += size
        for name, value in fields.items():
            kind: type = type(value)
            if isinstance(value, int) and not -_MAX_EXACT <= value <= _MAX_EXACT:
                kind = _LongInteger if -_MAX_INT64 <= value <= _MAX_INT64 else _BigInteger
            known = kinds.get(name)
            if known is None:
                kinds[name] = {kind}
            elif kind not in known:
                known.add(kind)
    columns = [pa.field(name, _choose_type(found - {type(None)})) for name, found in kinds.items()]
    return Shape(pa.schema(columns), num_bytes // max(1, num_rows) + 1)


def _take(file: SourceFile, numbered: Iterator[tuple[int, T]], rows: Sequence[int]) -> Iterator[T]:
    """What has these numbers, ascending. What lies between them is passed over."""
    wanted = iter(rows)
    row = next(wanted, None)
    while row is not None:
        number, content = next(numbered, (None, None))
        if number is None or number > row:
            raise _too_short(file, row)
        if number == row:
            yield cast(T, content)
            row = next(wanted, None)


def _make_table(rows: Sequence[Fields], schema: pa.Schema) -> pa.Table:
    arrays = [_as_array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema) if arrays else _no_columns(len(rows))


def _write_chosen(fields: Fields, schema: pa.Schema) -> bytes:
    return write_json({name: fields[name] for name in schema.names if name in fields})


def _choose_type(kinds: set[type]) -> pa.DataType:
    """What all values of a key fit into; texts, where they are of several kinds or nested."""
    match sorted(kind.__name__ for kind in kinds):
        case ["bool"]:
            return pa.bool_()
        case ["int"] | ["_LongInteger"] | ["_LongInteger", "int"]:
            return pa.int64()
        case ["float"] | ["float", "int"]:
            return pa.float64()
    return pa.string()


def _as_array(values: list[JsonValue], arrow_type: pa.DataType) -> pa.Array:
    if pa.types.is_string(arrow_type):
        return pa.array([write_text(value) for value in values], arrow_type)
    if pa.types.is_floating(arrow_type):  # Arrow refuses integers of more than 53 bits among floats
        return pa.array([float(value) if isinstance(value, int) else value for value in values], arrow_type)
    return pa.array(values, arrow_type)


def _plain(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    array = batch.column(batch.schema.get_all_field_indices(field.name)[0])
    if pa.types.is_run_end_encoded(array.type):  # Arrow has no cast for these
        array = pyarrow.compute.run_end_decode(array)
    return array if array.type == field.type else array.cast(field.type)


def _no_columns(num_rows: int) -> pa.Table:
    """A table that has rows all the same."""
    return pa.table({"": pa.nulls(num_rows)}).select([])


def _too_short(file: SourceFile, row: int) -> InputError:
    return InputError(f"{file.name}: row {row}, which a run has read, is not there any more; run the job again")
