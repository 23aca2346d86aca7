"""Files whose times do not prove that they are as they were listed: whether they are, told by reading them.

Before the run begins, because a run records at its beginning which scans are its input. It asks the store and reads
the files, and writes nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from uuid import UUID

from bulkinfer.errors import InputError
from bulkinfer.fingerprint import hash_document
from bulkinfer.known import iter_spans
from bulkinfer.records import Document, DocumentRow, Scan, UnreadableRow
from bulkinfer.runner.plan import RunPlan
from bulkinfer.sources import open_source
from bulkinfer.store import Store

_WINDOW_ROWS = 1 << 14
"""Listed rows that are held at a time."""


def check_unsettled(plan: RunPlan, store: Store, is_stopped: Callable[[], bool]) -> Mapping[UUID, bool]:
    """Of each scan that a run would take over on trust, whether its file still has the rows that it lists.

    Once stopped it gives no further verdicts. Raises StoreError.
    """
    verdicts = {}
    for scan in store.find_unsettled(plan.job.spec.name, plan.files, plan.layout):
        listed = (row for span in iter_spans([scan], _WINDOW_ROWS) for row in store.read_rows(span))
        is_same = _has_rows(scan, _iter_rows(plan, scan, is_stopped), listed)
        if is_stopped():
            break
        verdicts[scan.scan_id] = is_same
    return verdicts


def _has_rows(scan: Scan, found: Iterator[DocumentRow], listed: Iterator[DocumentRow]) -> bool:
    """Whether all that is listed was found, and nothing between; nor behind, where the file was read to its end."""
    try:
        for row in found:
            expected = next(listed, None)
            if expected is None:
                return not scan.is_complete
            if row != expected:
                return False
    except InputError:  # the run says so when it comes there; a file that was read to its end was not damaged then
        return not scan.is_complete and next(listed, None) is None
    return next(listed, None) is None


def _iter_rows(plan: RunPlan, scan: Scan, is_stopped: Callable[[], bool]) -> Iterator[DocumentRow]:
    source = open_source(scan.source, plan.template.fields, plan.job.spec.input.id)
    for row in source.iter_rows():
        if is_stopped():
            return
        yield DocumentRow(scan.scan_id, row.origin.row, _hash(row), row.origin.document_id)


def _hash(row: Document | UnreadableRow) -> bytes:
    return hash_document(row.identity) if isinstance(row, Document) else row.digest
