"""Exports that are JSONL: a line for each row, with the columns of its line in the input as they stand there."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Protocol

import orjson

from bulkinfer.export.columns import HASH_FIELD, ROW_FIELDS, Columns
from bulkinfer.export.rows import Stretch
from bulkinfer.export.vectors import iter_vectors, write_vector
from bulkinfer.sources import Originals
from bulkinfer.store import LINE, VECTOR

_WRITTEN_BYTES = 4 << 20
"""Lines that are gathered before they are written."""


class Stream(Protocol):
    """Where bytes go: a file, or gzip before one."""

    def write(self, content: bytes, /) -> int:
        """Write all of it."""


class LineWriter:
    """Writes stretches as lines. The answers come from the store as JSON already."""

    def __init__(self, columns: Columns, stream: Stream) -> None:
        self._stream = stream
        self._row_names = [(name, field) for name, field in columns.answers if field in ROW_FIELDS]
        self._hash_name = next((name for name, field in columns.answers if field == HASH_FIELD), None)
        self._vector_name = next((name for name, field in columns.answers if field == VECTOR), None)

    def write(self, stretch: Stretch, originals: Originals | None) -> None:
        """Write one stretch. Raises InputError when its rows cannot be read any more."""
        own = [b"{}"] * len(stretch.rows) if originals is None else originals.take_lines(stretch.rows)
        answers = stretch.answers
        ids, hashes = answers.column("document_id").to_pylist(), answers.column("document_hash").to_pylist()
        texts = answers.column(LINE).to_pylist()
        gathered, num_bytes = list[bytes](), 0
        for line, row, document_id, text, vector, digest in zip(
            own, stretch.rows, ids, texts, self._write_vectors(stretch), hashes, strict=True
        ):
            values = {"document_id": document_id, "source": stretch.part.name, "row": row}
            named = orjson.dumps({name: values[field] for name, field in self._row_names})
            last = b"{}" if self._hash_name is None else orjson.dumps({self._hash_name: digest})
            gathered.append(_join((line, named, text.encode(), vector, last)))
            num_bytes += len(gathered[-1])
            if num_bytes > _WRITTEN_BYTES:
                self._stream.write(b"".join(gathered))
                gathered, num_bytes = [], 0
        self._stream.write(b"".join(gathered))

    def _write_vectors(self, stretch: Stretch) -> Iterator[bytes]:
        """For each row an object that holds nothing else; an empty one where no vector is wanted."""
        if self._vector_name is None:
            yield from [b"{}"] * len(stretch.rows)
            return
        key = orjson.dumps(self._vector_name)
        for vector in iter_vectors(stretch.answers.column(VECTOR)):
            yield b"{" + key + b":" + write_vector(vector) + b"}"


@contextmanager
def open_line_writer(columns: Columns, stream: IO[bytes], *, is_packed: bool) -> Iterator[LineWriter]:
    """A writer of JSONL, plain or with gzip."""
    if not is_packed:
        yield LineWriter(columns, stream)
        return
    with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=3, mtime=0) as packed:
        yield LineWriter(columns, packed)


def _join(objects: tuple[bytes, ...]) -> bytes:
    """One JSON object of several, and the end of the line."""
    inner = (text[1:-1].strip() for text in objects)
    return b"{" + b",".join(text for text in inner if text) + b"}\n"
