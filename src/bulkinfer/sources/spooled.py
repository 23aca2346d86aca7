"""The rows of a query that were written down, with those behind them that could not be read."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from bulkinfer.records import Document, Origin, SourceFile, UnreadableRow
from bulkinfer.sources.arrow import ArrowSource

FAULT = pa.schema([("bulkinfer_id", pa.string()), ("bulkinfer_reason", pa.string()), ("bulkinfer_digest", pa.string())])
"""Columns that tell of a row why it could not be read; null in others."""
_ID, _REASON, _DIGEST = FAULT.names


class SpooledSource:
    """The file of a query. Its rows are numbered from 1 as the query gave them."""

    def __init__(self, file: SourceFile, fields: frozenset[str] | None, id_field: str | None) -> None:
        needed = None if fields is None else fields | set(FAULT.names)
        self._fields = fields
        self._rows = ArrowSource(file, needed, id_field)
        self.schema: pa.Schema = pa.schema([field for field in self._rows.schema if field.name not in FAULT.names])

    def iter_rows(self, wanted: Iterator[int] | None = None) -> Iterator[Document | UnreadableRow]:
        """Yield one row for each that the query gave, and for each that never reached it; see `Source`."""
        for row in self._rows.iter_rows(wanted):
            match row:
                case Document(origin=Origin(source, number), fields={"bulkinfer_reason": str(reason)} as fields):
                    origin = Origin(source, number, str(fields[_ID]))
                    yield UnreadableRow(origin, bytes.fromhex(str(fields[_DIGEST])), reason)
                case Document(fields=fields):
                    own = {name: value for name, value in fields.items() if name not in FAULT.names}
                    yield Document(row.origin, own)
                case UnreadableRow():
                    yield row

    def iter_columns(self, names: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch | range]]:
        """See `TableSource`."""
        return self._rows.iter_columns(names)

    def bytes_read(self) -> int:
        """See `Source`."""
        return self._rows.bytes_read()

    def read_field_names(self) -> frozenset[str]:
        """The columns of the query; see `Source`."""
        return self._rows.read_field_names() - set(FAULT.names)
