"""Counting documents that no run has listed: how many are different, and how many of them have an outcome already.

Lives in memory, in a database of its own, with a limit; what does not fit goes to a temporary folder. The job's own
database is only read.
"""

import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from uuid import UUID

import duckdb
import pyarrow as pa

from bulkinfer.errors import StoreError
from bulkinfer.records import FailureCode, JsonValue
from bulkinfer.store.arrow import hashes_table, read_hashes
from bulkinfer.store.database import connect_scratch
from bulkinfer.store.reports import Reports

_HASH_BYTES = 16
_ROWS_PER_PART = 2_000_000
"""Counted at a time: hashes are uniform, so a share of them is a share of the memory."""
_READ_ROWS = 100_000
_RESULTS = "select document_hash, '' as code from results where task_fingerprint = $task::uuid"
_FINAL_FAILURES = "select document_hash, code from failures where task_fingerprint = $task::uuid and not retryable"

_LISTED = """
    select s.scan, d.document_hash from document_rows d join (
        select unnest($scans::uuid[]) as scan_id, generate_subscripts($scans::uuid[], 1)::integer as scan
    ) s using (scan_id)
"""
_COUNT_DONE_SCANS = """
    select scan, count(*) from listed left join (
        select document_hash, bool_or(is_unreadable) as is_unreadable from done group by document_hash
    ) using (document_hash)
    group by scan having bool_and(is_unreadable is not null and not is_unreadable)
"""


class RowKind(IntEnum):
    """What is known of a row before it is rendered."""

    UNREADABLE = 0
    SHORT = 1
    """Whatever its tokens are, they fit into the context."""
    LONG = 2
    """They may not."""


@dataclass(frozen=True, slots=True)
class KindCount:
    """Rows of one kind. The counts below the first are of different documents, but for the last."""

    num_rows: int = 0
    num_distinct: int = 0
    num_answered: int = 0
    num_failed: int = 0
    """Without an answer, but with a failure that a run does not ask again."""
    num_failed_rows: int = 0
    """In which these stand."""

    @property
    def num_to_do(self) -> int:
        """Documents that a run would take."""
        return self.num_distinct - self.num_answered - self.num_failed


