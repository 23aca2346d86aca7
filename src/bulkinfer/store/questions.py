"""What a run asks of its store while it writes. Each answer is as of the last commit, in bounded memory."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

import duckdb

from bulkinfer.records import (
    DocumentRow,
    FailureCode,
    KnownSpan,
    Latency,
    Only,
    PartAnswer,
    Scan,
    SourceFile,
    WantedRows,
)
from bulkinfer.store import history, lookups, runs
from bulkinfer.store.lookups import DocumentCounts, RunSelection
from bulkinfer.store.runs import RunRecord, TaskRecord

_T = TypeVar("_T")


class Questions(ABC):
    """The lookups of a store in which a run has begun. All raise StoreError; any thread may ask."""

    def find_done(self, document_hashes: Sequence[bytes], selection: RunSelection) -> frozenset[bytes]:
        """Those of the hashes that this run must not ask, as far as it is on disk.

        NEW: those with a result, or a failure for good, of this task. FAILED: those with a result, and those that never
        failed. A code: likewise, where the newest failure has that code. A failure of this very run is never asked
        again. With `failed_task`, failures are those of that task, and a result of either is one.
        """
        run, task = self._begun()
        return self._read(
            lambda cursor: lookups.find_done(cursor, run.run_id, task.task_fingerprint, document_hashes, selection)
        )

    def find_parts(self, part_hashes: Sequence[bytes], *, accepts_cut: bool = False) -> dict[bytes, PartAnswer]:
        """Those of the parts of documents that this task has on disk, by hash; cut ones only where they count."""
        _, task = self._begun()
        fingerprint = task.task_fingerprint
        return self._read(lambda cursor: lookups.find_parts(cursor, fingerprint, part_hashes, accepts_cut=accepts_cut))

    def find_wanted(self, spans: Sequence[KnownSpan], selection: RunSelection) -> list[WantedRows]:
        """For each span, the rows whose document `find_done` would not name. What is not wanted now never will be."""
        run, task = self._begun()
        return self._read(
            lambda cursor: lookups.find_wanted(cursor, run.run_id, task.task_fingerprint, spans, selection)
        )

    def find_unsettled(self, name: str, files: Sequence[SourceFile], layout: str) -> list[Scan]:
        """Scans that list rows, or that there are none, where the files' times do not prove that it still is so.

        Of the files of a job's run that is about to begin.
        """
        scans = self._read(lambda cursor: runs.find_scans(cursor, name, files, layout, is_unsettled=True))
        return [scan for scan in scans if scan is not None and (scan.num_known_rows or scan.is_complete)]

    def read_rows(self, spans: Sequence[KnownSpan]) -> list[DocumentRow]:
        """The rows that are listed of some spans, in order. May be asked before the run has begun."""
        return self._read(lambda cursor: lookups.read_rows(cursor, spans))

    def count_documents(self, last_rows: Mapping[UUID, int]) -> DocumentCounts:
        """Rows and distinct documents on disk of the given scans, each up to the last row read."""
        return self._read(lambda cursor: lookups.count_documents(cursor, last_rows))

    def count_open_failures(self, last_rows: Mapping[UUID, int]) -> dict[FailureCode, int]:
        """Rows among these whose document failed and has no result of this task, by newest code."""
        _, task = self._begun()
        return self._read(lambda cursor: lookups.count_open_failures(cursor, task.task_fingerprint, last_rows))

    def has_failures(self, task: UUID) -> bool:
        """Whether any document ever failed for the task. May be asked before the run has begun."""
        return self._read(lambda cursor: lookups.has_failures(cursor, task))

    def has_results(self, task: UUID) -> bool:
        """Whether any document has an answer of the task. May be asked before the run has begun."""
        return self._read(lambda cursor: lookups.has_results(cursor, task))

    def has_unasked(self, task: UUID, failed_task: UUID, only: Only) -> bool:
        """Whether the task has no outcome yet for a document that failed so in another. See `has_failures`."""
        return self._read(lambda cursor: lookups.has_unasked(cursor, task, failed_task, only))

    def count_without_outcome(self, last_rows: Mapping[UUID, int]) -> int:
        """Distinct documents of these rows that have neither a result nor a failure of this task."""
        _, task = self._begun()
        return self._read(lambda cursor: lookups.count_without_outcome(cursor, task.task_fingerprint, last_rows))

    def find_speed(self, model: str, revision: str | None = None) -> float | None:
        """Prompt and output tokens per second of this model's last long run with vLLM on this machine."""
        return self._read(lambda cursor: history.find_speed(cursor, model, revision))

    def latency(self) -> Latency:
        """Percentiles of the results that this run has on disk."""
        run, _ = self._begun()
        return self._read(lambda cursor: lookups.read_latency(cursor, run.run_id))

    @abstractmethod
    def _read(self, query: Callable[[duckdb.DuckDBPyConnection], _T]) -> _T:
        """Run a query on committed data. Raises StoreError."""

    @abstractmethod
    def _begun(self) -> tuple[RunRecord, TaskRecord]:
        """The run and its task."""
