"""An `Engine` in a child process of its own, started by exec and supervised here. `worker` is its other side.

A death of the engine is an exit code and not a hang, every wait has a limit, and the child never outlives this process.
"""

import queue
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.bell import Ringer
from bulkinfer.engines.child_process import ChildProcess
from bulkinfer.engines.frames import (
    Abort,
    ChildFailure,
    ChildFrame,
    Events,
    encode_parent_frame,
    encode_submit,
)
from bulkinfer.engines.sending import ImageSender, encode_or_reject
from bulkinfer.errors import EngineDied, EngineError, JobError
from bulkinfer.records import (
    UNKNOWN_WORKLOAD,
    Aborted,
    Completion,
    EngineEvent,
    EngineReady,
    Rejection,
    Request,
    Workload,
)

_POLL_PROCESS_EVERY_S = 1.0
_SECOND_LOOK_S = 1.0


class ChildEngine:
    """An `Engine` that runs `spec` in a child process.

    The child must say that it is ready within `start_timeout_s` seconds, and while requests are in flight it must give
    a sign of life every `silence_timeout_s` seconds. It writes its log to `log_path` (mode 0600, anew with the first
    child, then appended), or to a file without a name that is gone with it. Among other engines, `ringer` says when
    this one has something to tell.
    """

    def __init__(
        self,
        spec: EngineSpec,
        *,
        start_timeout_s: float,
        silence_timeout_s: float,
        log_path: Path | None = None,
        ringer: Ringer | None = None,
    ) -> None:
        self._spec = spec
        self._ring = ringer.ring if ringer is not None else lambda: None
        self._start_timeout_s = start_timeout_s
        self._silence_timeout_s = silence_timeout_s
        self._log_path = log_path
        self._life = 0
        self._child: ChildProcess | None = None
        self._sender: ImageSender | None = None
        """Where requests may have images."""
        self._events: list[EngineEvent] = []
        self._in_flight: set[bytes] = set()
        self._is_ready = False
        self._has_ended = False
        self._failure: ChildFailure | None = None
        self._started_at_s = 0.0
        self._heard_at_s = 0.0

    @property
    def pid(self) -> int | None:
        """The child's process id; None when there is no child."""
        return None if self._child is None else self._child.pid

    def start(self, workload: Workload = UNKNOWN_WORKLOAD) -> None:
        """Start the child. Call it from the main thread: the kernel ends the child with the thread that started it.

        Raises EngineError when vLLM is not installed, the log cannot be written, or the system lacks
        descriptors or memory.
        """
        self.close()
        self._life += 1
        self._started_at_s = time.monotonic()
        if self._log_path is not None and self._life == 1:
            with suppress(OSError):  # opening it tells
                self._log_path.unlink(missing_ok=True)
        try:
            self._child = ChildProcess(self._spec, self._life, self._log_path, workload, self._ring)
        except OSError as error:
            raise EngineError(f"the engine's process cannot be started: {error.strerror}") from error
        self._sender = ImageSender(self._child, self._spec.priority) if self._spec.has_images else None

    def submit(self, requests: Sequence[Request]) -> None:
        """Send requests to the child. Raises EngineDied if it was closed, or does not take them within 30 s.

        For a child that has just died `poll` raises, after it returned what the child had finished.
        """
        if not self._in_flight:
            self._heard_at_s = time.monotonic()
        if self._sender is not None and not self._has_ended:
            self._in_flight.update(request.document_hash for request in requests)
            self._sender.submit(requests)
            return
        encoded_requests = []
        for request in requests:
            match encode_or_reject(request, self._spec.priority):
                case Rejection() as rejection:
                    self._events.append(rejection)
                    self._ring()
                case bytes() as body:
                    encoded_requests.append(body)
                    self._in_flight.add(request.document_hash)
        self._send(encode_submit(encoded_requests))

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        """What happened since the last call; waits up to `timeout_s` seconds for something to happen.

        Raises EngineError when the child cannot start or was never started, JobError when the job is at fault for that,
        and EngineDied when it was killed, at any time, or ended or fell silent after it was ready.
        """
        child = self._require_child()
        until_s = time.monotonic() + timeout_s
        while not self._events and not self._has_ended:
            now_s = time.monotonic()
            self._take(child, min(max(0.0, until_s - now_s), _POLL_PROCESS_EVERY_S))
            if not self._events and not self._has_ended:
                self._check_limits(child)
            if time.monotonic() >= until_s:
                break
        if self._has_ended and not self._events:
            self._raise_end(child)
        events, self._events = self._events, []
        return events

    def abort(self, document_hashes: Sequence[bytes]) -> None:
        """Drop requests that are in flight; `poll` returns what was dropped. Raises EngineDied as `submit` does."""
        body = encode_parent_frame(Abort(tuple(document_hashes)))
        if self._sender is not None and not self._has_ended:
            self._sender.send(body)
        else:
            self._send(body)

    def now(self) -> float:
        """Seconds of the machine's monotonic clock."""
        return time.monotonic()

    def close(self) -> None:
        """Ask the child to end, wait up to 2 s, then kill it and all that it started."""
        if self._sender is not None:
            self._sender.close()
        if self._child is not None:
            self._child.close(ask=self._is_ready and not self._has_ended)
        self._reset()

    def _reset(self) -> None:
        self._child = self._sender = None
        self._events = []
        self._in_flight = set()
        self._is_ready = False
        self._has_ended = False
        self._failure = None

    def _require_child(self) -> ChildProcess:
        if self._child is None:
            raise EngineError("the engine was not started")
        return self._child

    def _send(self, body: bytes) -> None:
        self._raise_fault()
        if self._child is None or self._has_ended:
            raise EngineDied("the engine is not running")
        try:
            self._child.send(body)
        except BlockingIOError as error:
            # The frame is cut in the middle: nothing can be said to this child any more.
            self._child.kill()
            raise EngineDied("the engine did not take requests in time") from error
        except OSError:
            # The child is gone. Its last words are still to be read, and `poll` tells how it ended.
            return

    def _take(self, child: ChildProcess, timeout_s: float) -> None:
        """Move what the child has sent to the events; wait for the first of it."""
        with suppress(queue.Empty):
            frame = child.frames.get(timeout=timeout_s) if timeout_s > 0 else child.frames.get_nowait()
            while True:
                self._accept(frame)
                frame = child.frames.get_nowait()

    def _accept(self, frame: ChildFrame | None) -> None:
        self._heard_at_s = time.monotonic()
        match frame:
            case Events(events):
                for event in events:
                    self._accept_event(event)
            case ChildFailure():
                self._failure = frame
            case None:
                self._has_ended = True

    def _accept_event(self, event: EngineEvent) -> None:
        match event:
            case EngineReady():
                self._is_ready = True
                event = replace(event, start_s=self._heard_at_s - self._started_at_s)
            case Completion() | Rejection():
                self._in_flight.discard(event.document_hash)
            case Aborted(document_hashes):
                self._in_flight.difference_update(document_hashes)
        self._events.append(event)

    def _check_limits(self, child: ChildProcess) -> None:
        now_s = time.monotonic()
        if child.has_exited():
            # Its end of the socket may still be open in a process that it left behind.
            self._take(child, _SECOND_LOOK_S)
            self._has_ended = True
        elif not self._is_ready and now_s - self._started_at_s > self._start_timeout_s:
            child.kill()
            limit = f"{self._start_timeout_s:g} s (engine.start_timeout_s)"
            raise EngineError(f"the engine was not ready within {limit}{child.quote_log()}")
        elif self._is_silent(now_s):
            # A second look: this process may have been stopped itself, with the child's frames waiting.
            self._take(child, _SECOND_LOOK_S)
            if not self._events and self._is_silent(now_s):
                child.kill()
                raise EngineDied(f"the engine gave no sign of life for {self._silence_timeout_s:g} s{child.name_log()}")

    def _is_silent(self, now_s: float) -> bool:
        return self._is_ready and bool(self._in_flight) and now_s - self._heard_at_s > self._silence_timeout_s

    def _raise_fault(self) -> None:
        """What ended the thread that sends, and with it the child: asking again would not help."""
        if self._sender is not None and self._sender.fault is not None:
            raise self._sender.fault

    def _raise_end(self, child: ChildProcess) -> NoReturn:
        self._raise_fault()
        exit_text = child.describe_exit()
        said = f": {self._failure.message}" if self._failure else ""
        if self._failure is not None and self._failure.is_job_error:
            raise JobError(self._failure.message)
        if self._is_ready:
            raise EngineDied(f"the engine ended: {exit_text}{said}{child.name_log()}")
        text = f"the engine did not start: {exit_text}{said}{child.name_log()}{child.quote_log()}"
        # What it says itself will be the same next time; what killed it, such as a lack of memory, may pass.
        raise EngineDied(text) if child.was_killed() else EngineError(text)
