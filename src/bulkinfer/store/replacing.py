"""A file that appears whole or not at all; an older one of its name stays until then."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from bulkinfer.errors import JobError


@contextmanager
def replacing(file: Path) -> Iterator[IO[bytes]]:
    """A new file under a temporary name, which takes the place of `file` once it is whole and on disk.

    Where a link leads, it is the file there. Raises JobError when it cannot be written.
    """
    try:
        file = Path(os.path.realpath(file))
    except ValueError:  # a zero byte
        raise JobError(f"{file}: cannot be written: not a file name") from None
    if (
        file.exists() and not file.is_file() and not file.is_dir()
    ):  # a device or a pipe would be gone, and a file in its place
        raise JobError(f"{file}: cannot be written: is not a file")
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    except OSError as error:
        raise JobError(f"{file}: cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()
