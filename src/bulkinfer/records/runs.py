"""Runs and commits."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from bulkinfer.records.outcomes import FailureCode


@dataclass(frozen=True, slots=True)
class Commit:
    """One transaction that is on disk."""

    seq: int
    num_results: int
    num_failures: int
    document_hashes: tuple[bytes, ...]
    """Of the outcomes in it."""
    failure_codes: Mapping[FailureCode, int]
    """Of the failures in it."""
    commit_s: float
    database_bytes: int = 0
    """Size of the database after it, the write-ahead log included."""
    part_hashes: tuple[bytes, ...] = ()
    """Of the answers to parts of documents in it."""


class RunStatus(StrEnum):
    """How a run stands or ended."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    LOCKED = "locked"


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of a duration, in seconds; None where there is no result to take them from."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Latency:
    """Of the results that one run committed."""

    queue: Percentiles = Percentiles()
    first_token: Percentiles = Percentiles()
    total: Percentiles = Percentiles()
