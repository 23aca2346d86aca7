"""The input of a job: its files, as its section `input` describes them."""

from bulkinfer.job import Job
from bulkinfer.records import CsvDialect, FormatKind, SourceFile
from bulkinfer.sources.files import find_source_files
from bulkinfer.sources.formats import FormatChoice

_KINDS = {
    "auto": None,
    "parquet": FormatKind.PARQUET,
    "jsonl": FormatKind.JSONL,
    "csv": FormatKind.CSV,
    "tsv": FormatKind.CSV,
    "arrow": FormatKind.ARROW,
    "text": FormatKind.TEXT,
}


def find_input(job: Job) -> list[SourceFile]:
    """The files of a job in the order in which they are read. Raises InputError; see `find_source_files`."""
    return find_source_files(job.input_patterns, job.folder, _read_choice(job))


def _read_choice(job: Job) -> FormatChoice:
    section = job.spec.input
    delimiter = section.csv.delimiter or ("\t" if section.format == "tsv" else None)
    dialect = CsvDialect(delimiter, section.csv.quote, section.csv.escape, section.csv.columns)
    return FormatChoice(_KINDS[section.format], dialect, section.csv.encoding, section.text.encoding)
