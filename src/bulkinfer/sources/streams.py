"""Plain, gzip and zstd files as one kind of byte stream, which tells damage from the end of the file."""

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import zstandard

from bulkinfer.errors import InputError
from bulkinfer.records import Packing, SourceFile
from bulkinfer.sources.base import check_unchanged
from bulkinfer.sources.remote import RemoteFile

DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError)
"""What reading a compressed stream raises when it is cut off or holds a block that cannot be unpacked."""

_BUFFER_BYTES = 1 << 20
_ZSTD_INPUT_BYTES = 1 << 12
"""A piece can unpack to 32,000 times its size: this bounds what one makes to 128 MiB. Plain text makes about 20 KB."""
_ZSTD_MAX_WINDOW_BYTES = 1 << 31
"""Files made with `zstd --long=31` are read too; the library's own limit is 128 MiB."""
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE_MAGIC = b"\x2a\x4d\x18"
"""Bytes 2 to 4 of a frame that holds no content; pzstd and the seekable format write such."""


class CountingFile(io.FileIO):
    """A file that knows how much of it was read. Asking costs no system call and is safe after the file is closed."""

    num_bytes_read = 0

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401 - the buffer protocol has no name before Python 3.12
        """Read as FileIO does; count."""
        num_bytes = super().readinto(buffer)
        self.num_bytes_read += num_bytes or 0
        return num_bytes


RawFile = CountingFile | RemoteFile
"""What is read of a file; both know how much."""


def open_raw(file: SourceFile) -> RawFile:
    """Open a file that is as it was found. Raises InputError."""
    check_unchanged(file)
    try:
        return RemoteFile(file) if file.url else CountingFile(file.path)
    except OSError as error:
        raise InputError(f"{file.name}: cannot be read ({error.strerror}). Check its permissions") from error


@contextmanager
def explained(file: SourceFile, last_line: Callable[[], int]) -> Iterator[None]:
    """Turn what reading a stream raises into InputError; `last_line` tells how far it was read."""
    try:
        yield
    except DAMAGE as error:
        check_unchanged(file)
        raise InputError(
            f"{file.name}: the compressed stream is damaged or cut off after line {last_line()} "
            f"({type(error).__name__}). The lines before were read; get the file again, then run again"
        ) from error
    except OSError as error:
        raise InputError(
            f"{file.name}: reading failed after line {last_line()} ({error.strerror}). "
            "The lines before were read; run again when the disk or the network is well"
        ) from error


@contextmanager
def open_stream(file: SourceFile, raw: RawFile) -> Iterator[BinaryIO]:
    """The unpacked bytes of a file that `raw` has open; closes it in the end.

    Several gzip members or zstd frames in a row are one stream. Raises InputError when the file does not begin as its
    ending says. Reading may raise what `DAMAGE` names, after all bytes before the damage, give or take one block.
    """
    with io.BufferedReader(raw, _BUFFER_BYTES) as packed:
        match file.format.packing:
            case Packing.GZIP:
                _check_begin(file, "gzip", is_right=packed.peek(2)[:2] in {b"", _GZIP_MAGIC[:1], _GZIP_MAGIC})
                with gzip.GzipFile(fileobj=packed, mode="rb") as stream:
                    yield stream  # type: ignore[misc]  # a GzipFile reads as a BinaryIO does
            case Packing.ZSTD:
                head = packed.peek(4)[:4]
                _check_begin(file, "zstd", is_right=_ZSTD_MAGIC.startswith(head) or head[1:] == _ZSTD_SKIPPABLE_MAGIC)
                with io.BufferedReader(_ZstdFile(packed), _BUFFER_BYTES) as stream:
                    yield stream
            case _:
                yield packed


def _check_begin(file: SourceFile, kind: str, *, is_right: bool) -> None:
    if not is_right:
        raise InputError(
            f"{file.name}: the file is not {kind}, as its ending says: its first bytes are others. "
            "Rename it to what it is, or write it again"
        )


class _ZstdFile(io.RawIOBase):
    """Unpacks frame after frame. The library's own reader takes a file that is cut off for one that ends."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = packed
        self._library = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES)
        self._frame: Any = None
        """The frame that is being unpacked; None between two. Any: the library has no types that mypy sees here."""
        self._rest = b""
        """Packed bytes after the last frame's end."""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401 - as above
        while not self._ready:
            if not self._unpack_piece():
                return 0
        num_bytes = min(len(buffer), len(self._ready))
        buffer[:num_bytes] = self._ready[:num_bytes]
        self._ready = self._ready[num_bytes:]
        return num_bytes

    def _unpack_piece(self) -> bool:
        """Make the next bytes ready, if any; False at the end. Raises EOFError when that is inside a frame."""
        piece = self._rest or self._packed.read(_ZSTD_INPUT_BYTES)
        if not piece:
            if self._frame is not None:
                raise EOFError
            return False
        if self._frame is None:
            self._frame = self._library.decompressobj()
        self._ready = memoryview(self._frame.decompress(piece))
        self._rest = b""
        if self._frame.eof:
            self._rest = self._frame.unused_data
            self._frame = None
        return True
