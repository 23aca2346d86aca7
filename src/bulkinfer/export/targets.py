"""Where an export goes: its format, by the ending of the file or by name, and how the bytes get there."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bulkinfer.errors import InputError, JobError
from bulkinfer.job import Job
from bulkinfer.records import ExportFormat, SourceFile
from bulkinfer.sources import find_named_files, takes_in
from bulkinfer.store import replacing
from bulkinfer.store.paths import lock_path, wal_path

STDOUT = "-"


_ENDINGS = {
    ".openai.jsonl": ExportFormat.OPENAI,
    ".parquet": ExportFormat.PARQUET,
    ".pq": ExportFormat.PARQUET,
    ".jsonl": ExportFormat.JSONL,
    ".ndjson": ExportFormat.JSONL,
    ".jsonl.gz": ExportFormat.JSONL,
    ".ndjson.gz": ExportFormat.JSONL,
    ".csv": ExportFormat.CSV,
    ".arrow": ExportFormat.ARROW,
    ".ipc": ExportFormat.ARROW,
    ".feather": ExportFormat.ARROW,
}
_ON_STDOUT = (ExportFormat.JSONL, ExportFormat.CSV)
"""What a reader of a pipe takes line by line."""


@dataclass(frozen=True, slots=True)
class Target:
    """One export."""

    path: Path | None
    """None: standard output."""
    format: ExportFormat
    is_packed: bool = False
    """With gzip."""

    @property
    def error_path(self) -> Path:
        """Of OpenAI's format: the file of the requests that failed, beside the other."""
        assert self.path is not None
        ending = next((ending for ending in _ENDINGS if self.path.name.lower().endswith(ending)), self.path.suffix)
        stem = self.path.name[: len(self.path.name) - len(ending)] if ending else self.path.name
        return self.path.with_name(f"{stem}_errors{self.path.name[len(stem) :]}")

    def describe(self) -> str:
        """For people."""
        return "standard output" if self.path is None else str(self.path)


def parse_target(path: Path, export_format: ExportFormat | None = None, *, may_be_told: bool = True) -> Target:
    """What `--to` and `--format` mean together. Raises JobError when they leave the format open, or do not fit.

    `may_be_told`: whether there is a `--format`.
    """
    if str(path) == STDOUT:
        if export_format not in _ON_STDOUT:
            raise JobError(f"--to -: standard output takes {' or '.join(_ON_STDOUT)}; say which with --format")
        return Target(None, export_format)
    name = path.name.lower()
    found = next((known for ending, known in _ENDINGS.items() if name.endswith(ending)), None)
    chosen = export_format or found
    if chosen is None:
        raise JobError(
            f"{path}: the ending says the format, and must be .parquet, .jsonl, .jsonl.gz or .csv, "
            ".arrow (or .feather), or .openai.jsonl" + may_be_told * "; --format says it for any other"
        )
    is_packed = name.endswith(".gz")
    if is_packed and chosen is not ExportFormat.JSONL:
        raise JobError(f"{path}: only JSONL is packed with gzip; leave out .gz")
    return Target(path, chosen, is_packed=is_packed)


def check_target(target: Target, job: Job) -> None:
    """Refuse to write over what must stay: the input, the database and what belongs to it, the job. Raises JobError.

    And to write what the next run would read as input.
    """
    if target.path is None:
        return
    files: list[SourceFile] = []
    with suppress(InputError):  # what cannot be found cannot be lost
        files = find_named_files(job)
    database = job.database_path
    kept = {
        **{file.path: "a file of the input" for file in files},
        **dict.fromkeys((database, wal_path(database), lock_path(database)), "the job's database"),
        job.path: "the job file",
    }
    written = [target.path, target.error_path] if target.format is ExportFormat.OPENAI else [target.path]
    for path in written:
        for other, what in kept.items():
            if path == other or (path.exists() and other.exists() and path.samefile(other)):
                raise JobError(f"--to: {path} is {what}, and would be lost; name another file")
        with suppress(InputError):
            if takes_in(job, path):
                raise JobError(
                    f"--to: input.path takes in {path}: the next run would read the export as documents; name a file "
                    "elsewhere, or with another ending"
                )


@contextmanager
def open_target(path: Path | None) -> Iterator[IO[bytes]]:
    """A file that appears whole or not at all, or standard output."""
    if path is not None:
        with replacing(path) as stream:
            yield stream
        return
    sys.stdout.flush()
    yield _Stdout()  # type: ignore[misc]  # what is written to is all that is asked of it


class _Stdout:
    """Standard output for bytes of UTF-8; what becomes of a pipe that nobody reads is the stream's own business."""

    closed = False

    def write(self, content: bytes) -> int:
        sys.stdout.write(bytes(content).decode())
        return len(content)

    def flush(self) -> None:
        sys.stdout.flush()
