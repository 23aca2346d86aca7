"""Files whose times do not prove that they are as they were listed: whether they are, told by reading them.

Before the run begins, because a run records at its beginning which scans are its input. It asks the store and reads
the files, and writes nothing.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from functools import partial
from uuid import UUID

from bulkinfer.errors import InputError
from bulkinfer.fingerprint import hash_document
from bulkinfer.known import iter_spans, take_window
from bulkinfer.records import Document, DocumentRow, Scan, UnreadableRow
from bulkinfer.runner.plan import RunPlan
from bulkinfer.runner.signals import StopFlag
from bulkinfer.sources import open_source
from bulkinfer.store import Store
from bulkinfer.threads import run_in_thread

_TICK_S = 0.1
_WINDOW_ROWS = 1 << 14
"""Listed rows that are held at a time, of however many scans."""


def check_unsettled(plan: RunPlan, store: Store, is_stopped: Callable[[], bool]) -> Mapping[UUID, bool]:
    """Of each scan that a run would take over on trust, whether its file still has the rows that it lists.

    None of a file that cannot be read: the run says so, and what is listed of it stays. Once stopped it gives no
    further verdicts. Raises StoreError.
    """
    verdicts = {}
    scans = store.find_unsettled(plan.job.spec.name, plan.files, plan.layout)
    listed = _Listed(store, scans)
    for place, scan in enumerate(scans):
        try:
            is_same = _has_rows(scan, _iter_rows(plan, scan, is_stopped), listed.iter_rows(place))
        except InputError:
            continue
        if is_stopped():
            break
        verdicts[scan.scan_id] = is_same
    return verdicts


def check_unsettled_beside(plan: RunPlan, store: Store, stop: StopFlag, end_limit_s: float) -> Mapping[UUID, bool]:
    """The same in a thread of its own: a disk or a server that hangs must not hold up a signal.

    Once there is one it is waited for `end_limit_s` at the most, and then without a verdict.
    """
    checked = run_in_thread(partial(check_unsettled, plan, store, lambda: stop.is_set), "bulkinfer-unsettled")
    while not checked.done() and not stop.is_set:
        wait([checked], timeout=_TICK_S)
    done, _ = wait([checked], timeout=end_limit_s)
    return checked.result() if done else {}


class _Listed:
    """The rows that are listed of some scans, a window at a time; scans are asked for in order."""

    def __init__(self, store: Store, scans: Sequence[Scan]) -> None:
        self._store = store
        self._places = {scan.scan_id: place for place, scan in enumerate(scans)}
        self._spans = iter_spans(scans, _WINDOW_ROWS)
        self._rows: deque[DocumentRow] = deque()

    def iter_rows(self, place: int) -> Iterator[DocumentRow]:
        """Those of a scan. What was not taken of those before is passed over."""
        while self._rows or self._read():
            found = self._places[self._rows[0].scan_id]
            if found > place:
                return
            row = self._rows.popleft()
            if found == place:
                yield row

    def _read(self) -> bool:
        """Read the next window, if there is one."""
        while not self._rows and (spans := take_window(self._spans, _WINDOW_ROWS)):
            self._rows.extend(self._store.read_rows(spans))
        return bool(self._rows)


def _has_rows(scan: Scan, found: Iterator[DocumentRow], listed: Iterator[DocumentRow]) -> bool:
    """Whether all that is listed was found, and nothing between; nor behind, where the file was read to its end."""
    for row in found:
        expected = next(listed, None)
        if expected is None:
            return not scan.is_complete
        if row != expected:
            return False
    return next(listed, None) is None


def _iter_rows(plan: RunPlan, scan: Scan, is_stopped: Callable[[], bool]) -> Iterator[DocumentRow]:
    source = open_source(scan.source, plan.template.fields, plan.job.spec.input.id)
    for row in source.iter_rows():
        if is_stopped():
            return
        yield DocumentRow(scan.scan_id, row.origin.row, _hash(row), row.origin.document_id)


def _hash(row: Document | UnreadableRow) -> bytes:
    return hash_document(row.identity) if isinstance(row, Document) else row.digest
