"""A port that Prometheus reads, and whoever else comes: nobody takes what the run needs, or writes to its stderr."""

import errno
import io
import socket
import threading
import time
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from bulkinfer.errors import JobError
from bulkinfer.threads import run_in_thread

MAX_CLIENTS = 32
"""At once; each is a thread and a file descriptor of the run. More of them wait for their turn in the kernel."""
CLIENT_LIMIT_S = 10.0
"""Who has not asked and read by then makes room when others wait."""
_TURN_POLL_S = 0.1

_ADVICE = {
    errno.EADDRINUSE: "another run may have it: choose another port, or 0 for any free one",
    errno.EACCES: "ports below 1024 are for privileged users: choose a higher one",
}


class MetricsPort:
    """A server on a port, from its making to `close`. Raises JobError when the port cannot be had."""

    def __init__(self, address: str, port: int, registry: CollectorRegistry) -> None:
        try:
            self._server = _Server.on(address, port)
        except (OSError, UnicodeError) as error:  # the latter: a name that cannot be one of a machine
            number, reason = (error.errno or 0, error.strerror) if isinstance(error, OSError) else (0, "not a name")
            advice = _ADVICE.get(number, "is it an address of this machine?")
            said = f"--metrics-port {port}: cannot listen on {address}: {reason or error}"
            raise JobError(f"{said}; {advice}") from error
        self._server.set_app(make_wsgi_app(registry))
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics-port", daemon=True)
        self._thread.start()
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def close(self, limit_s: float) -> None:
        """Answer nobody any more. Takes up to half a second; raises TimeoutError after `limit_s`."""
        shut = run_in_thread(self._server.shutdown, "metrics-port-end")
        shut.result(limit_s)
        self._server.server_close()
        self._thread.join(limit_s)


class _Handler(WSGIRequestHandler):
    """One client. What it asks is nobody's business, and what is wrong with it no error of the run."""

    timeout = CLIENT_LIMIT_S
    """Of one read or write; one that sends a byte now and then, the server ends."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Nothing."""

    def get_stderr(self) -> io.StringIO:
        """Where wsgiref writes its tracebacks."""
        return io.StringIO()


class _Server(ThreadingWSGIServer):
    """A thread for each client, but not for any number of them."""

    request_queue_size = 128

    def __init__(self, *arguments: Any, **more: Any) -> None:  # noqa: ANN401 - as the library has them
        self._turns = threading.BoundedSemaphore(MAX_CLIENTS)
        self._since_s: dict[socket.socket, float] = {}
        self._is_ending = threading.Event()
        super().__init__(*arguments, **more)

    @classmethod
    def on(cls, address: str, port: int) -> "_Server":
        """Listen there, on IPv4 or IPv6."""
        family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        server_class = type("_Server", (cls,), {"address_family": family})
        server: _Server = server_class(place[:2], _Handler)
        return server

    def shutdown(self) -> None:
        """Accept nobody any more, also where somebody waits for a turn."""
        self._is_ending.set()
        super().shutdown()

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as the library has them
        """Begin with a client when it is its turn. In the server's own thread: until then, no other is accepted."""
        while not self._turns.acquire(timeout=_TURN_POLL_S):
            if self._is_ending.is_set():
                raise ConnectionAbortedError
            self._end_slow_clients()
        self._since_s[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread can be had
            self._note_end(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as above
        """One client, in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._note_end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as above
        """A client that went away, mostly: its trouble, and no traceback on our stderr."""

    def _note_end(self, request: socket.socket) -> None:
        if self._since_s.pop(request, None) is not None:
            self._turns.release()

    def _end_slow_clients(self) -> None:
        before_s = time.monotonic() - CLIENT_LIMIT_S
        for request, since_s in list(self._since_s.items()):
            if since_s < before_s:
                try:
                    request.shutdown(socket.SHUT_RDWR)  # its thread wakes up, and closes it
                except OSError:
                    continue
