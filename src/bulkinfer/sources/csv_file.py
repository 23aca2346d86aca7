"""CSV and TSV, plain or compressed: a row that does not fit the header is a value, and the next is read.

Python's csv module parses. It reads line by line, so that each row has the number of the line with which it begins,
and a quote that nobody closes can be told from a long text: its row fails alone, and the lines that it would have
swallowed are read again as rows of their own. (Arrow's reader counts rows, not lines, and ends at a broken quote.)
"""

import csv
import hashlib
import io
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count, islice

from bulkinfer.errors import InputError
from bulkinfer.records import CsvDialect, Document, SourceFile, UnreadableRow
from bulkinfer.sources.base import check_unchanged, name_origin
from bulkinfer.sources.csv_rows import LongRows, list_parameters
from bulkinfer.sources.lines import MAX_LINE_CHARS, MAX_ROW_LINES, Lines, detect_encoding, open_text
from bulkinfer.sources.streams import RawFile, explained, open_raw, open_stream

_HEAD_BYTES = 1 << 16
_PROBE_ROWS = 20
_DELIMITERS = ",;\t|"


class CsvSource:
    """A file of separated values. All values are texts; rows are numbered by line from 1; blank lines are no rows."""

    def __init__(self, file: SourceFile, fields: frozenset[str] | None, id_field: str | None) -> None:
        self._file = file
        self._fields = fields
        self._id_field = id_field
        self._raw: RawFile | None = None

    def iter_rows(self, wanted: Iterator[int] | None = None) -> Iterator[Document | UnreadableRow]:
        """Yield one row for each row below the header, or for the wanted ones. Raises InputError; see `Source`."""
        raw = open_raw(self._file)
        self._raw = raw
        with self._open_table(raw) as table:
            if table is not None:
                columns = self._choose_columns(table)
                target = None if wanted is None else next(wanted, None)
                for row in table.iter_rows():
                    if wanted is None:
                        yield self._read_row(row, table.names, columns)
                        continue
                    while target is not None and target < row.number:
                        target = next(wanted, None)
                    if target is None:
                        break
                    if target == row.number:
                        yield self._read_row(row, table.names, columns)
        check_unchanged(self._file)

    def bytes_read(self) -> int:
        """Bytes of the file as it lies on disk, packed if it is; see `Source`."""
        return 0 if self._raw is None else min(self._raw.num_bytes_read, self._file.size_bytes)

    def read_field_names(self) -> frozenset[str]:
        """The names in the header; see `Source`. Raises InputError where one that is needed stands for two columns."""
        with self._open_table(open_raw(self._file)) as table:
            if table is None:
                return frozenset()
            self._choose_columns(table)
            return frozenset(table.names)

    @contextmanager
    def _open_table(self, raw: RawFile) -> Iterator["_Table | None"]:
        """None for a file without a line."""
        lines: Lines | None = None
        with (
            explained(self._file, lambda: lines.number if lines else 0),
            open_stream(self._file, raw) as stream,
            ExitStack() as again,
        ):
            head: bytes = stream.peek(_HEAD_BYTES)[:_HEAD_BYTES]  # type: ignore[attr-defined]  # all of ours have it
            encoding = self._file.format.encoding or detect_encoding(head)
            dialect = self._file.format.csv
            if dialect.delimiter is None:
                dialect = _with_delimiter(dialect, _find_delimiter(head, encoding, dialect))
            text = open_text(stream, encoding)
            lines = Lines(text, lambda: self._open_again(again, encoding))
            try:
                table = _Table.open(lines, dialect)
                if table is not None and not table.names:
                    fault = table.first.fault if table.first else None
                    raise InputError(f"{self._file.name}: the header line cannot be read: {fault or 'it is blank'}")
                yield table
            except UnicodeError as error:
                raise InputError(
                    f"{self._file.name}: not {encoding} after line {lines.number} ({type(error).__name__}). "
                    "Name its encoding in input.csv.encoding, or get the file again"
                ) from error
            finally:
                text.detach()

    def _open_again(self, opened: ExitStack, encoding: str) -> io.TextIOBase:
        """The file from its beginning; what was opened so before is closed."""
        opened.close()
        self._raw = open_raw(self._file)
        text = open_text(opened.enter_context(open_stream(self._file, self._raw)), encoding)
        opened.callback(text.detach)
        return text

    def _choose_columns(self, table: "_Table") -> list[tuple[str, int]]:
        """Name and place of those that are needed. Raises InputError for one that is not said by its name."""
        named = {self._id_field} if self._fields is None else self._fields | {self._id_field}
        doubled = next((name for name in table.names if name in named and name in table.doubled), None)
        if doubled is not None:
            raise InputError(f"{self._file.name}: two columns are named {doubled!r}. Rename one of them")
        return [(name, place) for place, name in enumerate(table.names) if self._fields is None or name in named]

    def _read_row(
        self, row: "_Row", names: Sequence[str], columns: Sequence[tuple[str, int]]
    ) -> Document | UnreadableRow:
        fault = row.fault
        if fault is None and len(row.values) != len(names):
            fault = f"{_count(len(row.values), 'value')} where the header has {len(names)}"
        if fault is None:
            needed = {name: row.values[place] for name, place in columns}
            if all(map(_is_text, needed.values())):
                return self._create_document(row.number, needed)
            fault = "bytes that are no text in the file's encoding; see input.csv.encoding"
        digest = hashlib.sha256("".join(row.lines).encode("utf-8", "surrogatepass")).digest()[:16]
        origin = name_origin(self._file.name, row.number, None)
        return UnreadableRow(origin, digest, f"{self._file.name}, line {row.number}: {fault}")

    def _create_document(self, number: int, needed: dict[str, str]) -> Document:
        id_value = None if self._id_field is None else needed.get(self._id_field) or None
        if self._id_field is not None and self._fields is not None and self._id_field not in self._fields:
            needed.pop(self._id_field, None)
        return Document(name_origin(self._file.name, number, id_value), needed)


