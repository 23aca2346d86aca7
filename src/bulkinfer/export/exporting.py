"""One export, from the database and the input to the file."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import pyarrow as pa

from bulkinfer.errors import JobError
from bulkinfer.export import batches
from bulkinfer.export.columns import NO_COLUMNS, Columns, as_text_or_nothing, plan_columns
from bulkinfer.export.inputs import find_input
from bulkinfer.export.lines import open_line_writer
from bulkinfer.export.rows import Part, Stretch, iter_stretches, match_files
from bulkinfer.export.tables import choose_table_type, open_table_writer
from bulkinfer.export.targets import Target, check_target, open_target
from bulkinfer.job import Job, JobSpec
from bulkinfer.records import ExportFormat
from bulkinfer.sources import Originals, Shape, find_shape, open_originals
from bulkinfer.store import STATUS, VECTOR, AnyReader, Form, ListedRun, RowStatus, read_listed_run

_TABLE_BYTES = 32 << 20
"""About, of the input's columns that are held at a time."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What of the input is wanted."""

    columns: tuple[str, ...] | None = None
    """By name; None: all."""
    is_only_answered: bool = False


@dataclass(slots=True)
class Exported:
    """What was written."""

    num_rows: int = 0
    by_status: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    """What people should know of it."""

    def describe(self, target: Target) -> str:
        """One line."""
        counts = ", ".join(f"{self.by_status[status]:,} {status}" for status in RowStatus if self.by_status[status])
        where = target.describe()
        if target.format is ExportFormat.OPENAI:
            where += f" and {target.error_path}"
        return f"{self.num_rows:,} rows written to {where}" + (f": {counts}" if counts else "")


class _Writer(Protocol):
    def write(self, stretch: Stretch, originals: Originals | None) -> None:
        """Write one stretch."""


def export_job(reader: AnyReader, job: Job, target: Target, options: ExportOptions) -> Exported:
    """Write every input row of the job, with its columns and with what it ended with.

    Raises JobError: no run of the job, an unknown column, a file that cannot be written; InputError for an input that
    cannot be read; StoreError when the database cannot be. Nothing is written then, and an older file stays.
    """
    run = read_listed_run(reader, job.spec.name)
    found = find_input(job)
    check_target(target, job)
    parts = match_files(run, found)
    exported = Exported(notes=[note for note in (found.note, *(part.note for part in parts)) if note])
    shapes: Mapping[str, Shape] = {}
    columns, form = NO_COLUMNS, Form(_list_batch_fields(run))
    if target.format is ExportFormat.OPENAI:
        if options.columns is not None:
            raise JobError("--columns: OpenAI's files have columns of their own; leave it out, or take another format")
        columns = batches.choose_columns(job.spec)
        shapes = _find_shapes(parts) if columns.originals else {}
    else:
        shapes = _find_shapes(parts)
        planned = plan_columns(list(shapes.values()), run, options.columns, partial(_choose_type, target.format))
        exported.notes += planned.notes
        columns = planned.columns
        form = Form(columns.fields, columns.names if target.format is ExportFormat.JSONL else None)
    with _open_writer(target, columns, job.spec) as writer, ExitStack() as stack:
        opened = _Opened(stack, shapes, columns)
        for stretch in iter_stretches(reader, run, parts, found, form):
            exported.by_status.update(stretch.answers.column(STATUS).to_pylist())
            for piece in _cut(_choose(stretch, options), shapes.get(stretch.part.name)):
                writer.write(piece, opened.originals_of(piece.part))
                exported.num_rows += len(piece.rows)
    return exported


def _list_batch_fields(run: ListedRun) -> tuple[str, ...]:
    return tuple(field for field in (*batches.FIELDS, VECTOR) if field in run.fields)


def _find_shapes(parts: Sequence[Part]) -> Mapping[str, Shape]:
    """Of each file, by its name."""
    return {part.name: find_shape(part.file) for part in parts if part.file is not None}


def _choose_type(export_format: ExportFormat, kind: pa.DataType) -> pa.DataType | None:
    if export_format is ExportFormat.JSONL:
        return None if as_text_or_nothing(kind) is None else kind
    return choose_table_type(export_format, kind)


def _choose(stretch: Stretch, options: ExportOptions) -> Stretch:
    if not options.is_only_answered:
        return stretch
    is_wanted = [status == RowStatus.ANSWERED for status in stretch.answers.column(STATUS).to_pylist()]
    rows = [row for row, wanted in zip(stretch.rows, is_wanted, strict=True) if wanted]
    return Stretch(stretch.part, rows, stretch.answers.filter(pa.array(is_wanted, pa.bool_())))


def _cut(stretch: Stretch, shape: Shape | None) -> Iterator[Stretch]:
    """Pieces whose own columns fit into memory, however long documents are."""
    size = max(1, len(stretch.rows) if shape is None else _TABLE_BYTES // shape.row_bytes)
    for first in range(0, len(stretch.rows), size):
        yield Stretch(stretch.part, stretch.rows[first : first + size], stretch.answers.slice(first, size))


class _Opened:
    """The file that is being read: one at a time, as rows come file by file."""

    def __init__(self, stack: ExitStack, shapes: Mapping[str, Shape], columns: Columns) -> None:
        self._stack = stack
        self._shapes = shapes
        self._columns = columns
        self._part: Part | None = None
        self._originals: Originals | None = None

    def originals_of(self, part: Part) -> Originals | None:
        """None for a file that is not there, or of which no column is wanted."""
        if part is not self._part:
            self._stack.close()
            self._part = part
            self._originals = self._open(part)
        return self._originals

    def _open(self, part: Part) -> Originals | None:
        if part.file is None:
            return None
        shape = self._shapes.get(part.name)
        if shape is None:
            return None
        own = {field.name: field for field in shape.schema}
        wanted = [own[name] for name in self._columns.originals.names if name in own]
        if not wanted:
            return None
        schema = pa.schema(wanted)
        return self._stack.enter_context(open_originals(part.file, shape, schema, is_whole=self._columns.is_whole))


@contextmanager
def _open_writer(target: Target, columns: Columns, spec: JobSpec) -> Iterator[_Writer]:
    if target.format is ExportFormat.OPENAI:
        with batches.open_batch_writer(target, spec) as batch_writer:
            yield batch_writer
        return
    with open_target(target.path) as stream:
        writer: AbstractContextManager[_Writer]
        match target.format:
            case ExportFormat.JSONL:
                writer = open_line_writer(columns, stream, is_packed=target.is_packed)
            case _:
                writer = open_table_writer(target.format, columns, stream)
        with writer as opened:
            yield opened
