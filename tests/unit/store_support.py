"""What the store's tests share: records with sensible defaults, and small runs that go through the store alone."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

from bulkinfer.records import (
    DocumentRow,
    Failure,
    FailureCode,
    Only,
    Origin,
    Outcome,
    Result,
    RunStatus,
    Scan,
    SourceFile,
)
from bulkinfer.store import CommitLimits, Reader, RunRecord, RunSelection, Sample, Store, TaskRecord

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
TASK = TaskRecord(UUID("11111111-1111-1111-1111-111111111111"), '{"model": "m"}')
OTHER_TASK = TaskRecord(UUID("22222222-2222-2222-2222-222222222222"), '{"model": "n"}')
QUICK = CommitLimits(retry_waits_s=(0.0, 0.0, 0.0), lock_wait_s=0.0, stall_limit_s=20.0)
"""For tests that meet an error: no pauses."""


def hash_of(text: str) -> bytes:
    """A document's hash, made from any text."""
    return hashlib.sha256(text.encode()).digest()[:16]


def make_result(text: str, output: str | None = None, value: str | None = None, attempts: int = 1) -> Result:
    """The answer to the document `text`."""
    return Result(
        document_hash=hash_of(text),
        output=f"answer to {text}" if output is None else output,
        value=value,
        finish_reason="stop",
        prompt_tokens=10,
        cached_tokens=4,
        output_tokens=3,
        queue_s=0.5,
        first_token_s=1.0,
        total_s=2.0,
        attempts=attempts,
        completed_at=NOW,
    )


def make_failure(
    text: str, code: FailureCode = FailureCode.TRUNCATED, attempts: int = 1, failed_at: datetime = NOW, row: int = 1
) -> Failure:
    """Why the document `text` has no answer."""
    return Failure(
        document_hash=hash_of(text),
        origin=Origin("a.jsonl", row, f"id-{text}"),
        code=code,
        message="cut at 3 tokens",
        raw_output="half an ans",
        attempts=attempts,
        retryable=False,
        failed_at=failed_at,
    )


def make_file(name: str = "a.jsonl", size_bytes: int = 100, mtime_ns: int = 1, inode: int = 7) -> SourceFile:
    """An input file as a source found it."""
    return SourceFile(Path("/data") / name, name, size_bytes, mtime_ns, mtime_ns, inode)


def make_run(name: str = "job") -> RunRecord:
    """A run that begins now."""
    return RunRecord(uuid4(), name, f"/jobs/{name}.yaml", NOW)


def make_rows(scan: Scan, texts: Sequence[str]) -> list[DocumentRow]:
    """The rows of a file that holds these documents."""
    return [DocumentRow(scan.scan_id, row, hash_of(text), f"{text}@{row}") for row, text in enumerate(texts, start=1)]


def answer(text: str) -> Outcome:
    """Documents that begin with "bad" fail, all others are answered."""
    return make_failure(text) if text.startswith("bad") else make_result(text)


def make_sample(elapsed_s: float = 0.0, **counts: float) -> Sample:
    """How a run stood, all zero but for what is given."""
    zeros = dict.fromkeys(Sample.__dataclass_fields__, 0)
    return Sample(**{**zeros, "elapsed_s": elapsed_s, **counts})  # type: ignore[arg-type]  # counts are whole numbers


def run_job(
    database: Path,
    files: Mapping[str, Sequence[str]],
    *,
    name: str = "job",
    task: TaskRecord = TASK,
    only: Only = Only.NEW,
    layout: str = "body",
    decide: Callable[[str], Outcome] = answer,
) -> set[str]:
    """A whole run over files of documents, in the order given; returns the documents that it had to ask.

    A file changes its mtime exactly when its documents change.
    """
    store = Store.open(database)
    sources = [make_file(file, mtime_ns=int.from_bytes(hash_of(repr(texts))[:7])) for file, texts in files.items()]
    scans = store.begin_run(make_run(name), task, sources, layout)
    asked: set[str] = set()
    for scan, texts in zip(scans, files.values(), strict=True):
        store.add_rows(make_rows(scan, texts)[scan.num_known_rows :])
        done = store.find_done([hash_of(text) for text in texts], RunSelection(only))
        to_do = {text for text in texts if hash_of(text) not in done}
        store.add([decide(text) for text in sorted(to_do)])
        store.flush()
        asked |= to_do
    store.end_run(RunStatus.COMPLETED, 0, {"asked": len(asked)})
    store.close()
    return asked


def select(database: Path, sql: str) -> list[tuple[object, ...]]:
    """All rows that a statement returns."""
    with Reader.open(database) as reader:
        return list(reader.query(sql).rows)
