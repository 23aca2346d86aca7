"""How the bytes of an input file become rows, and which of the rows belong to a job."""

from dataclasses import dataclass
from enum import StrEnum


class FormatKind(StrEnum):
    """What a file holds."""

    PARQUET = "parquet"
    JSONL = "jsonl"
    CSV = "csv"
    TEXT = "text"
    """One document: the whole file."""
    ARROW = "arrow"
    """Arrow IPC, as a file (Feather 2) or as a stream."""
    OPENAI = "openai"
    """Requests of OpenAI's batch API, one a line."""
    QUERY = "query"
    """What a query of the job's own gave, written down by this process."""


class Packing(StrEnum):
    """What its bytes are packed with."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True)
class CsvDialect:
    """How a file of separated values is written."""

    delimiter: str | None = None
    """None: found out from the first lines."""
    quote: str = '"'
    """Empty: there are no quotes."""
    escape: str | None = None
    """What stands before a quote within a quoted value; None: the quote is doubled."""
    columns: tuple[str, ...] = ()
    """The names of the columns where the file has no header line."""


PLAIN_CSV = CsvDialect()
"""As nearly all are written."""


@dataclass(frozen=True, slots=True)
class OpenAiFile:
    """What requests of a batch file have to say to be the job's."""

    url: str
    """Their endpoint, such as /v1/chat/completions."""
    models: tuple[str, ...]
    """Names that stand for the job's model."""


@dataclass(frozen=True, slots=True)
class FileFormat:
    """What a file holds, and how it is written."""

    kind: FormatKind
    packing: Packing = Packing.NONE
    csv: CsvDialect = PLAIN_CSV
    encoding: str | None = None
    """Of CSV and text, by Python's name; None: what a byte order mark says, else UTF-8."""
    openai: OpenAiFile | None = None
    """Of a batch file."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows of a file belong to the job. No condition leaves out rows that cannot be read."""

    where: str | None = None
    """A condition in SQL over the columns."""
    sample_bar: int | None = None
    """Rows whose key is not above it; keys are spread evenly over 64 bits. None: all rows."""
    sample_seed: int = 0
    last_row: int | None = None
    """Rows up to this number."""
