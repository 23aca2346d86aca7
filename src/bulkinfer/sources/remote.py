"""Files elsewhere, by URL: s3://, gs://, hf://, http(s)://, memory:// and what else fsspec knows. Its only importer.

Credentials are found as each service's own tools find them; nothing of them is in the job file or the database. A file
is known by its entity tag, or by size and time of change where there is none; with neither it is read by every run.
"""

import errno
import glob
import hashlib
import io
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import fsspec

from bulkinfer.errors import InputError
from bulkinfer.records import SourceFile

Info = Mapping[str, Any]
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_TAGS = ("ETag", "etag", "version_id", "VersionId", "generation", "md5Hash", "content_md5", "blob_id")
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "modified", "created")
_NEVER_SETTLED_NS = 1 << 62
"""As a time of change: after any scan."""
_BLOCK_BYTES = 1 << 20
_NUM_BLOCKS = 64
_LIBRARY_ERRORS = {
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "aiohttp": ("ClientError",),
    "huggingface_hub.errors": ("HfHubHTTPError", "HFValidationError", "LocalEntryNotFoundError"),
    "google.auth.exceptions": ("GoogleAuthError",),
    "gcsfs.retry": ("HttpError",),
    "httpx": ("HTTPError",),
    "requests": ("RequestException",),
}
"""What the libraries behind fsspec raise that is no OSError. Looked up only where they are loaded."""
_NO_CREDENTIALS = frozenset(
    {
        "NoCredentialsError",
        "PartialCredentialsError",
        "DefaultCredentialsError",
        "ProfileNotFound",
        "TokenRetrievalError",
    }
)


def is_remote(text: str) -> bool:
    """Whether a path of the job file is a URL."""
    return _URL.match(text) is not None


class RemoteFile(io.RawIOBase):
    """A remote file that knows how much of it was read; what its library raises comes as OSError."""

    def __init__(self, file: SourceFile) -> None:
        """Raises OSError."""
        self.num_bytes_read = 0
        with _as_os_errors():
            filesystem, path = _connect(file.url)
            self._stream = filesystem.open(
                path,
                "rb",
                block_size=_BLOCK_BYTES,
                cache_type="blockcache",
                cache_options={"maxblocks": _NUM_BLOCKS},
            )

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401 - the buffer protocol has no name before Python 3.12
        with _as_os_errors():
            content = self._stream.read(len(buffer))
        buffer[: len(content)] = content
        self.num_bytes_read += len(content)
        return len(content)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._stream.seekable())

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        with _as_os_errors():
            return int(self._stream.seek(offset, whence))

    def tell(self) -> int:
        return int(self._stream.tell())

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


@contextmanager
def _as_os_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise error if error.strerror else _os_error(error) from error
    except _find_library_errors() as error:
        raise _os_error(error) from error


def _os_error(error: BaseException) -> OSError:
    kind = type(error) if isinstance(error, OSError) else OSError
    number = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
    return kind(number, type(error).__name__)


def _find_library_errors() -> tuple[type[BaseException], ...]:
    loaded = [(sys.modules[name], names) for name, names in _LIBRARY_ERRORS.items() if name in sys.modules]
    return tuple(getattr(module, name) for module, names in loaded for name in names if hasattr(module, name))


@dataclass(frozen=True, slots=True)
class RemotePath:
    """One file as its service lists it."""

    url: str
    name: str
    """The URL without what may be secret in it: user, password and query."""
    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    tag: int
    """64 bits that change with the content; 0 where the service tells nothing."""


def list_remote(url: str) -> tuple[list[RemotePath], bool]:
    """The files that a URL stands for, sorted, and whether it named one of them itself. Raises InputError.

    A URL is a file, a folder with all below, or a glob; one of http(s) is always a file.
    """
    with _explained(url):
        filesystem, path = _connect(url)
        filesystem.invalidate_cache()
        if urlsplit(url).scheme in {"http", "https"}:
            return [_describe(url, filesystem.info(path))], True
        if glob.has_magic(path) and not filesystem.exists(path):
            found = filesystem.glob(path, detail=True)
            return [_describe_listed(url, entry) for entry in _files_of(found)], False
        info = filesystem.info(path)
        if info.get("type") != "directory":
            return [_describe(url, info)], True
        return [_describe_listed(url, entry) for entry in _files_of(filesystem.find(path, detail=True))], False


