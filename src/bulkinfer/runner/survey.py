"""Reads all rows of a job's input and counts them: different ones, answered ones, unreadable ones. Asks no engine.

The loop over the rows is what a plan over ten million of them costs; everything in it is there because it must be.
"""

import gc
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256

from bulkinfer.events import EventSink, Reading
from bulkinfer.fingerprint import write_canonical
from bulkinfer.records import Document, SourceFile, UnreadableRow
from bulkinfer.runner.plan import RunPlan, refuse_empty_input
from bulkinfer.runner.sample import Sample
from bulkinfer.sources import open_source
from bulkinfer.store import KindCount, RowKind, Tally

NUM_SAMPLED = 20_000
"""Documents that are rendered and tokenized: about 5 seconds. A share of them is known to 0.7 % (two deviations)."""
NUM_LONG_SAMPLED = 10_000
"""Of those that may not fit into the context: up to so many are all tokenized, and their failures are counted."""
MAX_SAMPLE_BYTES = 32 * 1024 * 1024
"""Of text in each of the two samples: bounds memory, and the seconds that tokenizing takes."""
NUM_SHOWN = 5
"""Unreadable rows that are named."""
MAX_FAULTS = 100
"""Kinds of faults that are told apart: those of hostile rows may all be different."""
_BLOCK_ROWS = 16_384
_TELL_EVERY_S = 0.25
_NUMBERS = re.compile(r"(?<![\w./-])\d+(?:,\d+)*\b")
"""Those that stand by themselves, not in names."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What reading the input to its end has found."""

    counts: Mapping[RowKind, KindCount]
    samples: Mapping[RowKind, Mapping[bytes, Document]]
    """Documents to do of the two readable kinds by hash, drawn uniformly; all of them where there are few."""
    unreadable: Mapping[str, int]
    """Rows by what is wrong with them, the commonest first."""
    first_unreadable: Sequence[str]
    """Their ids."""
    seconds: float


def survey_input(
    plan: RunPlan,
    tally: Tally,
    safe_bytes: int | None,
    emit: EventSink,
    listed: Collection[SourceFile] = frozenset(),
) -> Survey:
    """Read everything but the files that are `listed`, whose rows the tally has.

    Raises InputError as sources do, and for an input without a row.
    """
    start_s = time.monotonic()
    reading = _Reading(plan, tally, _find_safe_fields_bytes(plan, safe_bytes), emit)
    with _no_garbage_collection():
        for file in plan.files:
            if file in listed:
                reading.bytes_before += file.size_bytes
                continue
            reading.read(file)
            gc.collect(0)  # what opening a file may have left; a few milliseconds
    reading.flush()
    counts = tally.count()
    if not any(count.num_rows for count in counts.values()):
        raise refuse_empty_input(plan)
    for sample in (reading.short, reading.long):
        sample.settle()
    return Survey(
        counts=counts,
        samples={
            RowKind.SHORT: reading.short.documents,
            RowKind.LONG: reading.long.documents,
        },
        unreadable=dict(reading.unreadable.most_common()),
        first_unreadable=reading.first_unreadable,
        seconds=time.monotonic() - start_s,
    )


def _find_safe_fields_bytes(plan: RunPlan, safe_bytes: int | None) -> int:
    """Bytes of fields with which a prompt cannot have more than `safe_bytes`; -1 where none are safe."""
    around = plan.template.bound_bytes(0)
    with_one = plan.template.bound_bytes(1)
    if safe_bytes is None or around is None or with_one is None or safe_bytes < around:
        return -1
    return (safe_bytes - around) // max(1, with_one - around)


@dataclass(slots=True)
class _Reading:
    plan: RunPlan
    tally: Tally
    safe_bytes: int
    """Of fields that are texts; others may be printed twice as long as JSON has them (spaces, signs of exponents)."""
    emit: EventSink
    unreadable: Counter[str] = field(default_factory=Counter)
    first_unreadable: list[str] = field(default_factory=list)
    num_rows: int = 0
    bytes_before: int = 0
    told_s: float = 0.0
    hashes: bytearray = field(default_factory=bytearray)
    kinds: bytearray = field(default_factory=bytearray)
    short: Sample = field(init=False)
    long: Sample = field(init=False)

    def __post_init__(self) -> None:
        self.short = Sample(NUM_SAMPLED, MAX_SAMPLE_BYTES, self._find_done)
        self.long = Sample(NUM_LONG_SAMPLED, MAX_SAMPLE_BYTES, self._find_done)

    def read(self, file: SourceFile) -> None:
        source = open_source(file, self.plan.template.fields, self.plan.job.spec.input.id)
        kinds, short, safe_bytes, half_bytes = self.kinds, self.short, self.safe_bytes, self.safe_bytes // 2
        short_kind, block_rows = RowKind.SHORT.value, _BLOCK_ROWS
        for row in source.iter_rows():
            if isinstance(row, Document):
                canonical = write_canonical(row.fields if row.images is None else row.images.identity)
                # As `hash_document` has it; written out, as a call costs as much as the hash of a short document.
                document_hash = sha256(canonical).digest()[:16]
                num_bytes = len(canonical)
                if num_bytes <= half_bytes or (num_bytes <= safe_bytes and _has_only_texts(row)):
                    kinds.append(short_kind)
                    if document_hash[8:] < short.bar:
                        short.offer(document_hash, row, num_bytes)
                else:
                    self._note_long(row, document_hash, num_bytes)
            else:
                document_hash = row.digest
                self._note_unreadable(row)
            self.hashes += document_hash
            if len(kinds) == block_rows:
                self.flush()
                self._tell(source.bytes_read)
        self.bytes_before += file.size_bytes

    def flush(self) -> None:
        self.tally.add_rows(bytes(self.hashes), bytes(self.kinds))
        self.num_rows += len(self.kinds)
        self.hashes.clear()
        self.kinds.clear()

    def _note_long(self, document: Document, document_hash: bytes, num_bytes: int) -> None:
        self.kinds.append(RowKind.LONG)
        if document_hash[8:] < self.long.bar:
            self.long.offer(document_hash, document, num_bytes)

    def _note_unreadable(self, row: UnreadableRow) -> None:
        self.kinds.append(RowKind.UNREADABLE)
        fault = _name_fault(row)
        is_known = fault in self.unreadable or len(self.unreadable) < MAX_FAULTS
        self.unreadable[fault if is_known else "for other reasons"] += 1
        if len(self.first_unreadable) < NUM_SHOWN:
            self.first_unreadable.append(row.origin.document_id)

    def _find_done(self, document_hashes: Sequence[bytes]) -> frozenset[bytes]:
        return self.tally.find_done(document_hashes)

    def _tell(self, bytes_read: Callable[[], int]) -> None:
        now_s = time.monotonic()
        if now_s - self.told_s >= _TELL_EVERY_S:
            self.told_s = now_s
            size_bytes = sum(file.size_bytes for file in self.plan.files)
            self.emit(Reading(self.num_rows, (self.bytes_before + bytes_read()) / max(1, size_bytes)))


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Rows leave no cycles, and looking for some in what the samples hold takes a fifth to a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _has_only_texts(document: Document) -> bool:
    return all(type(value) is str for value in document.fields.values())


def _name_fault(row: UnreadableRow) -> str:
    """The fault without where it is, so that equal faults count together."""
    fault = row.reason.removeprefix(f"{row.origin.source}, ").partition(": ")[2]
    return _NUMBERS.sub("…", fault or row.reason)
