"""Standard output and error as they may be: closed, full, without a reader, of an encoding that lacks characters."""

import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TextIO

import orjson

from bulkinfer.errors import BulkinferError, ExitCode, JobError

_TERMINAL_CONTROLS = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What JSON may hold as it is, and a terminal may obey: delete, C1 controls, changes of direction, line ends."""


_COPIED_CHARS = 1 << 20


class ReaderGone(BulkinferError):
    """Nobody reads our stdout any more, as in `bulkinfer query ... | head`. That is no error."""

    exit_code = ExitCode.OK


class Output(io.TextIOBase):
    """A standard stream that may be closed, full, or of an encoding that lacks characters.

    People's messages that cannot be written are dropped: they never end a run. Data that cannot be written is said.
    """

    def __init__(self, stream: TextIO | None, *, is_data: bool) -> None:
        self._stream = stream
        self._is_data = is_data
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    @property
    def encoding(self) -> str:  # type: ignore[override]  # read-only in fact, whatever the stubs say
        """Of the stream; Rich asks."""
        return getattr(self._stream, "encoding", "utf-8")

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._stream is not None and self._stream.isatty()

    def fileno(self) -> int:
        """The descriptor below; Rich asks it for the terminal's width."""
        if self._stream is None:
            raise io.UnsupportedOperation("fileno")
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Write, or drop, or raise ReaderGone or JobError."""
        if self._stream is None:
            return len(text)
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        """Flush, under the same rule."""
        if self._stream is None:
            return
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:  # what it still holds must not fail again when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if not self._is_data:
            return
        if isinstance(error, BrokenPipeError):
            raise ReaderGone
        raise JobError(f"standard output cannot be written: {error.strerror}")


def print_data(text: str) -> None:
    """To stdout."""
    sys.stdout.write(text + "\n")


def print_json(value: object) -> None:
    """To stdout, in one line."""
    print_data(encode_json(value))


def print_json_with(about: Mapping[str, object], name: str, values: Iterable[object]) -> None:
    """To stdout, in one line, an object with these keys and a list of any length behind them, in bounded memory.

    Nothing is printed before all of the list is there: what fails on the way leaves no half of an object.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as whole:
        whole.write(f"{encode_json(about)[:-1]},{encode_json(name)}:[")
        for number, value in enumerate(values):
            whole.write(("," if number else "") + encode_json(value))
        whole.write("]}\n")
        whole.seek(0)
        shutil.copyfileobj(whole, sys.stdout, _COPIED_CHARS)


def encode_json(value: object) -> str:
    """JSON in one line; what is no JSON value is its text. What could drive a terminal is escaped: the same JSON."""
    try:
        text = _encode(value)
    except orjson.JSONEncodeError:
        text = _encode(_replace_unencodable(value))
    return _TERMINAL_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _encode(value: object) -> str:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _replace_unencodable(value: object) -> object:
    """A value with what orjson refuses in it replaced: integers beyond 64 bits, names that are not UTF-8."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case int() if value.bit_length() > 63:
            return orjson.Fragment(str(value))
        case Mapping():
            return {_replace_unencodable(str(key)): _replace_unencodable(part) for key, part in value.items()}
        case list() | tuple():
            return [_replace_unencodable(part) for part in value]
    return value


def number_names(names: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Each name with how often it came before: two columns of one name are two keys."""
    for position, name in enumerate(names):
        yield name, names[:position].count(name)
