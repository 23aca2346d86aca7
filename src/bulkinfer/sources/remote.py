"""Files elsewhere, by URL: s3://, gs://, hf://, http(s)://, memory:// and what else fsspec knows. Its only importer.

Credentials are found as each service's own tools find them. A file is known by its entity tag, or by size and time of
change where there is none; with neither it is read by every run.
"""

import glob
import hashlib
import io
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import fsspec
from fsspec.config import conf

from bulkinfer.errors import InputError
from bulkinfer.records import SourceFile
from bulkinfer.retry import retry_passing
from bulkinfer.sources.remote_faults import Fault, RemoteFault, ask, explain, is_passing
from bulkinfer.sources.urls import hide_secrets, name_url, parse_url

Info = Mapping[str, Any]
ANSWER_S = 60.0
"""For one answer: what a file is, or its next block."""
LISTING_S = 900.0
"""For all that is in a folder, which a service tells a thousand files at a time."""
WAITS_S = (0.5, 2.0, 8.0)
"""Before a file that could be read is asked for again."""
_CONNECT_S = 30.0
_TAGS = ("ETag", "etag", "version_id", "VersionId", "generation", "md5Hash", "content_md5", "blob_id")
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "modified", "created", "Last-Modified", "modify")
_NEVER_SETTLED_NS = 1 << 62
"""As a time of change: after any scan."""
_BLOCK_BYTES = 1 << 20
_NUM_BLOCKS = 64


