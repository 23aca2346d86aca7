"""The image files that rows name: a document is known by the keys of their contents in place of their names.

So documents are the same where their images are, wherever those lie and whatever they are called. Files are read in
threads of their own, some rows ahead: on a network disk most of the time for one is waiting.
"""

import hashlib
import os
import stat
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from bulkinfer.errors import InputError
from bulkinfer.prompt.images import MAX_IMAGES, is_file_name
from bulkinfer.records import (
    BadImage,
    Document,
    DocumentImages,
    ImageFields,
    ImageFile,
    JsonValue,
    SeenImage,
    SourceFile,
    UnreadableRow,
    name_image_type,
    write_image_key,
)
from bulkinfer.sources.base import Source, count_chars
from bulkinfer.threads import run_in_thread

MAX_IMAGE_BYTES = 64 << 20
NUM_READERS = 8
_NUM_ROWS_AHEAD = 64
_NUM_IMAGES_AHEAD = 64
MAX_CHARS_AHEAD = 4 << 20
"""Of texts of rows that wait for their images, or of one row."""
_NUM_REMEMBERED = 65_536
_NUM_FIRST_BYTES = 16

_Row = Document | UnreadableRow


@dataclass(frozen=True, slots=True)
class _Begun:
    """A row and the files that are read for it, by name."""

    row: _Row
    files: Mapping[str, Future[SeenImage]]

    @property
    def num_chars(self) -> int:
        """Of all its texts: images may be some."""
        return count_chars(self.row.fields) if isinstance(self.row, Document) else 0


class ImageSource:
    """Rows of another source, with the image files that they name."""

    def __init__(self, source: Source, file: SourceFile, images: ImageFields) -> None:
        self._source = source
        self._images = images
        self._folder = find_image_folder(file, images)
        self._readers = threading.Semaphore(NUM_READERS)
        self._known: dict[str, SeenImage] = {}
        """By path: many rows may name one file."""

    def iter_rows(self, wanted: Iterator[int] | None = None) -> Iterator[_Row]:
        """Yield the rows; see `Source`. The rows before a fault of the file come first here, too."""
        waiting: deque[_Begun] = deque()
        num_open = num_chars = 0
        fault = None
        try:
            for row in self._source.iter_rows(wanted):
                waiting.append(_Begun(row, self._begin(row)))
                num_open += len(waiting[-1].files)
                num_chars += waiting[-1].num_chars
                while waiting and (
                    not waiting[0].files
                    or len(waiting) > _NUM_ROWS_AHEAD
                    or num_open > _NUM_IMAGES_AHEAD
                    or num_chars > MAX_CHARS_AHEAD
                ):
                    begun = waiting.popleft()
                    num_open -= len(begun.files)
                    num_chars -= begun.num_chars
                    yield self._finish(begun)
        except InputError as error:
            fault = error
        while waiting:
            yield self._finish(waiting.popleft())
        if fault is not None:
            raise fault

    def bytes_read(self) -> int:
        """See `Source`."""
        return self._source.bytes_read()

    def read_field_names(self) -> frozenset[str]:
        """See `Source`."""
        return self._source.read_field_names()

    def _begin(self, row: _Row) -> dict[str, Future[SeenImage]]:
        """Begin to read the files of a row, by name."""
        if isinstance(row, UnreadableRow):
            return {}
        names = dict.fromkeys(islice(iter_file_names(row, self._images), MAX_IMAGES + 1))
        if len(names) > MAX_IMAGES:  # the prompt refuses it by their number, whatever they are
            return {}
        return {name: self._look_at(name) for name in names}

    def _look_at(self, name: str) -> Future[SeenImage]:
        if self._folder is None and not Path(name).is_absolute():
            return _settled(BadImage(f"none:{name}", "a file beside an input that is not on this machine"))
        path = str(Path(self._folder or "", name))
        if (known := self._known.get(path)) is not None:
            return _settled(known)
        self._readers.acquire()
        return run_in_thread(partial(self._read, path, name), "bulkinfer-image")

    def _read(self, path: str, name: str) -> SeenImage:
        try:
            found = read_image_file(path, name)
        finally:
            self._readers.release()
        if isinstance(found, ImageFile):
            if len(self._known) >= _NUM_REMEMBERED:
                self._known.clear()
            self._known[path] = found
        return found

    def _finish(self, begun: "_Begun") -> _Row:
        row = begun.row
        if not begun.files or isinstance(row, UnreadableRow):
            return row
        found = {name: future.result() for name, future in begun.files.items()}
        identity = dict(row.fields)
        for name in self._images.names:
            if name in identity:
                identity[name] = _replace_names(identity[name], found)
                if name in self._images.printed:
                    identity[f"{name}\0printed"] = row.fields[name]
        return replace(row, images=DocumentImages(found, identity))


def read_image_file(path: str, name: str) -> SeenImage:
    """What a file is; `name` is what the row calls it."""
    try:
        mode = Path(path).stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a pipe would wait for who writes into it
            return BadImage(f"none:{name}", "the file cannot be read: it is not a regular one")
        with Path(path).open("rb") as stream:
            size_bytes = os.fstat(stream.fileno()).st_size
            if size_bytes > MAX_IMAGE_BYTES:
                limit = f"expected at most {MAX_IMAGE_BYTES >> 20} MiB, found a larger file"
                return BadImage(f"large:{name}", limit)
            beginning = stream.read(_NUM_FIRST_BYTES)
            stream.seek(0)
            key = write_image_key(hashlib.file_digest(stream, "sha256").digest())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a file name"
        return BadImage(f"none:{reason}:{name}", f"the file cannot be read: {reason}")
    if name_image_type(beginning) is None:
        return BadImage(key, "expected a PNG, JPEG, GIF or WebP file, found another")
    return ImageFile(key, path, size_bytes)


def find_image_folder(file: SourceFile, images: ImageFields) -> str | None:
    """Where relative names of a file's rows begin: beside it; None where that is not on this machine."""
    if file.url:
        return None
    return images.folder if file.keeper is not None else str(file.path.parent.absolute())


def iter_file_names(document: Document, images: ImageFields) -> Iterator[str]:
    """The files that a document names."""
    for name in images.names:
        yield from _iter_names(document.fields.get(name))


def _iter_names(value: JsonValue) -> Iterator[str]:
    match value:
        case str():
            if is_file_name(value):
                yield value
        case Mapping():
            yield from _iter_names(value.get("bytes") or value.get("path"))
        case Sequence():
            for part in value:
                yield from _iter_names(part)


def _replace_names(value: JsonValue, found: Mapping[str, SeenImage]) -> JsonValue:
    match value:
        case str():
            return found[value].key if value in found else value
        case Mapping():
            name = "bytes" if value.get("bytes") else "path"
            return {**value, name: _replace_names(value.get(name), found)}
        case Sequence():
            return [_replace_names(part, found) for part in value]
    return value


def _settled(found: SeenImage) -> Future[SeenImage]:
    future: Future[SeenImage] = Future()
    future.set_result(found)
    return future