class Tally:
    """Hashes of input rows and of outcomes, for one thread. Use it in a `with` statement; see `open_tally`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._num_rows = 0
        self._num_done = 0
        connection.execute("create table input(document_hash uuid not null, kind utinyint not null)")
        connection.execute(
            "create table done(document_hash uuid not null, is_answered boolean not null, is_unreadable boolean)"
        )

    def add_outcomes(self, reader: Reports, task: UUID) -> None:
        """Take what the job's database has for a task. Raises as the reader does."""
        for statement, is_answered in ((_RESULTS, "true"), (_FINAL_FAILURES, "false")):
            for lines in reader.iter_arrow(statement, {"task": str(task)}, _READ_ROWS):
                self._num_done += lines.num_rows
                values = f"document_hash, {is_answered}, code = '{FailureCode.UNREADABLE_ROW}'"
                self._insert(f"insert into done select {values} from pending", lines)

    def add_rows(self, document_hashes: bytes, kinds: bytes) -> None:
        """Take input rows: 16 bytes and a `RowKind` for each."""
        num_rows = len(kinds)
        self._num_rows += num_rows
        hashes = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(_HASH_BYTES), num_rows, [None, pa.py_buffer(document_hashes)]
        )
        table = {
            "document_hash": pa.ExtensionArray.from_storage(pa.uuid(), hashes),
            "kind": pa.UInt8Array.from_buffers(pa.uint8(), num_rows, [None, pa.py_buffer(kinds)]),
        }
        self._insert("insert into input select document_hash, kind from pending", pa.table(table))

    def add_listed(self, reader: Reports, scans: Sequence[UUID]) -> frozenset[UUID]:
        """Take the rows of those scans that need no look at their file, from the job's database; returns these scans.

        None of their rows is to do, and none is unreadable: what is wrong with such a row is told from the file. The
        kind of a row that is done does not matter. Call it after `add_outcomes`.
        """
        if not scans or self._num_done == 0:
            return frozenset()
        self._connection.execute("create table listed(scan integer not null, document_hash uuid not null)")
        parameters: dict[str, JsonValue] = {"scans": [str(scan) for scan in scans]}
        for lines in reader.iter_arrow(_LISTED, parameters, _READ_ROWS):
            self._insert("insert into listed select scan, document_hash from pending", lines)
        with _explained():
            whole = self._connection.execute(_COUNT_DONE_SCANS).fetchall()
            self._connection.execute(
                "create table whole as select unnest($scans::integer[]) as scan", {"scans": [scan for scan, _ in whole]}
            )
            kind = RowKind.SHORT.value
            self._connection.execute(
                f"insert into input select document_hash, {kind} from listed semi join whole using (scan)"
            ).fetchall()
            self._connection.execute("drop table listed")
            self._connection.execute("drop table whole")
        self._num_rows += sum(num_rows for _, num_rows in whole)
        return frozenset(scans[scan - 1] for scan, _ in whole)

    def find_done(self, document_hashes: Sequence[bytes]) -> frozenset[bytes]:
        """Those that have an outcome."""
        if self._num_done == 0:
            return frozenset()
        statement = "select document_hash from pending where document_hash in (select document_hash from done)"
        with _explained(), self._pending(hashes_table(document_hashes)):
            return read_hashes(self._connection.sql(statement).to_arrow_table())

    def count_rows(self, document_hashes: Collection[bytes]) -> dict[bytes, int]:
        """In how many rows each of them stands."""
        if not document_hashes:
            return {}
        statement = "select document_hash, count(*) from input semi join pending using (document_hash) group by all"
        with _explained(), self._pending(hashes_table(list(document_hashes))):
            return {found.bytes: num_rows for found, num_rows in self._connection.execute(statement).fetchall()}

    def count(self) -> dict[RowKind, KindCount]:
        """Of all rows added."""
        counts = {kind: [0, 0, 0, 0, 0] for kind in RowKind}
        num_parts = 1 + (self._num_rows + self._num_done) // _ROWS_PER_PART
        for part in range(num_parts):
            for kind, *found in self._count_part(part, num_parts):
                counts[RowKind(kind)] = [a + b for a, b in zip(counts[RowKind(kind)], found, strict=True)]
        return {kind: KindCount(*found) for kind, found in counts.items()}

    def _count_part(self, part: int, num_parts: int) -> list[tuple[int, ...]]:
        # Numbers of the type that hash() has: with others DuckDB divides numbers of 128 bits, and is 15 times as slow.
        statement = """
            with seen as (
                select document_hash, any_value(kind) as kind, count(*) as num_rows from input
                where hash(document_hash) % $parts::ubigint = $part::ubigint group by document_hash
            ), known as (
                select document_hash, bool_or(is_answered) as is_answered from done
                where hash(document_hash) % $parts::ubigint = $part::ubigint group by document_hash
            )
            select kind, sum(num_rows)::bigint, count(*), count(*) filter (is_answered),
                count(*) filter (not is_answered), (coalesce(sum(num_rows) filter (not is_answered), 0))::bigint
            from seen left join known using (document_hash) group by kind
        """
        with _explained():
            return self._connection.execute(statement, {"parts": num_parts, "part": part}).fetchall()

    def _insert(self, statement: str, lines: pa.Table | pa.RecordBatch) -> None:
        with _explained(), self._pending(lines):
            self._connection.execute(statement).fetchall()

    @contextmanager
    def _pending(self, lines: pa.Table | pa.RecordBatch) -> Iterator[None]:
        self._connection.register("pending", lines)
        try:
            yield
        finally:
            self._connection.unregister("pending")


@contextmanager
def open_tally() -> Iterator[Tally]:
    """A tally that is gone afterwards."""
    with ExitStack() as stack:
        spill_path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bulkinfer-")))
        with _explained():
            connection = stack.enter_context(connect_scratch(spill_path))
        yield Tally(connection)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        raise StoreError(
            f"counting the documents failed ({type(error).__name__}): there is no memory left, and no room in "
            f"{tempfile.gettempdir()} for what does not fit"
        ) from error
    except RuntimeError as error:  # Ctrl-C within a statement
        raise KeyboardInterrupt from error