class RemoteFile(io.RawIOBase):
    """A remote file that knows how much of it was read, and goes on where it was when the connection breaks."""

    def __init__(self, file: SourceFile) -> None:
        """Raises OSError."""
        self.num_bytes_read = 0
        self._file = file
        self._position = 0
        self._stream: Any = None  # fsspec has no types
        self._is_opened = False
        self._has_parts = True
        """Until the server of an http(s) file shows that it gives the whole of it alone."""
        retry_passing(WAITS_S, is_passing)(self._open)

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401 - the buffer protocol has no name before Python 3.12
        content = retry_passing(WAITS_S, is_passing)(self._read, len(buffer))
        buffer[: len(content)] = content
        self.num_bytes_read += len(content)
        return len(content)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size_bytes}[whence]
        self._position = max(0, begin + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        self._drop()
        super().close()

    def _open(self) -> None:
        is_again, self._is_opened = self._is_opened, True

        def open_it() -> Any:  # noqa: ANN401 - as above
            filesystem, path = _connect(self._file.url, is_again=is_again)
            return filesystem.open(
                path,
                "rb",
                block_size=_BLOCK_BYTES if self._has_parts else 0,
                cache_type="blockcache",
                cache_options={"maxblocks": _NUM_BLOCKS},
            )

        self._stream = ask(open_it, ANSWER_S)

    def _read(self, size: int) -> bytes:
        try:
            if self._stream is None:
                self._open()
                check_remote_unchanged(self._file)
            self._move()
            content = self._ask_for(size)
            if size and not content and self._position < self._file.size_bytes:
                raise RemoteFault(Fault.BROKEN_OFF, f"it broke off after {self._position:,} bytes")
        except RemoteFault as fault:
            if fault.kind is Fault.NO_ANSWER:
                self._stream = None  # it is still held up, and so would be its end
            self._drop()
            is_whole = fault.kind is Fault.ADDRESS and parse_url(self._file.url).scheme in {"http", "https"}
            if is_whole and self._has_parts:
                self._has_parts = False
                return self._read(size)
            raise
        self._position += len(content)
        return content

    def _move(self) -> None:
        """Bring the stream to where reading is. One that cannot jump is read up to there after a break."""
        if (at := self._stream.tell()) == self._position:
            return
        try:
            ask(lambda: self._stream.seek(self._position), ANSWER_S)
        except RemoteFault as fault:
            if fault.kind is not Fault.ADDRESS:
                raise
            if at > self._position:
                words = "its server gives files as a whole only, and this format needs parts of them; copy it first"
                raise RemoteFault(Fault.OTHER, words) from fault
            while at < self._position:
                passed = len(self._ask_for(min(_BLOCK_BYTES, self._position - at)))
                if not passed:
                    raise RemoteFault(Fault.BROKEN_OFF, f"it broke off after {at:,} bytes") from fault
                at += passed

    def _ask_for(self, size: int) -> bytes:
        return ask(lambda: bytes(self._stream.read(size)), ANSWER_S)

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            with suppress(RemoteFault):  # it was read as far as anybody wanted
                ask(stream.close, ANSWER_S)


@dataclass(frozen=True, slots=True)
class RemotePath:
    """One file as its service lists it."""

    url: str
    name: str
    """What it is called, see `name_url`."""
    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    tag: int
    """64 bits that change with the content; 0 where the service tells nothing."""
    below: str = ""
    """Its path below the folder that was listed; empty for a file that was named itself."""


def list_remote(url: str) -> tuple[list[RemotePath], bool]:
    """The files that a URL stands for, sorted, and whether it named one of them itself. Raises InputError.

    A URL is a file, a folder with all below, or a glob; one of http(s) is always a file. A folder that a glob matches
    is read as a folder.
    """
    scheme = url.partition("://")[0]
    if scheme not in fsspec.available_protocols():
        raise InputError(
            f"input.path {hide_secrets(url)!r}: {scheme}:// is no kind of place that fsspec knows", "input.path"
        )
    try:
        filesystem, path = ask(lambda: _connect(url, is_again=False), ANSWER_S)
        found, is_named = ask(lambda: _find(filesystem, path, scheme), LISTING_S)
    except RemoteFault as fault:
        raise explain(url, fault) from fault
    if is_named:
        return [_describe(url, info) for _, info in found], True
    return [_describe(_rebuild(url, filesystem, info), info, below) for below, info in found], False


def read_remote(url: str) -> bytes:
    """The whole of a small file. Raises InputError."""

    def read() -> bytes:
        filesystem, path = _connect(url, is_again=False)
        return bytes(filesystem.cat_file(path))

    try:
        content: bytes = retry_passing(WAITS_S, is_passing)(ask, read, ANSWER_S)
    except RemoteFault as fault:
        raise explain(url, fault) from fault
    return content


def check_remote_unchanged(file: SourceFile) -> None:
    """As `base.check_unchanged`, by one question to the service. Raises InputError."""

    def look() -> Info:
        filesystem, path = _connect(file.url, is_again=False)
        filesystem.invalidate_cache()
        info: Info = filesystem.info(path)
        return info

    try:
        now = _describe(file.url, retry_passing(WAITS_S, is_passing)(ask, look, ANSWER_S))
    except RemoteFault as fault:
        raise InputError(
            f"{file.name}: the file could be read when the run began and cannot now ({fault.strerror}). "
            "What was read of it is kept; run again when it can be read"
        ) from fault
    if (now.size_bytes, now.mtime_ns, now.tag) != (file.size_bytes, file.mtime_ns, file.inode):
        raise InputError(
            f"{file.name}: the file changed while the run was using it. What was read of it is kept; "
            "run again to read it as it is now"
        )


def _connect(url: str, *, is_again: bool) -> tuple[Any, str]:  # Any: fsspec has no types
    """`is_again`: by a connection of its own, as the one before may be broken."""
    options = _list_options(parse_url(url).scheme)
    filesystem, path = fsspec.url_to_fs(url, **options, **({"skip_instance_cache": True} if is_again else {}))
    return filesystem, str(path)


def _list_options(scheme: str) -> dict[str, Any]:
    """Waits of the package's own. Those of http(s) end a whole file after five minutes by default."""
    if scheme not in {"http", "https"}:
        return {}
    from aiohttp import ClientTimeout  # noqa: PLC0415 - a package that only these need

    timeout = ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=ANSWER_S)
    return {"client_kwargs": {"timeout": timeout, **conf.get(scheme, {}).get("client_kwargs", {})}}


