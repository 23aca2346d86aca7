"""Rows that the store knows from an earlier run over the same unchanged file: which of them are to be read again.

Pure but for the question that it asks the store, for many rows at a time: one file of ten million rows and a thousand
small files cost the same. It never opens a file.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count

from bulkinfer.records import KnownSpan, Scan, WantedRows

MAX_WINDOW_ROWS = 1 << 18
"""Rows that the store is asked about at a time: what of them is wanted is held as two integers a row."""

FindWanted = Callable[[Sequence[KnownSpan]], Sequence[WantedRows]]
"""The store's word; see `Store.find_wanted`."""


@dataclass(frozen=True, slots=True)
class Passed:
    """Known rows that need nothing and are not read, up to `last_row`."""

    last_row: int
    num_rows: int


class KnownRows:
    """The known rows of all scans of a run, asked about in the order in which the scans are read."""

    def __init__(self, scans: Sequence[Scan], find_wanted: FindWanted) -> None:
        self._spans = iter_spans(scans, MAX_WINDOW_ROWS)
        self._find_wanted = find_wanted
        self._found: deque[tuple[KnownSpan, WantedRows]] = deque()
        self._is_stopped = False

    def open_scan(self, scan: Scan) -> "KnownScan":
        """The known rows of one scan; scans come in order, each once."""
        return KnownScan(scan, self._iter_found(scan))

    def stop(self) -> None:
        """Ask nothing more. What is open then looks as if nothing of it were wanted."""
        self._is_stopped = True

    def _iter_found(self, scan: Scan) -> Iterator[tuple[KnownSpan, WantedRows]]:
        last_row = 0
        while last_row < scan.num_known_rows and not self._is_stopped:
            if not self._found:
                self._ask()
            span, wanted = self._found.popleft()
            if span.scan_id == scan.scan_id:
                last_row = span.last_row
                yield span, wanted

    def _ask(self) -> None:
        spans = take_window(self._spans, MAX_WINDOW_ROWS)
        self._found.extend(zip(spans, self._find_wanted(spans), strict=True))


class KnownScan:
    """The known rows of one scan, as its source is read: which rows to read, and what was passed over on the way."""

    def __init__(self, scan: Scan, found: Iterator[tuple[KnownSpan, WantedRows]]) -> None:
        self._scan = scan
        self._found = found
        self._first: WantedRows | None = None
        """Of the first window that has a wanted row, once it is found."""
        self._due: deque[tuple[int, int]] = deque()
        """Rows that the source was told to read and has not yielded yet, each with its place among the known rows."""
        self._num_known = 0
        self._num_passed = 0

    def pass_unwanted(self) -> Iterator[Passed]:
        """What lies before the first window with a wanted row, window by window: the store takes its time for each."""
        while self._first is None and (found := next(self._found, None)) is not None:
            span, wanted = found
            if wanted.rows:
                self._first = wanted
                return
            self._num_known += wanted.num_rows
            if (passed := self._pass(span.last_row, self._num_known, num_taken=0)) is not None:
                yield passed

    @property
    def needs_reading(self) -> bool:
        """Whether any row is wanted, or there may be rows that the store does not know. After `pass_unwanted`."""
        return self._first is not None or not self._scan.is_complete

    def iter_numbers(self) -> Iterator[int]:
        """The rows to read, ascending: known ones that are wanted, then all that are not known."""
        for row, place in self._iter_wanted():
            self._due.append((row, place))
            yield row
        if not self._scan.is_complete:
            yield from count(self._scan.num_known_rows + 1)

    def pass_to(self, row: int) -> Passed | None:
        """What lies between the row before and this one, which the source has just yielded."""
        if row > self._scan.num_known_rows:
            return self.pass_rest()
        place = 0
        while self._due and self._due[0][0] <= row:
            _, place = self._due.popleft()
        return self._pass(row - 1, place - 1, num_taken=1)

    def pass_rest(self) -> Passed | None:
        """What of the known rows was not passed or read yet."""
        return self._pass(self._scan.num_known_rows, self._num_known, num_taken=0)

    def _pass(self, last_row: int, place: int, *, num_taken: int) -> Passed | None:
        num_rows, self._num_passed = place - self._num_passed, place + num_taken
        return Passed(last_row, num_rows) if num_rows > 0 else None

    def _iter_wanted(self) -> Iterator[tuple[int, int]]:
        windows = (wanted for _, wanted in self._found)
        for wanted in windows if self._first is None else chain([self._first], windows):
            num_before, self._num_known = self._num_known, self._num_known + wanted.num_rows
            for row, place in zip(wanted.rows, wanted.places, strict=True):
                yield row, num_before + place


def iter_spans(scans: Sequence[Scan], max_rows: int) -> Iterator[KnownSpan]:
    """The known rows of some scans, a window at a time."""
    for scan in scans:
        for after in range(0, scan.num_known_rows, max_rows):
            yield KnownSpan(scan.scan_id, after, min(after + max_rows, scan.num_known_rows))


def take_window(spans: Iterator[KnownSpan], max_rows: int) -> list[KnownSpan]:
    """The next spans, until they have so many rows together: a question about many costs as much as one about a single
    scan."""
    taken = []
    num_rows = 0
    for span in spans:
        taken.append(span)
        num_rows += span.last_row - span.after
        if num_rows >= max_rows:
            break
    return taken
