"""The rows of a job's input, in order, each with what it ended with.

A file that is as the run saw it is matched by row numbers, as a run does that resumes. Any other is read again, and its
rows are matched by what they hold: an answer never gets to a row that it was not made for.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import count, groupby, islice
from typing import Any

import orjson
import pyarrow as pa

from bulkinfer.errors import JobError
from bulkinfer.export.inputs import JobInput
from bulkinfer.fingerprint import hash_document
from bulkinfer.records import Document, SourceFile, UnreadableRow
from bulkinfer.sources import digest_condition
from bulkinfer.store import (
    LINE,
    STATUS,
    AnyReader,
    Form,
    ListedRun,
    ListedScan,
    RowStatus,
    find_answers,
    is_listed_as,
    iter_listed,
)

_CHOICES = frozenset({"where", "sample", "last_row", "images", "files_before"})
"""Keys of a layout that say which rows are the job's, or how images and the files before stand; see `sources.choosing`,
`stamps` and `custom_ids`."""

_TIDINGS = frozenset({"at", "rule"})
"""Of a condition: when it was looked at, and by which rule; no choice of the job."""


class Match(Enum):
    """How the rows of a file get what they ended with."""

    BY_ROW = auto()
    BY_CONTENT = auto()
    WITHOUT_FILE = auto()
    """The file is gone: only what the run has listed of it is left."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file of the input."""

    name: str
    match: Match
    file: SourceFile | None
    scan: ListedScan | None
    note: str | None = None
    """What people should know of it."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some rows of one file."""

    part: Part
    rows: Sequence[int]
    answers: pa.Table
    """A line for each of them: `document_id`, `document_hash`, and the columns of the form."""


def match_files(run: ListedRun, found: JobInput) -> list[Part]:
    """Decide for each file of the input, and for each that the run has read and is gone. Raises JobError.

    A file that is there, and of which the job chooses nothing any more, has no part in it.
    """
    scans = {scan.source: scan for scan in run.scans}
    parts = [_match_file(file, scans.pop(file.name, None), found) for file in found.files]
    gone = [
        Part(
            scan.source,
            Match.WITHOUT_FILE,
            None,
            scan,
            f"{scan.source}: is not there any more: its rows come without columns of their own",
        )
        for scan in scans.values()
        if scan.source not in found.left_out
    ]
    return parts + gone


def iter_stretches(
    reader: AnyReader, run: ListedRun, parts: Sequence[Part], found: JobInput, form: Form
) -> Iterator[Stretch]:
    """All rows. Raises InputError as sources do, StoreError when the database cannot be read."""
    for is_by_content, group in groupby(parts, lambda part: part.match is Match.BY_CONTENT):
        if is_by_content:
            for part in group:
                yield from _iter_by_content(reader, run, part, found, form)
        else:
            yield from _iter_by_row(reader, run, list(group), found, form)


def _match_file(file: SourceFile, scan: ListedScan | None, found: JobInput) -> Part:
    if scan is None:
        note = f"{file.name}: the newest run has not read it: its rows were looked up by content"
        return Part(file.name, Match.BY_CONTENT, file, None, note)
    if is_listed_as(scan, file) or is_listed_as(scan, _forget_images(file)):
        return Part(file.name, Match.BY_ROW, file, scan)
    change = _describe_change(scan, file)
    before, now = (found.later_fields.union(_split_layout(layout)[0][0]) for layout in (scan.layout, found.layout))
    if before != now:
        raise JobError(
            f"{file.name}: {change or 'it may have changed'} since the run read it, and so did the fields that the "
            "job's prompt uses, so its rows cannot be told apart; run the job first"
        )
    told = f"{file.name}: {change} since the run read it: its rows were matched by content" if change else None
    return Part(file.name, Match.BY_CONTENT, file, scan, told)


def _forget_images(file: SourceFile) -> SourceFile:
    """As runs saw it that looked at no images: their answers are of whatever was there."""
    kept = [orjson.dumps(said).decode() for said in _leave_out("images", _read_layout(file.choice))]
    return replace(file, choice="".join(kept))


def _describe_change(scan: ListedScan, file: SourceFile) -> str | None:
    if scan.identity[2:] != (file.size_bytes, file.mtime_ns, file.ctime_ns, file.inode):
        return "it changed"
    _, *before = _split_layout(scan.layout)
    reading, choice = _split_layout(file.layout), _split_layout(file.choice)
    if before == reading + choice:
        return None
    if _leave_out("images", before) == _leave_out("images", reading + choice):
        is_sure = all(said.get("is_settled", True) for said in before + choice)
        return "images that its rows name changed" if is_sure else None
    if _leave_out("files_before", before) == _leave_out("files_before", reading + choice):
        has_both = len(before) == len(reading + choice)  # a run of before had none
        return "a file before it, whose custom_ids come first, changed" if has_both else None
    if before[: len(reading)] != reading or not all(_CHOICES & said.keys() for said in before[len(reading) :]):
        return "the way in which the job reads it (input.format and the like) changed"
    return "what the job chooses of it (input.where, input.sample, input.limit) changed"


