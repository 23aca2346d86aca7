"""Known rows: which numbers a source is told to read, and what is passed over between the rows that it yields."""

from collections.abc import Sequence
from itertools import islice, pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkinfer import known
from bulkinfer.known import KnownRows, Passed
from bulkinfer.records import KnownSpan, Scan, WantedRows
from tests.unit.store_support import make_file


class Store:
    """Stands for the store: it knows these rows of each scan, and wants some of them."""

    def __init__(self, rows: Sequence[Sequence[int]], wanted: Sequence[set[int]]) -> None:
        self.rows, self.wanted = rows, wanted
        self.questions: list[list[KnownSpan]] = []

    def find_wanted(self, spans: Sequence[KnownSpan]) -> list[WantedRows]:
        """The store's answer."""
        self.questions.append(list(spans))
        return [self._find(span) for span in spans]

    def _find(self, span: KnownSpan) -> WantedRows:
        index = span.scan_id.int
        rows = [row for row in self.rows[index] if span.after < row <= span.last_row]
        places = [place for place, row in enumerate(rows, start=1) if row in self.wanted[index]]
        return WantedRows(len(rows), [rows[place - 1] for place in places], places)


def scan(index: int, num_known_rows: int, *, is_complete: bool = True) -> Scan:
    """A scan of the given number."""
    return Scan(UUID(int=index), make_file(), num_known_rows, is_complete=is_complete)


def test_wanted_rows_are_read_and_the_others_are_passed() -> None:
    only = scan(0, 9)
    store = Store([[1, 2, 4, 5, 6, 9]], [{4, 6}])
    opened = KnownRows([only], store.find_wanted).open_scan(only)
    assert list(opened.pass_unwanted()) == []
    assert opened.needs_reading
    assert list(opened.iter_numbers()) == [4, 6]
    assert [opened.pass_to(4), opened.pass_to(6), opened.pass_rest()] == [Passed(3, 2), Passed(5, 1), Passed(9, 1)]
    assert opened.pass_rest() is None


def test_nothing_wanted_of_a_complete_file_needs_no_reading() -> None:
    only = scan(0, 3)
    opened = KnownRows([only], Store([[1, 2, 3]], [set()]).find_wanted).open_scan(only)
    assert list(opened.pass_unwanted()) == [Passed(3, 3)]
    assert (opened.needs_reading, opened.pass_rest()) == (False, None)


def test_windows_before_the_first_wanted_row_are_passed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run over many known rows tells where it is, and can be stopped in between."""
    monkeypatch.setattr(known, "MAX_WINDOW_ROWS", 10)
    only = scan(0, 40)
    store = Store([[*range(1, 13), *range(15, 41)]], [{25, 31}])
    opened = KnownRows([only], store.find_wanted).open_scan(only)
    passed = opened.pass_unwanted()
    assert (next(passed), len(store.questions)) == (Passed(10, 10), 1)
    assert (next(passed), len(store.questions)) == (Passed(20, 8), 2)
    assert (next(passed, None), opened.needs_reading) == (None, True)
    assert list(opened.iter_numbers()) == [25, 31]
    assert [opened.pass_to(25), opened.pass_to(31), opened.pass_rest()] == [Passed(24, 4), Passed(30, 5), Passed(40, 9)]


def test_behind_the_known_rows_of_an_incomplete_file_all_is_read() -> None:
    only = scan(0, 3, is_complete=False)
    opened = KnownRows([only], Store([[1, 3]], [{1}]).find_wanted).open_scan(only)
    assert list(opened.pass_unwanted()) == []
    assert opened.needs_reading
    assert list(islice(opened.iter_numbers(), 4)) == [1, 4, 5, 6]
    assert [opened.pass_to(1), opened.pass_to(4), opened.pass_to(5)] == [None, Passed(3, 1), None]


def test_many_small_scans_are_one_question() -> None:
    scans = [scan(index, 10) for index in range(50)]
    store = Store([range(1, 11)] * 50, [set()] * 50)
    rows = KnownRows(scans, store.find_wanted)
    for one in scans:
        opened = rows.open_scan(one)
        assert (list(opened.pass_unwanted()), opened.needs_reading) == ([Passed(10, 10)], False)
    assert len(store.questions) == 1


def test_after_a_stop_nothing_is_asked() -> None:
    store = Store([range(1, 11)], [{5}])
    rows = KnownRows([scan(0, 10)], store.find_wanted)
    rows.stop()
    opened = rows.open_scan(scan(0, 10))
    assert list(opened.pass_unwanted()) == []
    assert not opened.needs_reading
    assert store.questions == []


@given(
    st.lists(st.tuples(st.sets(st.integers(1, 40), min_size=1), st.sets(st.integers(1, 40))), min_size=1, max_size=4),
    st.integers(1, 50),
)
def test_every_known_row_is_read_or_passed_once(files: list[tuple[set[int], set[int]]], window: int) -> None:
    """Whatever the window, blank lines and wanted rows: the counts up to each row are those of the file."""
    rows = [sorted(found) for found, _ in files]
    scans = [scan(index, found[-1]) for index, found in enumerate(rows)]
    before, known.MAX_WINDOW_ROWS = known.MAX_WINDOW_ROWS, window
    try:
        all_known = KnownRows(scans, Store(rows, [wanted for _, wanted in files]).find_wanted)
        for one, found, (_, wanted) in zip(scans, rows, files, strict=True):
            opened = all_known.open_scan(one)
            first = 0
            for passed in opened.pass_unwanted():
                assert passed.num_rows == sum(first < other <= passed.last_row for other in found)
                first = passed.last_row
            numbers = list(opened.iter_numbers())
            assert numbers == [row for row in found if row in wanted]
            for last, row in pairwise([first, *numbers]):
                between = opened.pass_to(row)
                assert (between.num_rows if between else 0) == sum(last < other < row for other in found)
            rest = opened.pass_rest()
            assert (rest.num_rows if rest else 0) == sum(other > max([first, *numbers]) for other in found)
    finally:
        known.MAX_WINDOW_ROWS = before
