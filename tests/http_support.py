"""A small server of files over HTTP that does what servers do: breaks off, hangs, refuses, gives no parts."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Served:
    """A file, and how it is served."""

    content: bytes
    has_parts: bool = True
    """Whether ranges are answered."""
    tells_parts: bool = True
    """Whether it says which of the two; Python's own server does not."""
    etag: str | None = '"1"'
    modified: str | None = None
    status: int = 200
    num_broken: int = 0
    """Answers with a body that end in the middle of it, before one is whole."""
    num_hanging: int = 0
    """The same, of answers that stop and keep the connection."""
    is_whole_told: bool = True
    """Whether the length is told."""


@dataclass
class FileServer:
    """The address, and files by their path with the query."""

    address: str
    files: dict[str, Served] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    """By method."""
    before_answer: Callable[[], object] | None = None
    release: threading.Event = field(default_factory=threading.Event)
    """Ends what hangs."""


@contextmanager
def serve_files() -> Iterator[FileServer]:
    """Run a server for as long as the context lasts."""
    server = _Server(("127.0.0.1", 0), _Answer)
    files = FileServer(f"http://127.0.0.1:{server.server_address[1]}")
    server.files = files  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield files
    finally:
        files.release.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: clients leave as they like."""


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing: requests are counted."""

    def _answer(self) -> None:
        files: FileServer = self.server.files  # type: ignore[attr-defined]
        files.requests[self.command] += 1
        if files.before_answer is not None:
            files.before_answer()
        served = files.files.get(self.path)
        if served is None or served.status != 200:
            self.send_response(404 if served is None else served.status)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body, status = served.content, 200
        asked = self.headers.get("Range")
        if asked and served.has_parts:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            body, status = body[int(first) : int(last) + 1], 206
        self.send_response(status)
        if served.is_whole_told:
            self.send_header("Content-Length", str(len(body)))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{int(first) + len(body) - 1}/{len(served.content)}")
        if served.tells_parts:
            self.send_header("Accept-Ranges", "bytes" if served.has_parts else "none")
        if served.etag:
            self.send_header("ETag", served.etag)
        if served.modified:
            self.send_header("Last-Modified", served.modified)
        self.end_headers()
        if self.command == "GET":
            self._write(files, served, body)

    def _write(self, files: FileServer, served: Served, body: bytes) -> None:
        is_broken, is_hanging = served.num_broken > 0, served.num_hanging > 0
        if not is_broken and not is_hanging:
            self.wfile.write(body)
            return
        self.wfile.write(body[: len(body) // 2])
        self.wfile.flush()
        self.close_connection = True
        if is_broken:
            served.num_broken -= 1
        else:
            served.num_hanging -= 1
            files.release.wait(60)
