"""Input rows: the files that they are in, what was read of them, and what the store knows of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from bulkinfer.records.formats import FileFormat, FormatKind, Selection
from bulkinfer.records.images import ImageFields, ImageFile, SeenImage

PLAIN_JSONL = FileFormat(FormatKind.JSONL)
JsonValue = str | int | float | bool | None | Sequence["JsonValue"] | Mapping[str, "JsonValue"]
"""A value as JSON has it. Sources turn everything else (dates, decimals, UTF-8 bytes, NaN) into one of these."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a document comes from."""

    source: str
    """The file, as the job file names it: relative to the job file where the job says so."""
    row: int
    """From 1; in JSONL and CSV the number of the line with which the row begins."""
    document_id: str
    """The value of the job's `input.id` field, else "<source>:<row>"."""


@dataclass(frozen=True, slots=True)
class DocumentImages:
    """The image files that a document names."""

    files: Mapping[str, SeenImage]
    """By name."""
    identity: Mapping[str, JsonValue]
    """The document's fields, with the keys of the files in place of their names."""

    @property
    def num_bytes(self) -> int:
        """Of those that are images, all together."""
        return sum(one.size_bytes for one in self.files.values() if isinstance(one, ImageFile))


@dataclass(frozen=True, slots=True)
class Document:
    """One input row that could be read."""

    origin: Origin
    fields: Mapping[str, JsonValue]
    """The fields that the prompt uses and that the row has; absent and null are different."""
    images: DocumentImages | None = None
    """Where it names image files."""

    @property
    def identity(self) -> Mapping[str, JsonValue]:
        """What makes it the same document as another."""
        return self.fields if self.images is None else self.images.identity


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """One input row that could not be read. It becomes a failure, never a stop."""

    origin: Origin
    digest: bytes
    """16 bytes, of the row as it stands: a mended row is a new document."""
    reason: str
    """Names file, line and what is wrong; never quotes the row."""
    parameter: str | None = None
    """Of a request: which of its parameters is at fault."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One input file, with what tells whether it changed since it was last read."""

    path: Path
    name: str
    """How it is named in the store and in messages; see `Origin.source`."""
    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    format: FileFormat = PLAIN_JSONL
    url: str = ""
    """Of a file elsewhere, which has no path; its `inode` is made of what tells its content from another."""
    keeper: object | None = field(default=None, compare=False, repr=False)
    """Of a file that this process has written for itself: as long as somebody has it, the path leads there."""
    custom_ids: object | None = field(default=None, compare=False, repr=False)
    """Of a batch file among several: the names that their requests have, which all of them share."""
    selection: Selection | None = None
    """None: all rows."""
    layout: str = ""
    """JSON text of what else of the job's section `input` decides how its rows are read; empty by default."""
    choice: str = ""
    """The same of which of them belong to the job, of how the image files that they name stand, and of the files before
    it where their names count."""
    images: ImageFields | None = None
    """Where its documents name images, which count by their content; None: nowhere, or names are left as they are."""


@dataclass(frozen=True, slots=True)
class Scan:
    """One reading of one source file for one job, as the store knows it."""

    scan_id: UUID
    source: SourceFile
    num_known_rows: int
    """Rows 1 to this are in the store already, from an earlier run over the same unchanged file."""
    is_complete: bool = False
    """The file has no other rows than those."""
    is_settled: bool = True
    """The file's times prove that those rows are as they were read."""


@dataclass(frozen=True, slots=True)
class KnownSpan:
    """Rows of one scan that are in the store: those after `after`, up to `last_row`."""

    scan_id: UUID
    after: int
    last_row: int


@dataclass(frozen=True, slots=True)
class WantedRows:
    """Of one span, the rows whose document a run has to ask."""

    num_rows: int
    """Rows that the span has; less than its numbers where lines of a file are blank."""
    rows: Sequence[int]
    """Those that are wanted, ascending."""
    places: Sequence[int]
    """Of each of these: the how-manieth row of the span it is, from 1."""


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """The line that one input row gets in `documents`."""

    scan_id: UUID
    row: int
    document_hash: bytes
    document_id: str
