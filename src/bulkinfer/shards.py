"""A stretch of the queue, in file order, turned into the ordered requests that are still to do.

A shard bounds what is held in memory and what can be ordered together; it is not a unit of work that finishes or fails.
Resume never looks at shards: what is done is known by content alone.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

from bulkinfer.errors import InputError
from bulkinfer.fingerprint import hash_document
from bulkinfer.known import FindWanted, KnownRows, Passed
from bulkinfer.ordering import order_requests
from bulkinfer.outcome import fail_document, fail_unreadable
from bulkinfer.prompt import DocumentFault, Prompt, PromptTemplate
from bulkinfer.records import (
    NUM_LONGEST,
    Document,
    DocumentRow,
    Failure,
    JsonValue,
    Request,
    Scan,
    UnreadableRow,
    Workload,
)
from bulkinfer.sources import Source, open_source
from bulkinfer.threads import run_in_thread

MAX_SHARD_DOCUMENTS = 65_536
"""One lookup in the store serves a whole shard, and a longest-first order needs many documents to choose from."""
MAX_SHARD_CHARS = 16 * 1024 * 1024
"""Of text in fields and of template text around them: what bounds the memory when either is long."""
MAX_SHARD_IMAGE_BYTES = 256 * 1024 * 1024
"""Of image files that are read to tell documents apart: a shard must not keep the engine waiting for long."""
MAX_SHARD_PASSED = 1 << 20
"""Known rows that a shard passes over: a run that has little to do tells where it is, and asks early what it finds."""


@dataclass(frozen=True, slots=True)
class Shard:
    """What one stretch of the input holds for the runner."""

    requests: tuple[Request, ...]
    """Still to do, each document once, in the order of `ordering`."""
    failures: tuple[Failure, ...]
    """Documents that cannot be asked: unreadable, or without a prompt."""
    rows: tuple[DocumentRow, ...]
    """Input rows that the store does not list yet."""
    num_read: int
    """Input rows in the stretch."""
    num_skipped: int
    """Rows whose document is answered already, failed earlier, or stands earlier in this run."""
    last_rows: Mapping[UUID, int]
    """By scan: the last row that the stretch reaches. Rows come in order, so all before it were read too."""
    bytes_read: int
    """Input bytes passed since the beginning of the run, as far as the sources can tell."""
    is_last: bool = False
    """No other comes after it."""
    ended_scans: tuple[UUID, ...] = ()
    """Read to their end by now, and not known to be complete before."""

    def estimate_work(self, input_size_bytes: int) -> Workload:
        """The work in the whole input, if this is its first shard."""
        lengths = [request.num_chars for request in self.requests]
        sizes = sort_sizes(self.requests)
        share = 1.0 if self.is_last else self.bytes_read / max(1, input_size_bytes)
        return Workload(
            num_documents=round(len(lengths) / share) if share > 0 else None,
            mean_chars=sum(lengths) / len(lengths) if lengths else 0.0,
            p95_bytes=find_p95(sizes),
            max_chars=max(lengths, default=0),
            is_read_to_end=self.is_last,
            longest_bytes=tuple(sizes[: -NUM_LONGEST - 1 : -1]),
        )


def sort_sizes(requests: Sequence[Request]) -> list[int]:
    """Bytes of each prompt in UTF-8, the shortest first."""
    return sorted(sum(_count_bytes(message.content) for message in request.messages) for request in requests)


def _count_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def find_p95(lengths: Sequence[int]) -> int:
    """The 95th percentile of sorted numbers; 0 without any."""
    return lengths[95 * (len(lengths) - 1) // 100] if lengths else 0


@dataclass(slots=True)
class ShardPlanner:
    """Reads the scans of one run, one after the other, and cuts them into shards.

    `find_done` says which of some hashes must not be asked (the store's word), `find_wanted` which of the rows that it
    knows must be; without it all are read. `limit` stops the planner after that many documents to do.
    """

    scans: Sequence[Scan]
    template: PromptTemplate
    id_field: str | None
    find_done: Callable[[Sequence[bytes]], frozenset[bytes]]
    limit: int | None
    max_documents: int
    max_chars: int
    find_wanted: FindWanted | None = None
    notes_spans: bool = False
    """Requests tell what of them may be cut."""
    _known: KnownRows | None = None
    _asked: set[bytes] = field(default_factory=set)
    _num_to_do: int = 0
    _is_stopped: bool = False

    def iter_shards(self) -> Iterator[Shard]:
        """Yield shards until the input or the limit is reached.

        Raises InputError when a source turns out damaged; what was read before it is yielded first.
        """
        if self.find_wanted is not None:
            self._known = KnownRows([scan for scan in self.scans if scan.is_settled], self.find_wanted)
        for stretch in self._iter_stretches():
            shard = self._plan(stretch)
            if self._is_stopped:
                return
            is_limit_reached = self.limit is not None and self._num_to_do >= self.limit
            yield replace(shard, is_last=stretch.is_last or is_limit_reached)
            if is_limit_reached:
                return

    def stop(self) -> None:
        """End as soon as possible; the shard that is being planned is incomplete then. Any thread may call this."""
        self._is_stopped = True
        if self._known is not None:
            self._known.stop()

    def forget(self, document_hashes: Sequence[bytes]) -> None:
        """These outcomes are on disk: from now on the store answers for them. Any thread may call this."""
        self._asked.difference_update(document_hashes)

    def _iter_stretches(self) -> Iterator["_Stretch"]:
        stretch = _Stretch()
        bytes_read: Callable[[], int] = int
        template_chars = self.template.num_chars
        try:
            for scan, row, bytes_read in self._iter_rows():
                if self._is_stopped:
                    return
                stretch.add(scan, row, template_chars)
                if (
                    len(stretch.entries) >= self.max_documents
                    or stretch.num_chars >= self.max_chars
                    or stretch.num_image_bytes >= MAX_SHARD_IMAGE_BYTES
                    or stretch.num_passed >= MAX_SHARD_PASSED
                ):
                    stretch.bytes_read = bytes_read()
                    yield stretch
                    stretch = _Stretch()
        except InputError:
            stretch.bytes_read = bytes_read()
            stretch.is_last = True
            yield stretch
            raise
        stretch.bytes_read = sum(scan.source.size_bytes for scan in self.scans)
        stretch.is_last = True
        yield stretch

    def _iter_rows(self) -> Iterator[tuple[Scan, "_Read", Callable[[], int]]]:
        bytes_before = 0
        for scan in self.scans:
            if self._known is None or scan.num_known_rows == 0 or not scan.is_settled:
                rows = self._iter_new(scan, bytes_before)
            else:
                rows = self._iter_known(scan, self._known, bytes_before)
            for row, bytes_read in rows:
                yield scan, row, bytes_read
            bytes_before += scan.source.size_bytes

    def _iter_new(self, scan: Scan, bytes_before: int) -> Iterator[tuple["_Read", Callable[[], int]]]:
        source, bytes_read = self._open(scan, bytes_before)
        for row in source.iter_rows():
            yield row, bytes_read
        if not scan.is_complete:
            yield _Ended(), bytes_read

    def _iter_known(
        self, scan: Scan, all_known: KnownRows, bytes_before: int
    ) -> Iterator[tuple["_Read", Callable[[], int]]]:
        """Read of a known file only what is to be asked, and what lies behind the rows that are known."""
        known = all_known.open_scan(scan)
        size_bytes = scan.source.size_bytes

        def bytes_read() -> int:
            return bytes_before + size_bytes

        for passed in known.pass_unwanted():
            share = passed.last_row / scan.num_known_rows if scan.is_complete else 0.0
            yield passed, partial(int, bytes_before + share * size_bytes)
        if known.needs_reading:
            source, bytes_read = self._open(scan, bytes_before)
            for row in source.iter_rows(known.iter_numbers()):
                if (between := known.pass_to(row.origin.row)) is not None:
                    yield between, bytes_read
                yield row, bytes_read
        if (rest := known.pass_rest()) is not None:
            yield rest, bytes_read
        if not scan.is_complete:
            yield _Ended(), bytes_read

    def _open(self, scan: Scan, bytes_before: int) -> tuple[Source, Callable[[], int]]:
        source = open_source(scan.source, self.template.fields, self.id_field)
        return source, lambda: bytes_before + source.bytes_read()

    def _plan(self, stretch: "_Stretch") -> Shard:
        # The order matters: a hash leaves `_asked` only after its outcome is on disk, so whoever is not in the set now
        # is either unknown or visible to the lookup that comes after it.
        fresh = {entry.document_hash for entry in stretch.entries} - self._asked
        to_do = fresh - self.find_done(list(fresh))
        if self.limit is not None:
            to_do = stretch.cut(to_do, self.limit - self._num_to_do)
        self._asked |= to_do
        self._num_to_do += len(to_do)
        rows, last_rows, num_read = stretch.new_rows(), stretch.last_rows(), stretch.num_read
        requests, failures = self._render(stretch.entries, to_do)
        return Shard(
            requests=tuple(order_requests(requests)),
            failures=tuple(failures),
            rows=rows,
            num_read=num_read,
            num_skipped=num_read - len(requests) - len(failures),
            last_rows=last_rows,
            bytes_read=stretch.bytes_read,
            ended_scans=stretch.ended_scans(),
        )

    def _render(self, entries: deque["_Entry"], to_do: set[bytes]) -> tuple[list[Request], list[Failure]]:
        """Empty `entries` on the way, so that a document's text is not held twice for longer than one document."""
        requests: list[Request] = []
        failures: list[Failure] = []
        left = set(to_do)
        while entries and not self._is_stopped:
            entry = entries.popleft()
            if entry.document_hash not in left:
                continue
            left.discard(entry.document_hash)
            match self._render_one(entry):
                case Request() as request:
                    requests.append(request)
                case Failure() as failure:
                    failures.append(failure)
        return requests, failures

    def _render_one(self, entry: "_Entry") -> Request | Failure:
        match entry.row:
            case UnreadableRow() as row:
                return fail_unreadable(row, datetime.now(UTC))
            case Document() as document:
                match self.template.prepare(document, notes_spans=self.notes_spans):
                    case DocumentFault(code, message):
                        return fail_document(document, entry.document_hash, code, message, datetime.now(UTC))
                    case Prompt() as prompt:
                        return prompt.ask(entry.document_hash, document.origin)


@dataclass(frozen=True, slots=True)
class _Ended:
    """The file has no more rows."""


_Read = Document | UnreadableRow | Passed | _Ended
"""What reading a scan gives."""


@dataclass(frozen=True, slots=True)
class _Entry:
    scan: Scan
    row: Document | UnreadableRow
    document_hash: bytes


@dataclass(frozen=True, slots=True)
class _Mark:
    """Something that stands between two entries, or before the first, or after the last."""

    num_entries: int
    """So many are before it."""
    scan: Scan
    what: Passed | _Ended


@dataclass(slots=True)
class _Stretch:
    """Rows as they were read, before anything is known about them; and between them what was not read."""

    entries: deque[_Entry] = field(default_factory=deque)
    marks: list[_Mark] = field(default_factory=list)
    num_chars: int = 0
    num_image_bytes: int = 0
    num_passed: int = 0
    bytes_read: int = 0
    is_last: bool = False

    @property
    def num_read(self) -> int:
        """Input rows of the stretch, those that needed no reading included."""
        return len(self.entries) + self.num_passed

    def add(self, scan: Scan, row: _Read, template_chars: int) -> None:
        match row:
            case Document(fields=fields):
                self.num_chars += template_chars + sum(_count_chars(value) for value in fields.values())
                if row.images is not None:
                    self.num_image_bytes += row.images.num_bytes
                self.entries.append(_Entry(scan, row, hash_document(row.identity)))
            case UnreadableRow(digest=digest):
                self.entries.append(_Entry(scan, row, digest))
            case Passed(num_rows=num_rows):
                self.num_passed += num_rows
                self.marks.append(_Mark(len(self.entries), scan, row))
            case _Ended():
                self.marks.append(_Mark(len(self.entries), scan, row))

    def cut(self, to_do: set[bytes], limit: int) -> set[bytes]:
        """Keep rows only until `limit` documents to do have come by, in file order; return those documents."""
        kept: set[bytes] = set()
        for position, entry in enumerate(self.entries):
            if entry.document_hash in to_do and entry.document_hash not in kept:
                if len(kept) == limit:
                    self._cut_at(position)
                    break
                kept.add(entry.document_hash)
        return kept

    def new_rows(self) -> tuple[DocumentRow, ...]:
        """Lines for `documents`, but for the rows that an earlier run over the same file has written already."""
        return tuple(
            DocumentRow(entry.scan.scan_id, entry.row.origin.row, entry.document_hash, entry.row.origin.document_id)
            for entry in self.entries
            if entry.row.origin.row > entry.scan.num_known_rows
        )

    def last_rows(self) -> dict[UUID, int]:
        """By scan, the last row of the stretch."""
        last_rows = {entry.scan.scan_id: entry.row.origin.row for entry in self.entries}
        for mark in self.marks:
            if isinstance(mark.what, Passed):
                last_rows[mark.scan.scan_id] = max(mark.what.last_row, last_rows.get(mark.scan.scan_id, 0))
        return last_rows

    def ended_scans(self) -> tuple[UUID, ...]:
        """Scans of which the stretch holds the end."""
        return tuple(mark.scan.scan_id for mark in self.marks if isinstance(mark.what, _Ended))

    def _cut_at(self, position: int) -> None:
        self.entries = deque(list(self.entries)[:position])
        self.marks = [mark for mark in self.marks if mark.num_entries <= position]
        self.num_passed = sum(mark.what.num_rows for mark in self.marks if isinstance(mark.what, Passed))


def _count_chars(value: JsonValue) -> int:
    """Characters of all texts in a value; what else there is in it is small beside them."""
    match value:
        case str():
            return len(value)
        case Mapping():
            return sum(_count_chars(part) for part in value.values())
        case Sequence():
            return sum(_count_chars(part) for part in value)
        case _:
            return 0


def prepare_next(shards: Iterator[Shard]) -> Future[Shard | None]:
    """Take the next shard in a thread of its own; None at the end. What planning raises, the future raises."""
    return run_in_thread(lambda: next(shards, None), "bulkinfer-planner")
