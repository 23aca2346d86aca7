"""Rows of JSON values as typed tables, for a condition to judge: what type each column of a file has, and each row.

The types come from the first rows of the file; a row that does not fit them is judged by the types of its own values.
So what is judged of a row depends on nothing but the row and the beginning of its file.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

import pyarrow as pa

from bulkinfer.records import Document, JsonValue
from bulkinfer.sources.base import Source

NUM_PROBED_ROWS = 1_000
_MAX_INT64 = 2**63 - 1
_MAX_EXACT = 2**53
"""Up to here a double holds every whole number."""


class Kind(StrEnum):
    """What the values of a column are."""

    NULL = "null"
    TRUTH = "truth"
    WHOLE = "whole"
    NUMBER = "number"
    TEXT = "text"
    TEXTS = "texts"
    """A list of texts."""
    JSON = "json"
    """Anything else: texts as they are, all else as JSON text."""


_TYPES = {
    Kind.NULL: pa.string(),
    Kind.TRUTH: pa.bool_(),
    Kind.WHOLE: pa.int64(),
    Kind.NUMBER: pa.float64(),
    Kind.TEXT: pa.string(),
    Kind.TEXTS: pa.list_(pa.string()),
    Kind.JSON: pa.string(),
}


def probe_kinds(source: Source) -> dict[str, Kind]:
    """The kind of each field of the first rows; JSON where they differ beyond whole and other numbers."""
    kinds: dict[str, Kind] = {}
    for row in islice(source.iter_rows(), NUM_PROBED_ROWS):
        if isinstance(row, Document):
            for name, value in row.fields.items():
                kinds[name] = _join(kinds.get(name, Kind.NULL), _kind_of(value))
    return kinds


def schema_of(kinds: Mapping[str, Kind]) -> pa.Schema:
    """Of a table whose columns are of these kinds."""
    return pa.schema({name: _TYPES[kind] for name, kind in kinds.items()})


@dataclass(frozen=True, slots=True)
class TypedRows:
    """Some rows, and the same as a table."""

    documents: Sequence[Document]
    table: pa.Table


def split_by_types(rows: Sequence[Document], kinds: Mapping[str, Kind]) -> Iterator[TypedRows]:
    """The rows as tables of one schema each; most often it is one table."""
    groups: dict[tuple[Kind, ...], list[Document]] = {}
    for row in rows:
        signature = tuple(_fit(kind, row.fields.get(name)) for name, kind in kinds.items())
        groups.setdefault(signature, []).append(row)
    for signature, members in groups.items():
        columns = {
            name: pa.array([_write(kind, row.fields.get(name)) for row in members], _TYPES[kind])
            for name, kind in zip(kinds, signature, strict=True)
        }
        # Without a column it has as many rows all the same.
        yield TypedRows(members, pa.table(columns or {"": pa.nulls(len(members))}).select(list(columns)))


_KINDS = {type(None): Kind.NULL, bool: Kind.TRUTH, int: Kind.WHOLE, float: Kind.NUMBER, str: Kind.TEXT}


def _kind_of(value: JsonValue) -> Kind:
    kind = _KINDS.get(type(value), Kind.JSON)
    if kind is Kind.WHOLE and isinstance(value, int) and abs(value) > _MAX_INT64:
        return Kind.JSON
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        return Kind.TEXTS
    return kind


def _join(one: Kind, other: Kind) -> Kind:
    if one is other or other is Kind.NULL:
        return one
    if one is Kind.NULL:
        return other
    return Kind.NUMBER if {one, other} == {Kind.WHOLE, Kind.NUMBER} else Kind.JSON


def _fit(kind: Kind, value: JsonValue) -> Kind:
    """The column's kind where the value can be written as such, else the value's own."""
    own = _kind_of(value)
    if isinstance(value, int) and abs(value) > _MAX_EXACT:  # a double would be another number
        return kind if kind is Kind.JSON else own
    if own is Kind.NULL or kind is Kind.JSON or (kind is Kind.NUMBER and own is Kind.WHOLE):
        return kind
    return kind if kind is Kind.TEXTS and value == [] else own


def _write(kind: Kind, value: JsonValue) -> object:
    if value is None:
        return None
    if kind is Kind.NUMBER and isinstance(value, int):
        return float(value)
    if kind is not Kind.JSON or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
