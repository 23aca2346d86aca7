"""Requests with images on their way: in order, a bounded frame at a time, and nobody waits for a slow disk."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import orjson
import pytest

from bulkinfer.engines import sending
from bulkinfer.engines.child_process import ChildProcess
from bulkinfer.engines.frames import ChildFrame, Events
from bulkinfer.engines.sending import ImageSender, encode_or_reject
from bulkinfer.records import FailureCode, ImageFile, Message, Rejection, Request
from tests.engine_support import make_request, wait_until


@dataclass
class Process:
    """Takes frames, and answers as the system would."""

    pid: int = 1
    fault: OSError | None = None
    sent: list[bytes] = field(default_factory=list)
    told: list[ChildFrame] = field(default_factory=list)
    is_killed: bool = False

    def send(self, body: bytes) -> None:
        """Take a frame."""
        if self.fault is not None:
            raise self.fault
        self.sent.append(body)

    def tell(self, frame: ChildFrame) -> None:
        """Take what comes back."""
        self.told.append(frame)

    def kill(self) -> None:
        """Note it."""
        self.is_killed = True


class Disk:
    """Encodes requests by their names, once it is free."""

    def __init__(self) -> None:
        self.is_free = threading.Event()
        self.is_asked = threading.Event()

    def encode(self, request: Request, priority: int) -> bytes | Rejection:
        """The request, or a rejection for those that are named bad."""
        self.is_asked.set()
        assert self.is_free.wait(30)
        name = request.messages[0].content
        if name == "bad":
            return Rejection(request.document_hash, FailureCode.INVALID_FIELD, "bad")
        return orjson.dumps(f"{name}{priority}")


@pytest.fixture
def disk() -> Iterator[Disk]:
    """It is slow until a test frees it."""
    disk = Disk()
    yield disk
    disk.is_free.set()


def make_sender(process: Process, disk: Disk) -> ImageSender:
    return ImageSender(process, 3, disk.encode)  # type: ignore[arg-type]  # what of a process it needs


def test_nobody_waits_while_images_are_read_and_all_is_sent_in_order(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "MAX_FRAME_BYTES", 9)
    process = Process()
    sender = make_sender(process, disk)
    sender.submit([make_request(name) for name in ("a", "bb", "bad", "c", "dddddddddddd")])
    sender.send(b"abort")
    sender.submit([make_request("e")])
    assert disk.is_asked.wait(30)
    assert process.sent == []
    disk.is_free.set()
    wait_until(lambda: len(process.sent) == 5, 30)
    frames = [body if body == b"abort" else orjson.loads(body)[1] for body in process.sent]
    assert frames == [["a3", "bb3"], ["c3"], ["dddddddddddd3"], b"abort", ["e3"]], "bounded, but for one that is long"
    assert process.told == [Events((Rejection(make_request("bad").document_hash, FailureCode.INVALID_FIELD, "bad"),))]
    sender.close()


def test_a_sender_that_is_closed_sends_nothing_more_however_long_its_disk_takes(disk: Disk) -> None:
    process = Process()
    sender = make_sender(process, disk)
    sender.submit([make_request("a"), make_request("b")])
    assert disk.is_asked.wait(30)
    sender.close()
    disk.is_free.set()
    sender._thread.join(30)
    assert not sender._thread.is_alive()
    assert process.sent == []


@pytest.mark.parametrize(("fault", "is_killed"), [(BlockingIOError(), True), (BrokenPipeError(), False)])
def test_a_process_that_does_not_take_requests_is_killed_and_one_that_is_gone_tells_itself(
    disk: Disk, fault: OSError, *, is_killed: bool
) -> None:
    disk.is_free.set()
    process = Process(fault=fault)
    sender = make_sender(process, disk)
    sender.submit([make_request("a")])
    sender._thread.join(30)
    assert not sender._thread.is_alive()
    assert process.is_killed == is_killed
    sender.submit([make_request("b")])
    sender.close()


@pytest.mark.parametrize("fault", [MemoryError(), RuntimeError("can't start new thread"), OSError("of a disk")])
def test_what_nobody_foresaw_ends_the_process_and_is_kept(fault: Exception) -> None:
    def encode(request: Request, priority: int) -> bytes:
        raise fault

    process = Process()
    sender = ImageSender(process, 3, encode)  # type: ignore[arg-type]  # what of a process it needs
    sender.submit([make_request("a")])
    sender._thread.join(30)
    assert not sender._thread.is_alive()
    assert (process.is_killed, process.sent) == (True, [])
    assert sender.fault is fault


def test_what_cannot_be_encoded_is_refused_with_its_reason() -> None:
    lone = make_request("half", "\ud800")
    gone = ImageFile("sha256:0", "/nowhere/a.png", 3)
    message = Message("user", "What is it?", (gone.key,))
    unread = replace(make_request("gone"), messages=(message,), image_files={gone.key: gone})
    found = [encode_or_reject(one, 0) for one in (lone, unread)]
    assert [one.code for one in found if isinstance(one, Rejection)] == [
        FailureCode.ENGINE_REJECTED,
        FailureCode.INVALID_FIELD,
    ]


def test_a_process_is_what_a_sender_needs() -> None:
    for name in ("send", "tell", "kill", "pid"):
        assert hasattr(ChildProcess, name)
