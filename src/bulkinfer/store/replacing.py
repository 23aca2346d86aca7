"""Files that appear whole or not at all; older ones of their names stay until then."""

import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil

from bulkinfer.errors import JobError

_OLD_S = 60.0
"""What nobody has written to for so long is taken for left over, also where locks are known to one machine alone."""


@contextmanager
def replacing(file: Path) -> Iterator[IO[bytes]]:
    """A new file under a temporary name, which takes the place of `file` once it is whole and on disk.

    Where a link leads, it is the file there. Raises JobError when it cannot be written.
    """
    with replacing_all([file]) as (stream,):
        yield stream


@contextmanager
def replacing_all(files: Sequence[Path]) -> Iterator[list[IO[bytes]]]:
    """Several of them: no place is taken before all are whole and on disk, and then they are in this order.

    Between two of these moments nothing is done that could fail for want of space or time. Raises as `replacing`.
    """
    places = [_find_place(file) for file in files]
    temporaries = [place.with_name(f".{place.name}.{os.getpid()}.tmp") for place in places]
    for place in places:
        _clear_away(place)
    try:
        with ExitStack() as stack:
            streams: list[IO[bytes]] = [stack.enter_context(temporary.open("wb")) for temporary in temporaries]
            for stream in streams:
                _lock(stream)
            yield streams
            for stream in streams:
                stream.flush()
                os.fsync(stream.fileno())
            for temporary, place in zip(temporaries, places, strict=True):  # while the locks still tell that it is ours
                temporary.replace(place)
    except OSError as error:
        raise _cannot_write(" and ".join(map(str, places)), error.strerror) from error
    finally:
        for temporary in temporaries:
            with suppress(OSError):
                temporary.unlink()


def _clear_away(place: Path) -> None:
    """Remove what a killed process has left of a new file for this place.

    The lock tells those that another container or machine is writing, whose processes are not known here.
    """
    temporary = re.compile(rf"\.{re.escape(place.name)}\.(\d{{1,9}})\.tmp")
    with suppress(OSError):
        for path in place.parent.iterdir():
            named = temporary.fullmatch(path.name)
            if named is None or psutil.pid_exists(int(named[1])):
                continue
            with suppress(OSError), path.open("r+b") as stream:
                if path.stat().st_mtime + _OLD_S < time.time() and _lock(stream):
                    path.unlink()


def _lock(stream: IO[bytes]) -> bool:
    """Whether this process has the file's lock now; not every file system has locks."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _find_place(file: Path) -> Path:
    try:
        place = Path(os.path.realpath(file))
    except ValueError:  # a zero byte
        raise _cannot_write(str(file), "not a file name") from None
    if place.is_dir():
        raise _cannot_write(str(place), os.strerror(errno.EISDIR))
    if place.exists() and not place.is_file():  # a device or a pipe would be gone, and a file in its place
        raise _cannot_write(str(place), "is not a file")
    return place


def _cannot_write(name: str, why: str | None) -> JobError:
    return JobError(f"{name}: cannot be written: {why}")
