"""The port of a source, and what all sources share: how a document is named, and that its file must not change."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import pyarrow as pa

from bulkinfer.errors import InputError
from bulkinfer.records import Document, JsonValue, Origin, SourceFile, UnreadableRow
from bulkinfer.sources.remote import check_remote_unchanged


class Source(Protocol):
    """One input file as a stream of rows. A row that cannot be read is a value in the stream, never an exception."""

    def iter_rows(self, wanted: Iterator[int] | None = None) -> Iterator[Document | UnreadableRow]:
        """Yield the rows in file order; memory does not grow with the file.

        `wanted`: only the rows of these numbers, ascending; reading ends with the last of them. The others are passed
        over as cheaply as the format allows, and it may be asked for the next a few hundred rows ahead.
        Raises InputError when the file as a whole is at fault: damaged, gone, or changed since it was found. The rows
        before the fault have been yielded by then.
        """

    def bytes_read(self) -> int:
        """How far in the file the reading is, in bytes of the file as it lies on disk: a measure of progress only.

        Any thread may ask, at any time. Reading ahead counts, so this runs up to a few MB before the last row yielded.
        """

    def read_field_names(self) -> frozenset[str]:
        """The fields that rows of this file have, read without touching `iter_rows`; empty if no row could be read.

        Parquet: all columns. JSONL: the keys of the first rows, so a field that comes later may be missing here.
        Raises InputError as `iter_rows` does.
        """


@runtime_checkable
class TableSource(Source, Protocol):
    """A source whose columns have types."""

    schema: pa.Schema

    def iter_columns(self, names: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch | range]]:
        """Yield the rows of some columns as batches, each with the number of its first row, in file order.

        Rows with a value that cannot be looked at come as their numbers instead. Raises InputError as `iter_rows` does.
        """


def name_origin(source_name: str, row: int, id_value: JsonValue) -> Origin:
    """Name a row by its id: text as it stands, else as JSON writes it; "<source>:<row>" where the id is null."""
    match id_value:
        case None:
            return Origin(source_name, row, f"{source_name}:{row}")
        case str():
            return Origin(source_name, row, id_value)
        case _:
            return Origin(source_name, row, json.dumps(id_value, ensure_ascii=False))


def check_unchanged(file: SourceFile) -> None:
    """Make sure that the file at the path is still the one that was found: same inode, size and time of change.

    The store remembers rows by these, so rows of a file that changed meanwhile must not pass for rows of the old one.
    The ctime is left out: a change of owner or mode changes no row. Raises InputError.
    """
    if file.keeper is not None:  # nobody else can reach it
        return
    if file.url:
        check_remote_unchanged(file)
        return
    try:
        now = file.path.stat()
    except OSError as error:
        raise InputError(
            f"{file.name}: the file could be read when the run began and cannot now ({error.strerror}). "
            "What was read of it is kept; put the file back and run again"
        ) from error
    if (now.st_ino, now.st_size, now.st_mtime_ns) != (file.inode, file.size_bytes, file.mtime_ns):
        raise InputError(
            f"{file.name}: the file changed while the run was using it ({file.size_bytes} bytes when found, "
            f"{now.st_size} bytes now). What was read of it is kept; run again to read it as it is now"
        )


def count_chars(value: JsonValue) -> int:
    """Of all its texts, and a few for each other value. With a stack: JSON may be nested deeper than Python calls."""
    num_chars = 0
    waiting: list[JsonValue] = [value]
    while waiting:
        match waiting.pop():
            case str() as text:
                num_chars += len(text)
            case Mapping() as pairs:
                waiting.extend(pairs.values())
            case list() as values:
                waiting.extend(values)
            case _:
                num_chars += 8
    return num_chars
