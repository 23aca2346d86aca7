"""What a killed run left behind, and whether all of it is right: acknowledged outcomes, the database, processes."""

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bulkinfer.errors import StoreError
from bulkinfer.store import Reader

TAG = "KILLED_RUN"
"""The environment variable by which a run and all that it started are found, whoever their parent is now."""

Row = tuple[object, ...]

_OUTCOMES = ("select document_hash, * from results", "select document_hash, * from failures")
# Each commit record says how many lines of each table it stands for.
_UNCOUNTED = """
    select sum(abs(num_told - num_there))::bigint from (
        select sum(rows) as num_told, (select count(*) from results) as num_there from commits
        union all select sum(failed), (select count(*) from failures) from commits
        union all select sum(document_rows), (select count(*) from document_rows) from commits
    )
"""
# What two runs of the same job must have in common. Times, runs and attempts are a run's own.
_SAME = {
    "documents": "select source, row, document_id, document_hash from documents",
    "answers": """
        select source, row, document_id, document_hash, task_fingerprint, output, value, finish_reason,
            prompt_tokens, cached_tokens, output_tokens
        from answers
    """,
    "results": """
        select document_hash, task_fingerprint, output, value, finish_reason,
            prompt_tokens, cached_tokens, output_tokens
        from results
    """,
    "failures": """
        select document_hash, task_fingerprint, source, row, document_id, code, message, raw_output, retryable
        from failures
    """,
}
# Which answers a model gives may depend on what runs beside a document; that each has one outcome does not.
_SAME_DOCUMENTS = {
    "documents": _SAME["documents"],
    "outcomes": """
        select document_hash, task_fingerprint from results
        union all select document_hash, task_fingerprint from failures
    """,
}


@dataclass(frozen=True, slots=True)
class Journal:
    """What the driver of one run wrote."""

    acknowledged: frozenset[str]
    """Document hashes, as the database writes them."""
    reached: tuple[str, ...]
    """Targets of the points, in their order."""
    killed: tuple[int, ...]
    """Process ids of engines that the driver killed."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All outcomes in a database, by document."""

    results: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    failures: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    num_uncounted: int = 0
    """Lines that no commit record tells of, or that one tells of and that are not there: a part of a commit."""

    @property
    def documents(self) -> frozenset[str]:
        """Those that have an outcome."""
        return frozenset(self.results) | frozenset(self.failures)


@dataclass(frozen=True, slots=True)
class Findings:
    """Documents with which something is wrong."""

    lost: frozenset[str] = frozenset()
    """Acknowledged, or seen on disk before, and now without an outcome."""
    doubled: frozenset[str] = frozenset()
    """With two answers, two failures, or an answer and a failure."""
    changed: frozenset[str] = frozenset()
    """With an outcome that is not what it was."""
    repeated: frozenset[str] = frozenset()
    """Acknowledged although they had an outcome before: asked twice."""
    num_uncounted: int = 0


def read_journal(path: Path) -> Journal:
    """Read it to its last whole line."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    words = [line.split() for line in lines]
    return Journal(
        acknowledged=frozenset(_as_uuid(word) for first, *rest in words if first == "acknowledged" for word in rest),
        reached=tuple(rest[0] for first, *rest in words if first == "reached"),
        killed=tuple(int(rest[0]) for first, *rest in words if first == "killed"),
    )


def read_snapshot(database: Path) -> Snapshot:
    """What is on disk; nothing where there is no database yet, or one that cannot be read."""
    try:
        with Reader.open(database) as reader:
            results, failures = (_group(reader.query(sql).rows) for sql in _OUTCOMES)
            ((num_uncounted,),) = reader.query(_UNCOUNTED).rows
    except StoreError:
        return Snapshot()
    return Snapshot(results, failures, int(str(num_uncounted or 0)))


def compare(before: Snapshot, acknowledged: frozenset[str], now: Snapshot) -> Findings:
    """What is wrong in `now`, given what was there before and what was acknowledged since."""
    return Findings(
        lost=(before.documents | acknowledged) - now.documents,
        doubled=frozenset(
            document
            for document in now.documents
            if len(now.results.get(document, ())) + len(now.failures.get(document, ())) > 1
        ),
        changed=frozenset(
            document for document in before.documents & now.documents if _is_other(before, now, document)
        ),
        repeated=acknowledged & before.documents,
        num_uncounted=now.num_uncounted,
    )


def count_differences(database: Path, undisturbed: Path, *, same_texts: bool = True) -> Mapping[str, int]:
    """By table: rows that one of two finished databases has and the other has not."""
    counts = {}
    with Reader.open(database) as one, Reader.open(undisturbed) as other:
        for name, sql in (_SAME if same_texts else _SAME_DOCUMENTS).items():
            rows, expected = (Counter(reader.query(sql).rows) for reader in (one, other))
            counts[name] = ((rows - expected) + (expected - rows)).total()
    return counts


def find_living(tag: str) -> list[int]:
    """Process ids of all that still lives of one run. One that has ended and is not reaped has no environment."""
    wanted = f"{TAG}={tag}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return [pid for pid in found if pid != os.getpid()]


def wait_for_end(tag: str, limit_s: float = 5.0) -> list[int]:
    """What of a run still lives after so many seconds; waits no longer than it must."""
    until_s = time.monotonic() + limit_s
    while (living := find_living(tag)) and time.monotonic() < until_s:
        time.sleep(0.01)
    return living


def _group(rows: Iterable[Row]) -> dict[str, list[Row]]:
    grouped: dict[str, list[Row]] = {}
    for document, *row in rows:
        grouped.setdefault(str(document), []).append(tuple(row))
    return grouped


def _is_other(before: Snapshot, now: Snapshot, document: str) -> bool:
    """Whether a row of the document is not there as it was."""
    return any(
        Counter(old.get(document, ())) - Counter(new.get(document, ()))
        for old, new in ((before.results, now.results), (before.failures, now.failures))
    )


def _as_uuid(digits: str) -> str:
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