def _leave_out(key: str, layout: list[Any]) -> list[Any]:
    return [said for said in layout if key not in said]


def _split_layout(text: str) -> list[Any]:
    """The texts of a layout, but for when and how a condition was looked at."""
    return [_leave_out_tidings(said) if isinstance(said, dict) else said for said in _read_layout(text)]


def _leave_out_tidings(said: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in said.items() if key not in _TIDINGS}
    if "where" in said and "rule" not in said:  # the layouts before had the condition itself
        kept["where"] = digest_condition(said["where"])
    return kept


def _read_layout(text: str) -> list[Any]:
    """JSON texts, one behind the other."""
    found = []
    decoder = json.JSONDecoder()
    place = 0
    while place < len(text):
        said, place = decoder.raw_decode(text, place)
        found.append(said)
    return found


def _iter_by_row(
    reader: AnyReader, run: ListedRun, parts: Sequence[Part], found: JobInput, form: Form
) -> Iterator[Stretch]:
    """What the run has listed, then what it has not come to."""
    scans = [part.scan for part in parts if part.scan is not None]
    listed = _split_by_scan(iter_listed(reader, run, scans, form))
    waiting = next(listed, None)
    for number, part in enumerate(parts, start=1):
        last_row = 0
        while waiting is not None and waiting[0] == number:
            rows = waiting[1].column("row").to_pylist()
            last_row = rows[-1]
            yield Stretch(part, rows, waiting[1])
            waiting = next(listed, None)
        if part.file is not None and part.scan is not None:
            yield from _iter_behind(run, part, found, form, last_row)


def _iter_behind(run: ListedRun, part: Part, found: JobInput, form: Form, last_row: int) -> Iterator[Stretch]:
    """Rows of a file that the run has not read to its end."""
    assert part.file is not None
    if part.scan is not None and part.scan.is_complete:
        return
    source = found.open(part.file, frozenset())
    rows = source.iter_rows(count(last_row + 1))
    while some := list(islice(rows, run.block_rows)):
        numbers = [row.origin.row for row in some]
        yield Stretch(part, numbers, _make_pending(run, some, form))


def _iter_by_content(reader: AnyReader, run: ListedRun, part: Part, found: JobInput, form: Form) -> Iterator[Stretch]:
    assert part.file is not None
    rows = found.open(part.file, found.fields).iter_rows()
    while some := list(islice(rows, run.block_rows)):
        hashes = [_hash(row) for row in some]
        answers = find_answers(reader, run, hashes, form)
        places = {text: place for place, text in enumerate(answers.column("document_hash").to_pylist())}
        taken = answers.take(pa.array([places[digest] for digest in hashes], pa.int64()))
        yield Stretch(part, [row.origin.row for row in some], _replace_ids(taken, some))


def _hash(row: Document | UnreadableRow) -> str:
    """As a UUID is written; the class takes five times as long."""
    digits = (hash_document(row.identity) if isinstance(row, Document) else row.digest).hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _replace_ids(answers: pa.Table, rows: Sequence[Document | UnreadableRow]) -> pa.Table:
    """The id may be another where the content is the same."""
    ids = pa.array([row.origin.document_id for row in rows], pa.string())
    return answers.set_column(answers.schema.get_field_index("document_id"), "document_id", ids)


def _make_pending(run: ListedRun, rows: Sequence[Document | UnreadableRow], form: Form) -> pa.Table:
    """Lines for rows without an outcome."""
    columns: dict[str, pa.Array] = {
        "document_id": pa.array([row.origin.document_id for row in rows], pa.string()),
        "document_hash": pa.nulls(len(rows), pa.string()),
    }
    for name in form.columns:
        columns[name] = pa.nulls(len(rows), pa.string() if name == LINE else run.type_of(name))
    columns[STATUS] = pa.array([RowStatus.PENDING.value] * len(rows), pa.string())
    if form.names is not None:
        columns[LINE] = pa.array([_pending_line(form)] * len(rows), pa.string())
    return pa.table(columns)


def _pending_line(form: Form) -> str:
    values: Mapping[str, str | None] = {
        name: RowStatus.PENDING.value if field == STATUS else None for name, field in form.named.items()
    }
    return orjson.dumps(values).decode()


def _split_by_scan(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """The rows of one scan at a time, with its number."""
    for batch in batches:
        scans = batch.column("scan").to_numpy()
        start = 0
        while start < len(scans):
            end = int(scans.searchsorted(scans[start], side="right"))
            yield int(scans[start]), pa.Table.from_batches([batch.slice(start, end - start)])
            start = end
