"""A text file as one document, with the fields `text`, `path` and `name`."""

import hashlib
from collections.abc import Iterator
from pathlib import PurePosixPath

from bulkinfer.records import Document, SourceFile, UnreadableRow
from bulkinfer.sources.base import check_unchanged, name_origin
from bulkinfer.sources.lines import detect_encoding
from bulkinfer.sources.streams import RawFile, explained, open_raw, open_stream
from bulkinfer.sources.urls import drop_digest

MAX_TEXT_BYTES = 64 << 20
"""A larger file is one unreadable row."""
_FIELDS = frozenset({"text", "path", "name"})


class TextSource:
    """A file that is one document: row 1. An empty file is one, too; its text is empty."""

    def __init__(self, file: SourceFile, fields: frozenset[str] | None, id_field: str | None) -> None:
        self._file = file
        self._fields = _FIELDS if fields is None else fields & _FIELDS
        self._id_field = id_field
        self._raw: RawFile | None = None

    def iter_rows(self, wanted: Iterator[int] | None = None) -> Iterator[Document | UnreadableRow]:
        """Yield the document, or why it cannot be read. Raises InputError; see `Source`."""
        if wanted is not None and next(wanted, None) != 1:
            return
        raw = open_raw(self._file)
        self._raw = raw
        with explained(self._file, int), open_stream(self._file, raw) as stream:
            content = stream.read(MAX_TEXT_BYTES + 1)
        check_unchanged(self._file)
        yield self._read(content)

    def bytes_read(self) -> int:
        """Bytes of the file as it lies on disk; see `Source`."""
        return 0 if self._raw is None else min(self._raw.num_bytes_read, self._file.size_bytes)

    def read_field_names(self) -> frozenset[str]:
        """Always the same; see `Source`."""
        return _FIELDS

    def _read(self, content: bytes) -> Document | UnreadableRow:
        if len(content) > MAX_TEXT_BYTES:
            return self._unreadable(content, f"longer than {MAX_TEXT_BYTES >> 20} MiB")
        encoding = self._file.format.encoding or detect_encoding(content[:64])
        try:
            text = content.decode("utf-8-sig" if encoding == "utf-8" else encoding)
        except UnicodeError as error:
            where = f" at byte {error.start + 1}" if isinstance(error, UnicodeDecodeError) else ""
            return self._unreadable(content, f"not {encoding}{where}; see input.text.encoding")
        if "\0" in text:
            return self._unreadable(content, f"a NUL character at character {text.index(chr(0)) + 1}: is it text?")
        path = drop_digest(self._file.name) if self._file.url else self._file.name
        values = {"text": text, "path": path, "name": PurePosixPath(path).name}
        origin = name_origin(self._file.name, 1, values.get(self._id_field) if self._id_field else None)
        return Document(origin, {field: value for field, value in values.items() if field in self._fields})

    def _unreadable(self, content: bytes, reason: str) -> UnreadableRow:
        digest = hashlib.sha256(content).digest()[:16]
        return UnreadableRow(name_origin(self._file.name, 1, None), digest, f"{self._file.name}, line 1: {reason}")
