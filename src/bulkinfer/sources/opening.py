"""From a file to its source."""

from bulkinfer.records import FormatKind, SourceFile
from bulkinfer.sources.arrow import ArrowSource
from bulkinfer.sources.base import Source
from bulkinfer.sources.csv_file import CsvSource
from bulkinfer.sources.jsonl import JsonlSource
from bulkinfer.sources.parquet import ParquetSource
from bulkinfer.sources.text_file import TextSource


def open_source(file: SourceFile, fields: frozenset[str] | None, id_field: str | None) -> Source:
    """Open a file as its format says; `fields` are those that documents keep, `id_field` is the one that names them.

    None for `fields`: all that a row has. Raises InputError for a file whose schema cannot be read, where its format
    has one; others are first touched when they are read.
    No file stays open between the calls, so a folder of many files costs no descriptors.
    """
    match file.format.kind:
        case FormatKind.PARQUET:
            return ParquetSource(file, fields, id_field)
        case FormatKind.ARROW:
            return ArrowSource(file, fields, id_field)
        case FormatKind.JSONL:
            return JsonlSource(file, fields, id_field)
        case FormatKind.CSV:
            return CsvSource(file, fields, id_field)
        case FormatKind.TEXT:
            return TextSource(file, fields, id_field)
