"""Requests on their way to the engine's process: encoded, and where they have images, in a thread of their own.

Files are read where nobody waits for them: a slow disk must not hold up the loop that commits and obeys signals. A
frame holds a few MiB, so that neither side has more than that of images twice.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import orjson

from bulkinfer.engines.base import EngineRequest
from bulkinfer.engines.child_process import ChildProcess
from bulkinfer.engines.frames import Events, encode_request, encode_submit
from bulkinfer.engines.images import ImageFault, reject_image
from bulkinfer.records import FailureCode, Rejection, Request

MAX_FRAME_BYTES = 8 * 1024 * 1024
"""Of one frame with images, or one request."""
_END_LIMIT_S = 0.5

Encode = Callable[[Request, int], bytes | Rejection]


def encode_or_reject(request: Request, priority: int) -> bytes | Rejection:
    """A request as it is sent, its images read; or why it cannot be. `priority` is the engine's."""
    try:
        return encode_request(EngineRequest.of(request, priority))
    except ImageFault as fault:
        return reject_image(request, fault)
    except orjson.JSONEncodeError:
        message = "the prompt holds a character that UTF-8 cannot encode: half of a surrogate pair"
        return Rejection(request.document_hash, FailureCode.ENGINE_REJECTED, message)


@dataclass(slots=True, eq=False)
class ImageSender:
    """Reads and sends what it is given, in order, to one process. What cannot be sent comes back as its event."""

    process: ChildProcess
    priority: int
    encode: Encode = encode_or_reject
    fault: BaseException | None = field(default=None, init=False)
    """What nobody foresaw, such as a lack of memory: it has sent nothing since, and has ended the process."""
    _waiting: queue.SimpleQueue[Sequence[Request] | bytes | None] = field(default_factory=queue.SimpleQueue)
    _is_closed: bool = False
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._work, name=f"engine-sender-{self.process.pid}", daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[Request]) -> None:
        """Send requests. Returns at once."""
        self._waiting.put(tuple(requests))

    def send(self, body: bytes) -> None:
        """Send another frame behind them. Returns at once."""
        self._waiting.put(body)

    def close(self) -> None:
        """Send nothing more. A thread that a disk holds up is left to itself."""
        self._is_closed = True
        self._waiting.put(None)
        self._thread.join(_END_LIMIT_S)

    def _work(self) -> None:
        try:
            self._send_all()
        except BaseException as fault:  # noqa: BLE001 - whoever waits for the process raises it
            self.fault = fault
            if not self._is_closed:
                self.process.kill()

    def _send_all(self) -> None:
        while (found := self._waiting.get()) is not None:
            for body in (found,) if isinstance(found, bytes) else self._iter_frames(found):
                if self._is_closed or not self._send(body):
                    return

    def _send(self, body: bytes) -> bool:
        """Whether it was taken."""
        try:
            self.process.send(body)
        except BlockingIOError:  # it does not read; the frame is cut, and nothing can be said to it any more
            self.process.kill()
            return False
        except OSError:  # it is gone, and its reader tells how
            return False
        return True

    def _iter_frames(self, requests: Sequence[Request]) -> Iterator[bytes]:
        encoded: list[bytes] = []
        num_bytes = 0
        for request in requests:
            if self._is_closed:
                return
            match self.encode(request, self.priority):
                case Rejection() as rejection:
                    self.process.tell(Events((rejection,)))
                    continue
                case bytes() as body:
                    pass
            if encoded and num_bytes + len(body) > MAX_FRAME_BYTES:
                yield encode_submit(encoded)
                encoded, num_bytes = [], 0
            encoded.append(body)
            num_bytes += len(body)
        if encoded:
            yield encode_submit(encoded)