@dataclass(frozen=True, slots=True)
class _Row:
    number: int
    """Of its first line."""
    values: Sequence[str]
    lines: Sequence[str]
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class _Table:
    names: Sequence[str]
    """All different: the second column of a name has a number behind it."""
    lines: Lines
    dialect: CsvDialect
    first: "_Row | None"
    """Of a table without a header: the row that was read instead. Of one without names: the header that is none."""
    doubled: frozenset[str] = frozenset()
    """Names that the header has more than once."""

    @classmethod
    def open(cls, lines: Lines, dialect: CsvDialect) -> "_Table | None":
        rows = _iter_rows(lines, dialect, len(dialect.columns) or None)
        first = next(rows, None)
        if first is None:
            return None
        if dialect.columns or first.fault:
            return cls(dialect.columns, lines, dialect, first)
        names = [_printable(name.strip()) or f"column_{place}" for place, name in enumerate(first.values, 1)]
        doubled = frozenset(name for name, number in Counter(names).items() if number > 1)
        return cls(_number_doubled(names), lines, dialect, None, doubled)

    def iter_rows(self) -> Iterator[_Row]:
        if self.first is not None:
            yield self.first
        yield from _iter_rows(self.lines, self.dialect, len(self.names))


def _iter_rows(lines: Lines, dialect: CsvDialect, num_values: int | None = None) -> Iterator[_Row]:
    """`num_values`: of a row; None where nothing tells it yet."""
    csv.field_size_limit(2 * MAX_LINE_CHARS)  # of the whole process; its default of 131,072 is less than a document
    reader = csv.reader(lines, strict=True, **list_parameters(dialect))
    passer = None if num_values is None else LongRows(lines, dialect, num_values)
    while True:
        lines.begin_row()
        first = lines.number + 1
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error:
            if not lines.taken:
                return
            if lines.is_cut:
                fault = f"longer than {MAX_LINE_CHARS:,} characters"
            elif lines.is_full and passer is not None and passer.pass_over(first):
                fault = f"longer than {MAX_LINE_CHARS:,} characters or {MAX_ROW_LINES:,} lines"
            else:
                fault = _explain_quote(len(lines.taken))
                lines.give_back_all_but_first()
            yield _Row(first, (), lines.taken, fault)
            continue
        if lines.is_cut:
            yield _Row(first, (), lines.taken, f"longer than {MAX_LINE_CHARS:,} characters")
        elif values and not (len(values) == 1 and not values[0].strip() and not lines.taken[0].strip()):
            yield _Row(first, values, lines.taken)


def _number_doubled(names: Sequence[str]) -> list[str]:
    """The first column of a name keeps it; of the others each gets the next number that no column has, from 2."""
    taken = set(names)
    seen: set[str] = set()
    numbers: dict[str, Iterator[int]] = defaultdict(lambda: count(2))
    numbered: list[str] = []
    for name in names:
        own = name
        if name in seen:
            own = next(free for number in numbers[name] if (free := f"{name}_{number}") not in taken)
        seen.add(name)
        taken.add(own)
        numbered.append(own)
    return numbered


def _explain_quote(num_lines: int) -> str:
    if num_lines >= MAX_ROW_LINES:
        return f"a quote that nothing closes within {MAX_ROW_LINES:,} lines"
    return "a quote that nothing closes, or with more behind it before the next delimiter"


def _with_delimiter(dialect: CsvDialect, delimiter: str) -> CsvDialect:
    return CsvDialect(delimiter, dialect.quote, dialect.escape, dialect.columns)


def _find_delimiter(head: bytes, encoding: str, dialect: CsvDialect) -> str:
    """The one that divides most of the first rows into as many values as the first row, and into the most."""
    lines = head.decode(encoding, "replace").removeprefix("\ufeff").splitlines(keepends=True)
    if len(lines) > 1:
        lines.pop()  # it may be cut
    return max(_DELIMITERS, key=lambda delimiter: _rate_delimiter(lines, _with_delimiter(dialect, delimiter)))


def _rate_delimiter(lines: Sequence[str], dialect: CsvDialect) -> tuple[int, int]:
    """How well it divides; of equal ones the first in the list is taken."""
    try:
        widths = [len(row) for row in islice(csv.reader(lines, **list_parameters(dialect)), _PROBE_ROWS) if row]
    except csv.Error:
        widths = [len(line.split(dialect.delimiter)) for line in lines[:_PROBE_ROWS]]
    if not widths or widths[0] < 2:
        return 0, 0
    return sum(width == widths[0] for width in widths), widths[0]


def _printable(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()


def _is_text(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
