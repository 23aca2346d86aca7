"""Sources: each file format is a stream of `Document` or `UnreadableRow`, in file order, in bounded memory.

`find_source_files` turns what the job file says into files, `open_source` turns a file into a `Source`.
"""

from bulkinfer.records import SourceFile
from bulkinfer.sources.base import Source
from bulkinfer.sources.files import SourceFormat, find_format, find_source_files
from bulkinfer.sources.jsonl import JsonlSource
from bulkinfer.sources.parquet import ParquetSource

__all__ = ["Source", "find_source_files", "open_source"]


def open_source(file: SourceFile, fields: frozenset[str], id_field: str | None) -> Source:
    """Open a file by its ending; `fields` are those that documents keep, `id_field` is the one that names them.

    Raises InputError for a Parquet file whose schema cannot be read; a JSONL file is first touched when it is read.
    No file stays open between the calls, so a folder of many files costs no descriptors.
    """
    match find_format(file.path):
        case SourceFormat.PARQUET:
            return ParquetSource(file, fields, id_field)
        case SourceFormat.JSONL | SourceFormat.JSONL_GZIP | SourceFormat.JSONL_ZSTD as source_format:
            return JsonlSource(file, source_format, fields, id_field)
        case None:
            raise ValueError(f"not a file that find_source_files returns: {file.name}")
