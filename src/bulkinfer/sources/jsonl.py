"""JSONL, plain or compressed, one line at a time: a line that is no document is a value, and the next line is read."""

import hashlib
import json
import re
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from types import NoneType
from typing import Any, BinaryIO, NoReturn

import orjson

from bulkinfer.records import Document, SourceFile, UnreadableRow
from bulkinfer.sources.base import check_unchanged, name_origin
from bulkinfer.sources.streams import RawFile, explained, open_raw, open_stream

MAX_LINE_BYTES = 64 << 20
"""A longer line is one unreadable row; it is passed over without being held in memory."""

_PROBE_ROWS = 100
_PROBE_BYTES = 1 << 20
_PIECE_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
_EXACT_TYPES = frozenset({str, int, bool, NoneType})
"""What orjson reads exactly. A float may have been an integer beyond 64 bits, and a list or an object may hold one."""
_LONG_INTEGER = re.compile(rb"\d{19}")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class JsonlSource:
    """A JSONL file, plain, gzip or zstd. Rows are numbered by line from 1; blank lines count but are no rows."""

    def __init__(self, file: SourceFile, fields: frozenset[str] | None, id_field: str | None) -> None:
        self._file = file
        self._fields = fields
        self._id_field = id_field
        self._needed = None if fields is None else sorted(fields if id_field is None else fields | {id_field})
        self._raw: RawFile | None = None

    def iter_rows(self, wanted: Iterator[int] | None = None) -> Iterator[Document | UnreadableRow]:
        """Yield one row for each line that is not blank, or for the wanted ones. Raises InputError; see `Source`.

        A line that is not wanted is not parsed.
        """
        raw = open_raw(self._file)
        self._raw = raw
        with closing(self._iter_lines(raw, wanted)) as lines:
            for line in lines:
                yield self._read_row(line)
        check_unchanged(self._file)

    def iter_lines(self) -> Generator[tuple[int, bytes], None, None]:
        """Number and content of each line that is not blank; nothing of one that is too long. Raises InputError.

        The line's end may be there: JSON does not mind.
        """
        number = 0
        with explained(self._file, lambda: number), open_stream(self._file, open_raw(self._file)) as stream:
            while raw := stream.readline(MAX_LINE_BYTES + 2):
                number += 1
                if number > 1 and len(raw) <= MAX_LINE_BYTES:
                    if not raw.isspace():
                        yield number, raw
                elif (line := _read_line(stream, number, raw)) is not None:
                    yield number, line.content
        check_unchanged(self._file)

    def bytes_read(self) -> int:
        """Bytes of the file as it lies on disk, packed if it is; see `Source`."""
        return 0 if self._raw is None else min(self._raw.num_bytes_read, self._file.size_bytes)

    def read_field_names(self) -> frozenset[str]:
        """The keys of the first 100 lines, or of those in the first MB; see `Source`."""
        names: set[str] = set()
        num_bytes = 0
        with closing(self._iter_lines(open_raw(self._file))) as lines:
            for line in islice(lines, _PROBE_ROWS):
                names.update(_read_keys(line))
                num_bytes += len(line.content)
                if num_bytes > _PROBE_BYTES:
                    break
        return frozenset(names)

    def _iter_lines(self, raw: RawFile, wanted: Iterator[int] | None = None) -> Generator["_Line", None, None]:
        number = 0
        with explained(self._file, lambda: number), open_stream(self._file, raw) as stream:
            for line in _iter_lines(stream) if wanted is None else _iter_wanted_lines(stream, wanted):
                number = line.number
                yield line

    def _read_row(self, line: "_Line") -> Document | UnreadableRow:
        if line.digest is not None:
            return self._unreadable(line.number, line.digest, f"longer than {MAX_LINE_BYTES >> 20} MiB")
        try:
            row = orjson.loads(line.content)
        except orjson.JSONDecodeError as error:
            return self._unreadable(line.number, _digest(line.content), _explain(line.content, error.pos + 1))
        if type(row) is not dict:
            kind = _KINDS[type(row)]
            return self._unreadable(line.number, _digest(line.content), f"{kind} where one JSON object is expected")
        needed = self._take_needed(row)
        # Asked last: an ordinary row has only text and small integers and pays for no search.
        if not _EXACT_TYPES.issuperset(map(type, needed.values())) and _LONG_INTEGER.search(line.content):
            try:
                row = json.loads(line.content)
            except RecursionError:
                return self._unreadable(line.number, _digest(line.content), "nested too deep")
            needed = self._take_needed(row)
        return self._create_document(line.number, needed)

    def _take_needed(self, row: dict[str, Any]) -> dict[str, Any]:
        return row if self._needed is None else {name: row[name] for name in self._needed if name in row}

    def _create_document(self, number: int, needed: dict[str, Any]) -> Document:
        if self._id_field is None:
            return Document(name_origin(self._file.name, number, None), needed)
        id_value = needed.get(self._id_field)
        if self._fields is not None and self._id_field not in self._fields:
            needed.pop(self._id_field, None)
        return Document(name_origin(self._file.name, number, id_value), needed)

    def _unreadable(self, number: int, digest: bytes, reason: str) -> UnreadableRow:
        return UnreadableRow(
            name_origin(self._file.name, number, None), digest, f"{self._file.name}, line {number}: {reason}"
        )


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    content: bytes
    """Without the line's end; empty for a line that is too long."""
    digest: bytes | None = None
    """Of a line that is too long."""


