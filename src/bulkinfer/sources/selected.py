"""Of a source only the rows that the job chooses: by a condition, by a sample, by their number.

Rows keep their numbers, so that a run that knows them finds them again. A row that cannot be read cannot be judged by a
condition, and is kept; one for which the condition cannot be evaluated becomes unreadable. Neither is lost.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, islice, takewhile

import pyarrow as pa

from bulkinfer.errors import InputError
from bulkinfer.fingerprint import hash_document
from bulkinfer.records import Document, FormatKind, Selection, SourceFile, UnreadableRow
from bulkinfer.sources.base import Source, TableSource, count_chars
from bulkinfer.sources.keys import file_key, row_keys
from bulkinfer.sources.remote_search import OneFile
from bulkinfer.sources.typed import Kind, probe_kinds, schema_of, split_by_types
from bulkinfer.sql import CannotMatch, Condition, Judge, ParquetFile, iter_matching_parquet

Open = Callable[[SourceFile, frozenset[str] | None, str | None], Source]
_Row = Document | UnreadableRow
_BLOCK_ROWS = 1024
_BLOCK_CHARS = 4 << 20
_MIN_SEARCHED_BYTES = 1 << 20


class SelectedSource:
    """A source that yields only rows of a selection."""

    def __init__(
        self,
        file: SourceFile,
        selection: Selection,
        fields: frozenset[str] | None,
        id_field: str | None,
        open_whole: Open,
    ) -> None:
        self._file = file
        self._selection = selection
        self._fields = fields
        self._id_field = id_field
        self._open_whole = open_whole
        self._whole = open_whole(file, fields, id_field)

    def iter_rows(self, wanted: Iterator[int] | None = None) -> Iterator[_Row]:
        """Yield the rows of the selection, or those of them that are wanted. Raises InputError; see `Source`."""
        draw = _Draw(self._file, self._selection)
        rows = self._iter_judged(draw.iter_numbers(wanted))
        return (row for row in rows if not draw.is_passed(row.origin.row))

    def bytes_read(self) -> int:
        """Of the file, whatever is chosen of it; see `Source`."""
        return self._whole.bytes_read()

    def read_field_names(self) -> frozenset[str]:
        """Those of the file; see `Source`."""
        return self._whole.read_field_names()

    def _iter_judged(self, numbers: Iterator[int] | None) -> Iterator[_Row]:
        if self._selection.where is None:
            return self._whole.iter_rows(numbers)
        condition = Condition.parse(self._selection.where)
        if isinstance(self._whole, TableSource):
            return self._iter_found(self._whole, condition, numbers)
        return self._iter_read(condition, numbers)

    def _iter_found(self, table: TableSource, condition: Condition, numbers: Iterator[int] | None) -> Iterator[_Row]:
        """Of a table: first find the rows by the columns of the condition alone, then read those."""
        faulty: set[int] = set()

        def iter_kept() -> Iterator[int]:
            targets = count(1) if numbers is None else numbers
            target = next(targets, None)
            for number, holds in self._iter_matching(table, condition):
                while target is not None and target < number:
                    target = next(targets, None)
                if target is None:
                    return
                if target == number:
                    if not holds:
                        faulty.add(number)
                    yield number

        for row in table.iter_rows(iter_kept()):
            if row.origin.row in faulty:
                faulty.discard(row.origin.row)
                yield _cannot_judge(row)
            else:
                yield row

    def _iter_matching(self, table: TableSource, condition: Condition) -> Iterator[tuple[int, bool]]:
        """Numbers of rows with whether the condition holds for them, or cannot be judged. Ascending."""
        columns, missing = find_named_columns(self._file, condition, table.schema.names)
        last_row = 0
        if _is_worth_searching(self._file):
            try:
                for last_row in iter_matching_parquet(_as_searched(self._file, table), condition):
                    yield last_row, True
                return
            except CannotMatch:
                pass
        with Judge(condition) as judge:
            for first, batch in table.iter_columns(columns):
                if isinstance(batch, range):
                    yield from ((number, False) for number in batch if number > last_row)
                    continue
                rows = pa.Table.from_batches([batch])
                for name in missing:
                    rows = rows.append_column(name, pa.nulls(batch.num_rows, pa.string()))
                for place, holds in judge.judge(rows).items():
                    if first + place > last_row:
                        yield first + place, holds

    def _iter_read(self, condition: Condition, numbers: Iterator[int] | None) -> Iterator[_Row]:
        """Of lines: read them all, and then judge what they hold."""
        kinds = self._find_kinds(condition)
        fields = self._fields
        if fields is not None:
            fields = None if condition.takes_all else fields | kinds.keys()
        self._whole = self._open_whole(self._file, fields, self._id_field)
        with Judge(condition) as judge:
            for block in iter_blocks(self._whole.iter_rows(numbers)):
                kept: dict[int, bool] = {}
                for rows in split_by_types([row for row in block if isinstance(row, Document)], kinds):
                    for place, holds in judge.judge(rows.table).items():
                        kept[rows.documents[place].origin.row] = holds
                for row in block:
                    match row:
                        case UnreadableRow():
                            yield row
                        case Document() if row.origin.row in kept:
                            own = self._drop_columns(row)
                            yield own if kept[row.origin.row] else _cannot_judge(own)

    def _find_kinds(self, condition: Condition) -> Mapping[str, Kind]:
        kinds = probe_kinds(self._open_whole(self._file, None, None))
        columns, missing = condition.find_columns(list(kinds))
        return {name: kinds[name] for name in columns} | dict.fromkeys(missing, Kind.NULL)

    def _drop_columns(self, row: Document) -> Document:
        if self._fields is None:
            return row
        return replace(row, fields={name: value for name, value in row.fields.items() if name in self._fields})


def find_named_columns(file: SourceFile, condition: Condition, known: Sequence[str]) -> tuple[list[str], list[str]]:
    """As `Condition.find_columns`. Raises InputError for one that the file has twice."""
    columns, missing = condition.find_columns(known)
    twice = [name for name in columns if known.count(name) > 1]
    if twice:
        raise InputError(f"{file.name}: two columns are named {twice[0]!r}. Rename one of them")
    return columns, missing


def read_schema(source: Source) -> pa.Schema:
    """The columns that a condition may name; of lines those of the first rows."""
    return source.schema if isinstance(source, TableSource) else schema_of(probe_kinds(source))


def _is_worth_searching(file: SourceFile) -> bool:
    """Whether DuckDB is to go through it by itself. To open it for that takes as long as to read a small one."""
    return file.format.kind is FormatKind.PARQUET and file.size_bytes >= _MIN_SEARCHED_BYTES


def _as_searched(file: SourceFile, table: TableSource) -> ParquetFile:
    if not file.url:
        return ParquetFile(str(file.path), table.schema)
    filesystem = OneFile(file)
    return ParquetFile(filesystem.path, table.schema, filesystem)


class _Draw:
    """Which numbers of a file are in the sample and not behind its end."""

    def __init__(self, file: SourceFile, selection: Selection) -> None:
        self._bar = selection.sample_bar
        self._last_row = selection.last_row
        self._file_bits = file_key(file.name, selection.sample_seed)
        self._passed: set[int] = set()

    def iter_numbers(self, wanted: Iterator[int] | None) -> Iterator[int] | None:
        """The rows to read: those drawn, and now and then one more, so that a search does not go on past the file."""
        if self._bar is None and self._last_row is None:
            return wanted
        numbers = count(1) if wanted is None else wanted
        if self._last_row is not None:
            last_row = self._last_row
            numbers = takewhile(lambda number: number <= last_row, numbers)
        return numbers if self._bar is None else self._iter_drawn(numbers, self._bar)

    def is_passed(self, number: int) -> bool:
        """Whether a row that was read is not in the sample."""
        return number in self._passed

    def _iter_drawn(self, numbers: Iterator[int], bar: int) -> Iterator[int]:
        while block := list(islice(numbers, _BLOCK_ROWS)):
            is_drawn = (row_keys(self._file_bits, block) <= bar).tolist()
            if not is_drawn[-1]:
                self._passed.add(block[-1])
                is_drawn[-1] = True
            yield from (number for number, drawn in zip(block, is_drawn, strict=True) if drawn)


def iter_blocks(rows: Iterator[_Row]) -> Iterator[list[_Row]]:
    """Rows by the thousand, or fewer where they are long; the last block may be empty."""
    block: list[_Row] = []
    num_chars = 0
    for row in rows:
        block.append(row)
        if isinstance(row, Document):
            num_chars += count_chars(row.fields)
        if len(block) >= _BLOCK_ROWS or num_chars >= _BLOCK_CHARS:
            yield block
            block, num_chars = [], 0
    yield block


def _cannot_judge(row: _Row) -> UnreadableRow:
    if isinstance(row, UnreadableRow):
        return row
    digest = hashlib.sha256(b"input.where\0" + hash_document(row.fields)).digest()[:16]
    origin = row.origin
    return UnreadableRow(origin, digest, f"{origin.source}, row {origin.row}: input.where cannot be evaluated for it")