def check_remote_unchanged(file: SourceFile) -> None:
    """As `base.check_unchanged`, by one question to the service. Raises InputError."""
    try:
        with _as_os_errors():
            filesystem, path = _connect(file.url)
            filesystem.invalidate_cache()
            now = _describe(file.url, filesystem.info(path))
    except OSError as error:
        raise InputError(
            f"{file.name}: the file could be read when the run began and cannot now ({error.strerror}). "
            "What was read of it is kept; put the file back and run again"
        ) from error
    if (now.size_bytes, now.mtime_ns, now.tag) != (file.size_bytes, file.mtime_ns, file.inode):
        raise InputError(
            f"{file.name}: the file changed while the run was using it. What was read of it is kept; "
            "run again to read it as it is now"
        )


def _connect(url: str) -> tuple[Any, str]:  # Any: fsspec has no types
    filesystem, path = fsspec.url_to_fs(url)
    return filesystem, str(path)


def _files_of(found: Mapping[str, Info]) -> list[Info]:
    return [found[path] for path in sorted(found) if found[path].get("type") != "directory"]


def _describe_listed(url: str, info: Info) -> RemotePath:
    """A file that was found below a URL; its own is the same however it was found."""
    name = str(info["name"]).lstrip("/")
    return _describe(f"{urlsplit(url).scheme}://{name}", info)


def _describe(url: str, info: Info) -> RemotePath:
    tags = [f"{key}={info[key]}" for key in _TAGS if info.get(key)]
    times_ns = [_as_ns(info[key]) for key in _TIMES if info.get(key)]
    size = info.get("size")
    is_known = bool(tags or times_ns) and size is not None
    return RemotePath(
        url=url,
        name=_hide_secrets(url),
        size_bytes=size or 0,
        mtime_ns=0 if tags or not times_ns else times_ns[0],
        ctime_ns=0 if is_known else _NEVER_SETTLED_NS,
        tag=int.from_bytes(hashlib.sha256(" ".join(tags).encode()).digest()[:8]) if tags else 0,
    )


def _as_ns(moment: object) -> int:
    match moment:
        case datetime():
            return int(moment.timestamp() * 1e6) * 1000
        case int() | float():
            return int(moment * 1e6) * 1000
        case _:
            return int.from_bytes(hashlib.sha256(str(moment).encode()).digest()[:7])


def _hide_secrets(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@contextmanager
def _explained(url: str) -> Iterator[None]:
    where = f"input.path {_hide_secrets(url)!r}"
    try:
        with _as_os_errors():
            yield
    except ImportError as error:
        raise InputError(
            f"{where}: a package is not installed (s3fs for s3://, gcsfs for gs://, huggingface_hub for hf://, aiohttp "
            "for http://): pip install 'bulkinfer[remote]', or that one"
        ) from error
    except ValueError as error:
        raise InputError(f"{where}: {urlsplit(url).scheme}:// is no kind of place that fsspec knows") from error
    except FileNotFoundError as error:
        raise InputError(f"{where}: does not exist. Correct the path, or write the file first") from error
    except PermissionError as error:
        raise InputError(f"{where}: access was refused. Check the credentials and what they allow") from error
    except OSError as error:
        if error.strerror in _NO_CREDENTIALS:
            raise InputError(
                f"{where}: no credentials were found ({error.strerror}). Set them as for the service's own tools, such "
                "as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or FSSPEC_S3_ANON=true for a public bucket"
            ) from error
        raise InputError(f"{where}: cannot be read ({error.strerror}). Check the address and the network") from error