def _iter_lines(stream: BinaryIO) -> Iterator[_Line]:
    """The lines that are not blank."""
    limit = MAX_LINE_BYTES + 2  # room for the line's end
    number = 0
    while raw := stream.readline(limit):
        number += 1
        if (line := _read_line(stream, number, raw)) is not None:
            yield line


def _iter_wanted_lines(stream: BinaryIO, wanted: Iterator[int]) -> Iterator[_Line]:
    """Those of the lines that are not blank whose numbers are wanted."""
    limit = MAX_LINE_BYTES + 2
    number = 0
    for target in wanted:
        while raw := stream.readline(limit):
            number += 1
            if number == target:
                break
            while len(raw) == limit and not raw.endswith(b"\n"):
                raw = stream.readline(limit)
        else:
            return
        if (line := _read_line(stream, number, raw)) is not None:
            yield line


def _read_line(stream: BinaryIO, number: int, raw: bytes) -> _Line | None:
    """The line that begins with `raw`; None if it is blank."""
    if number == 1:
        raw = raw.removeprefix(_BOM)
    if len(raw) > MAX_LINE_BYTES and len(_strip_end(raw)) > MAX_LINE_BYTES:
        return _Line(number, b"", _pass_over_line(stream, raw))
    if raw and not raw.isspace():
        return _Line(number, _strip_end(raw))
    return None


def _pass_over_line(stream: BinaryIO, begin: bytes) -> bytes:
    """Read to the end of a line that began with `begin`; the digest of all of it, held in memory a piece at a time."""
    digest = hashlib.sha256()
    piece = begin
    while not piece.endswith(b"\n") and (more := stream.readline(_PIECE_BYTES)):
        # The last byte waits: it may be the first half of a CRLF.
        digest.update(piece[:-1])
        piece = piece[-1:] + more
    digest.update(_strip_end(piece))
    return digest.digest()[:16]


def _strip_end(raw: bytes) -> bytes:
    return raw[:-2] if raw.endswith(b"\r\n") else raw.removesuffix(b"\n")


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:16]


def read_object(content: bytes) -> dict[str, Any] | None:
    """All of one line, exactly; None if it is not one JSON object."""
    try:
        row: dict[str, Any] = orjson.loads(content)
        if type(row) is not dict:
            return None
        if not _EXACT_TYPES.issuperset(map(type, row.values())) and _LONG_INTEGER.search(content):
            row = json.loads(content)
    except (orjson.JSONDecodeError, RecursionError):
        return None
    return row


def _read_keys(line: _Line) -> frozenset[str]:
    try:
        row = orjson.loads(line.content)
    except orjson.JSONDecodeError:
        return frozenset()
    return frozenset(row) if type(row) is dict else frozenset()


_KINDS = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    NoneType: "null",
}


def _explain(content: bytes, column: int) -> str:
    """Why orjson refused a line at `column`, counted from 1. Slow, and only for lines that are broken."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        return f"invalid UTF-8 at byte {error.start + 1}"
    if "\0" in text:
        return f"a NUL byte at column {text.index(chr(0)) + 1}"
    return _explain_json(text, column)


def _explain_json(text: str, column: int) -> str:
    begin = len(text) - len(text.lstrip())
    try:
        _, end = _STRICT_JSON.raw_decode(text, begin)
    except RecursionError:
        return f"nested too deep, at column {column}"
    except ValueError:
        return f"broken JSON at column {column}"
    if text[end:].strip():
        return f"more after the end of the JSON value, at column {column}; one object per line"
    if _SURROGATE_ESCAPE.search(text):
        return f"half of a surrogate pair at column {column}; it stands for no character"
    return f"a number out of range, at column {column}"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


_STRICT_JSON = json.JSONDecoder(parse_constant=_refuse_constant)
