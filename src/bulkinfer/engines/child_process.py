"""One process of an engine as its parent holds it: the socket, the thread that reads it, the log, the end."""

import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.environment import build_environment, choose_cores, find_vllm
from bulkinfer.engines.frames import (
    ChildFrame,
    Close,
    Start,
    decode_child_frame,
    encode_parent_frame,
)
from bulkinfer.errors import EngineError
from bulkinfer.framing import read_frame, send_frame
from bulkinfer.records import Workload

_SEND_TIMEOUT_S = 30
_ASK_TIMEOUT_S = 2.0
_CLOSE_TIMEOUT_S = 5.0
_EXIT_TIMEOUT_S = 10.0
_TAIL_LINES = 20
_TAIL_BYTES = 8192


class ChildProcess:
    """A started engine process. `frames` is what it has sent, None is the end of it; after each, `on_frame` is called.

    Raises EngineError when it cannot be started: no vLLM, or a log that cannot be written.
    """

    def __init__(
        self,
        spec: EngineSpec,
        life: int,
        log_path: Path | None,
        workload: Workload,
        on_frame: Callable[[], None] = lambda: None,
    ) -> None:
        self.frames: queue.SimpleQueue[ChildFrame | None] = queue.SimpleQueue()
        self._on_frame = on_frame
        self._sending = threading.Lock()
        install = find_vllm()
        if spec.kind == "vllm" and install is None:
            raise EngineError("vLLM is not installed in this Python environment; install bulkinfer's extra cpu or cuda")
        self._log_path = log_path
        self._log = _open_log(log_path)
        self._log_start = os.fstat(self._log.fileno()).st_size
        self._connection, theirs = socket.socketpair()
        # A limit for sending only: with settimeout the reader could not wait.
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_TIMEOUT_S, 0))
        with theirs:
            environment = build_environment(spec, install, os.environ)
            arguments = [spec.nice, *choose_cores(spec, install)]
            self._process = _start_process(theirs, environment, self._log, arguments)
        self._reader = threading.Thread(target=self._read, name=f"engine-reader-{self.pid}", daemon=True)
        self._reader.start()
        # If it has ended already, the reader tells.
        with suppress(OSError):
            self.send(encode_parent_frame(Start(spec, life, workload)))

    @property
    def pid(self) -> int:
        """Its process id, also the id of its process group."""
        return self._process.pid

    def send(self, body: bytes) -> None:
        """Send one encoded frame. Raises OSError if the process is gone or does not read for 30 s. Any thread may."""
        with self._sending:
            send_frame(self._connection, body)

    def tell(self, frame: ChildFrame) -> None:
        """Put something behind what it has sent, as if it had said so. Any thread may."""
        self.frames.put(frame)
        self._on_frame()

    def has_exited(self) -> bool:
        """Whether the process itself has ended."""
        return self._process.poll() is not None

    def describe_exit(self) -> str:
        """How it ended. Call it after the end of its frames; a process that lingers is killed."""
        try:
            code = self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return "it closed its connection and did not exit"
        if code == -signal.SIGKILL:
            return "killed by SIGKILL (if nobody did, the kernel may have, for memory: `dmesg` tells)"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def was_killed(self) -> bool:
        """Whether a signal ended it, after `describe_exit`."""
        return (self._process.returncode or 0) < 0

    def name_log(self) -> str:
        """Where its log lies, as the end of a message; the empty text if it has no name."""
        return "" if self._log_path is None else f"; its log: {self._log_path}"

    def quote_log(self) -> str:
        """The last 20 lines that it wrote, as the end of a message; the empty text if it wrote none."""
        end = os.fstat(self._log.fileno()).st_size
        start = max(self._log_start, end - _TAIL_BYTES)
        lines = os.pread(self._log.fileno(), end - start, start).decode(errors="replace").splitlines()
        return "\n".join(["; it said last:", *lines[-_TAIL_LINES:]]) if lines else ""

    def close(self, *, ask: bool) -> None:
        """End it and all that it started. With `ask` it gets 2 s to do so by itself."""
        if ask and self._sending.acquire(timeout=_ASK_TIMEOUT_S):
            with suppress(OSError):
                send_frame(self._connection, encode_parent_frame(Close()))
            self._sending.release()
            self._reader.join(_ASK_TIMEOUT_S)
        self.kill()
        self._connection.close()
        self._log.close()

    def kill(self) -> None:
        """Kill its process group, and wait until the process is gone."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_TIMEOUT_S)
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._reader.join(_CLOSE_TIMEOUT_S)

    def _read(self) -> None:
        try:
            with self._connection.makefile("rb") as stream, suppress(OSError):
                while (body := read_frame(stream)) is not None:
                    self.tell(decode_child_frame(body))
        finally:  # whatever happened: nobody may wait for a frame that no thread reads
            self.frames.put(None)
            self._on_frame()


def _open_log(log_path: Path | None) -> BinaryIO:
    if log_path is None:
        return tempfile.TemporaryFile(buffering=0)
    try:
        descriptor = os.open(log_path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EngineError(f"{log_path}: cannot write the engine's log: {error.strerror}") from error
    return os.fdopen(descriptor, "ab+", buffering=0)


def _start_process(
    theirs: socket.socket, environment: dict[str, str], log: BinaryIO, arguments: Sequence[int]
) -> subprocess.Popen[bytes]:
    # -P: a file in the working directory must not hide a module of the same name.
    command = [sys.executable, "-P", "-m", "bulkinfer.engines.worker", str(theirs.fileno()), str(os.getpid())]
    command += map(str, arguments)
    try:
        return subprocess.Popen(
            command,
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environment,
        )
    except OSError as error:
        raise EngineError(f"cannot start the engine's process: {error.strerror}") from error
