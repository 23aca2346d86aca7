"""One remote file as DuckDB asks for files: by a file system of its own, which holds it and nothing else."""

import io
from datetime import UTC, datetime
from typing import Any

from fsspec import AbstractFileSystem

from bulkinfer.records import SourceFile
from bulkinfer.sources.remote import RemoteFile

_BUFFER_BYTES = 1 << 16


class OneFile(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """What is at `path`; it is read as any remote file is, and each opening of it goes on where a connection broke."""

    protocol = "bulkinfer"
    cachable = False
    """Two of them are two."""

    def __init__(self, file: SourceFile) -> None:
        super().__init__()
        self._file = file
        self.path = f"{self.protocol}://input.parquet"

    def glob(self, path: str, **_: object) -> list[str]:
        """The file."""
        return [path]

    def info(self, path: str, **_: object) -> dict[str, Any]:
        """What there is to tell of it."""
        return {"name": path, "size": self._file.size_bytes, "type": "file"}

    def modified(self, path: str) -> datetime:  # noqa: ARG002 - there is one
        """A constant: nothing is kept of it for later."""
        return datetime.fromtimestamp(0, UTC)

    def open(self, path: str, mode: str = "rb", **_: object) -> io.BufferedReader:  # noqa: ARG002 - as above
        """Raises OSError."""
        return io.BufferedReader(RemoteFile(self._file), _BUFFER_BYTES)
