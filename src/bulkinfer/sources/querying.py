"""`input.sql`: the rows of a query over the input, as one file that has no name and is gone with the process.

The rows are written down once, so that they keep their numbers during a run. The file is known by its content: a later
run whose query gives the same rows in the same order reads only those that are still to do.
Rows that cannot be read do not reach the query; they stand behind its rows, and fail.
"""

import hashlib
import os
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import ipc

from bulkinfer.errors import JobError
from bulkinfer.fingerprint import write_canonical
from bulkinfer.records import Document, FileFormat, FormatKind, SourceFile, UnreadableRow
from bulkinfer.sources.base import Source, TableSource
from bulkinfer.sources.opening import open_source
from bulkinfer.sources.selected import iter_blocks, read_schema
from bulkinfer.sources.spooled import FAULT
from bulkinfer.sources.typed import probe_kinds, schema_of, split_by_types
from bulkinfer.sql import Query, QueryFault, explained_query, open_query

NAME = "input.sql"
_ANY_WHOLE = pa.decimal128(20, 0)
"""Of a column that has numbers of 64 bits with and without a sign."""


def query_input(files: Sequence[SourceFile], text: str) -> SourceFile:
    """The rows of the query as a file. Raises JobError for the query, InputError as sources do."""
    paths = [file.path for file in files]
    is_parquet = all(file.format.kind is FormatKind.PARQUET and not file.url for file in files)
    with open_query(text, paths if is_parquet else ()) as query:
        if is_parquet:
            for file in files:
                open_source(file, frozenset(), None)  # whether it is one
        try:
            if is_parquet:
                query.view_parquet()
            else:
                _load(query, files)
            return _write_down(query, text)
        except QueryFault:
            if is_parquet:  # DuckDB does not say which file it could not read
                for file in files:
                    _read_through(file)
            raise


def _read_through(file: SourceFile) -> None:
    """Raise InputError when it cannot be read to its end."""
    source = open_source(file, frozenset(), None)
    assert isinstance(source, TableSource)
    for _ in source.iter_columns(source.schema.names):
        pass


def _load(query: Query, files: Sequence[SourceFile]) -> None:
    types: dict[str, pa.DataType] = {}
    for file in files:
        for column in read_schema(open_source(file, None, None)):
            types[column.name] = _join(types.get(column.name), column.type)
    query.create(pa.schema(types))
    for file in files:
        source = open_source(file, None, None)
        if isinstance(source, TableSource):
            _load_table(query, source)
        else:
            _load_lines(query, source)


def _join(one: pa.DataType | None, other: pa.DataType) -> pa.DataType:
    both = {one or other, other}
    if len(both) == 1:
        return other
    if all(map(_is_whole, both)):
        return _ANY_WHOLE if both & {pa.uint64(), _ANY_WHOLE} else pa.int64()
    is_number = all(_is_whole(found) or pa.types.is_floating(found) for found in both)
    return pa.float64() if is_number else pa.string()


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind)) or kind == _ANY_WHOLE


def _load_table(query: Query, source: TableSource) -> None:
    for _, batch in source.iter_columns(source.schema.names):
        if isinstance(batch, range):
            numbers = iter(batch)
            query.add_faults([_describe(row) for row in source.iter_rows(numbers) if isinstance(row, UnreadableRow)])
        else:
            query.add(pa.table(batch.columns, names=batch.schema.names))


def _load_lines(query: Query, source: Source) -> None:
    kinds = probe_kinds(source)
    expected = schema_of(kinds)
    for block in iter_blocks(source.iter_rows()):
        faults = [_describe(row) for row in block if isinstance(row, UnreadableRow)]
        for rows in split_by_types([row for row in block if isinstance(row, Document)], kinds):
            if rows.table.schema == expected:
                query.add(rows.table)
            else:
                faults += map(_describe_misfit, rows.documents)
        if faults:
            query.add_faults(faults)


def _describe(row: UnreadableRow) -> tuple[str, str, str]:
    return row.origin.document_id, row.reason, row.digest.hex()


def _describe_misfit(row: Document) -> tuple[str, str, str]:
    where = f"{row.origin.source}, row {row.origin.row}"
    reason = f"{where}: a value of another type than its column has in the first rows; input.sql cannot take it"
    digest = hashlib.sha256(b"input.sql\0" + write_canonical(row.fields)).digest()[:16]
    return row.origin.document_id, reason, digest.hex()


class _Kept:
    """A file without a name. It closes with the last who has it."""

    def __init__(self) -> None:
        self.descriptor, path = tempfile.mkstemp(prefix="bulkinfer-input-")
        os.unlink(path)  # noqa: PTH108
        weakref.finalize(self, os.close, self.descriptor)

    @property
    def path(self) -> Path:
        """Where this process can open it again."""
        return Path(f"/proc/self/fd/{self.descriptor}")


def _write_down(query: Query, text: str) -> SourceFile:
    """What the query gives, and then what could not be read, as an Arrow file."""
    kept = _Kept()
    with explained_query(), open(os.dup(kept.descriptor), "wb") as stream:  # noqa: PTH123 - no path leads to it
        rows = query.run(text)
        taken = {name.lower() for name in rows.schema.names} & set(FAULT.names)
        if taken:
            raise JobError(
                f"input.sql: the column {taken.pop()} has a name that is bulkinfer's own; give it another", "input.sql"
            )
        schema = pa.schema([*rows.schema, *FAULT])
        with ipc.new_stream(stream, schema, options=ipc.IpcWriteOptions(compression="zstd")) as writer:
            for batch in rows:
                nulls = [pa.nulls(batch.num_rows, field.type) for field in FAULT]
                writer.write_batch(pa.RecordBatch.from_arrays([*batch.columns, *nulls], schema=schema))
            for batch in query.iter_faults():
                nulls = [pa.nulls(batch.num_rows, field.type) for field in rows.schema]
                writer.write_batch(pa.RecordBatch.from_arrays([*nulls, *batch.columns], schema=schema))
    with kept.path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").digest()
    return SourceFile(
        path=kept.path,
        name=NAME,
        size_bytes=os.fstat(kept.descriptor).st_size,
        mtime_ns=0,
        ctime_ns=0,
        inode=int.from_bytes(digest[:8]),
        format=FileFormat(FormatKind.QUERY),
        keeper=kept,
    )