def _find(filesystem: Any, path: str, scheme: str) -> tuple[list[tuple[str, Info]], bool]:  # noqa: ANN401
    """What the service tells of each file, with its path below the folder; and whether the path is one itself."""
    filesystem.invalidate_cache()
    if scheme in {"http", "https"}:
        return [("", filesystem.info(path))], True
    if not glob.has_magic(path) or filesystem.exists(path):
        info = filesystem.info(path)
        if info.get("type") != "directory":
            return [("", info)], True
        return _find_below(filesystem, path), False
    found: dict[str, tuple[str, Info]] = {}  # by name: `**` matches a folder and what is in it
    for name, info in sorted(filesystem.glob(path, detail=True).items()):
        last = name.rstrip("/").rpartition("/")[2]
        if info.get("type") != "directory":
            found.setdefault(name, (last, info))
        else:
            for below, inner in _find_below(filesystem, name):
                found.setdefault(str(inner["name"]), (f"{last}/{below}", inner))
    return [found[name] for name in sorted(found)], False


def _find_below(filesystem: Any, folder: str) -> list[tuple[str, Info]]:  # noqa: ANN401
    found = sorted(filesystem.find(folder, detail=True).items())
    return [(name.removeprefix(folder).strip("/"), info) for name, info in found if info.get("type") != "directory"]


def _rebuild(url: str, filesystem: Any, info: Info) -> str:  # noqa: ANN401
    """The URL of a file that was found below another: the first that leads there, with the same settings."""
    listed = str(info["name"])
    parts = parse_url(url)
    name = listed.lstrip("/")
    authority = f"{parts.user}@{parts.host}" if parts.user else parts.host
    strip: Callable[[str], object] = type(filesystem)._strip_protocol  # noqa: SLF001 - what fsspec asks; it has no other name
    settings = _read_settings(filesystem, url.removesuffix(parts.rest))
    for place in (name, f"{authority}/{name}", f"{authority}/{name.partition('/')[2]}"):
        found = f"{parts.scheme}://{place}"
        if strip(found) == strip(listed) and _read_settings(filesystem, found) == settings:
            return found + parts.rest
    raise InputError(
        f"input.path {hide_secrets(url)!r}: the files that {parts.scheme}:// lists there have no URLs of their own. "
        "Name each file",
        "input.path",
    )


def _read_settings(filesystem: Any, url: str) -> dict[str, object]:  # noqa: ANN401
    """The host, the user and the like, as the package reads them out of a URL; a # in a file's name is none."""
    found: Mapping[str, object] = type(filesystem)._get_kwargs_from_urls(url)  # noqa: SLF001
    return {name: value for name, value in found.items() if name != "url_fragment"}


def _describe(url: str, info: Info, below: str = "") -> RemotePath:
    tags = [f"{key}={info[key]}" for key in _TAGS if info.get(key)]
    times_ns = [_as_ns(key, info[key]) for key in _TIMES if info.get(key)]
    size = info.get("size")
    is_known = bool(tags or times_ns) and size is not None
    return RemotePath(
        url=url,
        name=name_url(url),
        size_bytes=size or 0,
        mtime_ns=0 if tags or not times_ns else times_ns[0],
        ctime_ns=0 if is_known else _NEVER_SETTLED_NS,
        tag=int.from_bytes(hashlib.sha256(" ".join(tags).encode()).digest()[:8]) if tags else 0,
        below=below,
    )


def _as_ns(key: str, moment: object) -> int:
    match key, moment:
        case "Last-Modified" | "modify", str(text):
            return _parse_time(key, text)
        case _, datetime() as time:
            return int(time.timestamp() * 1e6) * 1000
        case _, int() | float() as seconds:
            return int(seconds * 1e6) * 1000
    return int.from_bytes(hashlib.sha256(str(moment).encode()).digest()[:7])


def _parse_time(key: str, text: str) -> int:
    """Of HTTP and of FTP; they have no fractions of a second, and so a file that has just changed is not settled."""
    try:
        if key == "modify":
            return int(datetime.strptime(text[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp()) * 10**9
        return int(parsedate_to_datetime(text).timestamp()) * 10**9
    except ValueError:
        return _NEVER_SETTLED_NS
