"""From a file to its source."""

from dataclasses import replace

from bulkinfer.records import FormatKind, SourceFile
from bulkinfer.sources.arrow import ArrowSource
from bulkinfer.sources.base import Source
from bulkinfer.sources.csv_file import CsvSource
from bulkinfer.sources.images import ImageSource
from bulkinfer.sources.jsonl import JsonlSource
from bulkinfer.sources.openai_batch import OpenAiSource
from bulkinfer.sources.parquet import ParquetSource
from bulkinfer.sources.selected import SelectedSource
from bulkinfer.sources.spooled import SpooledSource
from bulkinfer.sources.text_file import TextSource


def open_source(file: SourceFile, fields: frozenset[str] | None, id_field: str | None) -> Source:
    """Open what the job chooses of a file. `fields` are those that documents keep, `id_field` the one that names them.

    None for `fields`: all that a row has, but for columns without JSON values. Raises InputError for a file whose
    schema cannot be read, where its format has one; others are first touched when they are read.
    No file stays open between the calls, so a folder of many files costs no descriptors.
    """
    source: Source
    if file.selection is not None:
        source = SelectedSource(replace(file, selection=None), file.selection, fields, id_field, _open_whole)
    else:
        source = _open_whole(file, fields, id_field)
    return source if file.images is None else ImageSource(source, file, file.images)


def _open_whole(file: SourceFile, fields: frozenset[str] | None, id_field: str | None) -> Source:
    source: Source
    match file.format.kind:
        case FormatKind.PARQUET:
            source = ParquetSource(file, fields, id_field)
        case FormatKind.ARROW:
            source = ArrowSource(file, fields, id_field)
        case FormatKind.JSONL:
            source = JsonlSource(file, fields, id_field)
        case FormatKind.CSV:
            source = CsvSource(file, fields, id_field)
        case FormatKind.TEXT:
            source = TextSource(file, fields, id_field)
        case FormatKind.OPENAI:
            source = OpenAiSource(file, fields)
        case FormatKind.QUERY:
            source = SpooledSource(file, fields, id_field)
    return source
