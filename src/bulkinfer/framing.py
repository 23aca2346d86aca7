"""Frames on a stream socket: 4 bytes of length (big-endian) and that many bytes. What they say, their users know."""

import socket
import struct
from typing import BinaryIO

_LENGTH = struct.Struct("!I")


class FrameTooLongError(ValueError):
    """The other side announced a frame above the limit: it is not who we take it for."""


def send_frame(connection: socket.socket, body: bytes) -> None:
    """Send one frame. Raises OSError if the other side is gone or does not read within the socket's time limit."""
    connection.sendall(_LENGTH.pack(len(body)) + body)


def read_frame(stream: BinaryIO, max_bytes: int | None = None) -> bytes | None:
    """Wait for the next frame; None at the end of the stream, also in the middle of a frame.

    Raises FrameTooLongError for one above `max_bytes`, and OSError as the stream does.
    """
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(header)
    if max_bytes is not None and length > max_bytes:
        raise FrameTooLongError(f"a frame of {length} bytes; {max_bytes} are allowed")
    body = stream.read(length)
    return body if len(body) == length else None
