"""The lines of a text stream, each with its number and of bounded length, with a way to give some back."""

import codecs
import io
from collections import deque
from collections.abc import Callable, Iterator
from typing import BinaryIO

MAX_LINE_CHARS = 16 << 20
"""A longer line is kept to this length, and so is a row of several lines."""
MAX_ROW_LINES = 100_000

_UTF8 = "utf-8"
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark is the beginning of this one
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def detect_encoding(head: bytes) -> str:
    """What a byte order mark says; UTF-16 without one where every other byte is zero; else UTF-8."""
    for mark, encoding in _BOMS:
        if head.startswith(mark):
            return encoding
    if len(head) >= 4 and 0 not in head[0:32:2] and not any(head[1:32:2]):
        return "utf-16-le"
    if len(head) >= 4 and 0 not in head[1:32:2] and not any(head[0:32:2]):
        return "utf-16-be"
    return _UTF8


def open_text(stream: BinaryIO, encoding: str) -> io.TextIOWrapper:
    """The characters of a stream; bytes that stand for none become lone surrogates, which no text may hold."""
    if encoding == _UTF8:
        encoding = "utf-8-sig"  # a mark may be there all the same
    errors = (
        "surrogatepass" if encoding.replace("_", "-").lower().startswith(("utf-16", "utf-32")) else "surrogateescape"
    )
    return io.TextIOWrapper(stream, encoding=encoding, errors=errors, newline="")


class Lines:
    """Lines with their ends, for the csv module, which asks for one after the other until a row is whole."""

    def __init__(self, text: io.TextIOBase, open_again: Callable[[], io.TextIOBase]) -> None:
        """`open_again` gives the same text from its beginning."""
        self.number = 0
        """Of the line that was given last, from 1."""
        self.taken: list[str] = []
        """Given since `begin_row`."""
        self.is_cut = False
        """Whether one of them was longer than may be; the rest of it was passed over."""
        self.is_full = False
        """Whether the row took as many as it may; there are more."""
        self._text = text
        self._open_again = open_again
        self._again: deque[str] = deque()
        self._num_chars = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._num_chars > MAX_LINE_CHARS or len(self.taken) >= MAX_ROW_LINES:
            self.is_full = True
            raise StopIteration  # a quote that nobody closes, or closes too late
        line = self._take()
        if not line:
            raise StopIteration
        self.taken.append(line)
        self._num_chars += len(line)
        return line

    def begin_row(self) -> None:
        """What comes now belongs to the next row."""
        self.taken = []
        self.is_cut = False
        self.is_full = False
        self._num_chars = 0

    def iter_further(self) -> Iterator[str]:
        """The lines behind those that the row took, which are not kept; up to one that is too long to be looked at."""
        while (line := self._take()) and not self.is_cut:
            yield line

    def go_back_to(self, number: int) -> None:
        """The next line is the one behind this number. The text is read again up to there."""
        self._again.clear()
        self._text = self._open_again()
        self.number = 0
        while self.number < number and self._take():
            pass
        self.is_cut = False
        self.taken = self.taken[:1]

    def give_back_all_but_first(self) -> None:
        """The next lines are those that the row took after its first."""
        again = self.taken[1:]
        self.number -= len(again)
        self._again.extendleft(reversed(again))
        self.taken = self.taken[:1]

    def _take(self) -> str:
        line = self._again.popleft() if self._again else self._read()
        self.number += bool(line)
        return line

    def _read(self) -> str:
        line = self._text.readline(MAX_LINE_CHARS + 2)
        if len(line) > MAX_LINE_CHARS and not line.endswith(("\n", "\r")):
            self.is_cut = True
            while (more := self._text.readline(1 << 20)) and not more.endswith(("\n", "\r")):
                pass
        return line
