"""The input of a job: its files, as its section `input` describes them."""

from pathlib import Path, PurePosixPath

from bulkinfer.job import Job
from bulkinfer.records import CsvDialect, FormatKind, OpenAiFile, SourceFile
from bulkinfer.sources.choosing import choose_rows
from bulkinfer.sources.custom_ids import share_custom_ids
from bulkinfer.sources.files import find_source_files
from bulkinfer.sources.files import takes_in as patterns_take_in
from bulkinfer.sources.formats import FormatChoice
from bulkinfer.sources.querying import query_input

_KINDS = {
    "auto": None,
    "parquet": FormatKind.PARQUET,
    "jsonl": FormatKind.JSONL,
    "csv": FormatKind.CSV,
    "tsv": FormatKind.CSV,
    "arrow": FormatKind.ARROW,
    "text": FormatKind.TEXT,
    "openai": FormatKind.OPENAI,
}


def find_named_files(job: Job) -> list[SourceFile]:
    """All files that a job names, whatever of them is chosen. Raises InputError as `find_source_files` does."""
    files = find_source_files(job.input_patterns, job.folder, _read_choice(job))
    return share_custom_ids(files) if job.spec.input.format == "openai" else files


def takes_in(job: Job, path: Path) -> bool:
    """Whether a file at this path would be one of the job's input, once it is there. Raises InputError."""
    return patterns_take_in(job.input_patterns, job.folder, path, _read_choice(job))


def find_input(job: Job) -> list[SourceFile]:
    """The files of a job in the order in which they are read, with what of them is chosen.

    Raises InputError as `find_source_files` does; JobError for a condition or a query that does not fit. A
    query is run by this.
    """
    files = find_named_files(job)
    if job.spec.input.sql is not None:
        files = [query_input(files, job.spec.input.sql)]
    return choose_rows(files, job.spec.input)


def _read_choice(job: Job) -> FormatChoice:
    section = job.spec.input
    delimiter = section.csv.delimiter or ("\t" if section.format == "tsv" else None)
    dialect = CsvDialect(delimiter, section.csv.quote, section.csv.escape, section.csv.columns)
    openai = None
    if section.openai_url is not None:
        model = job.spec.model.path
        names = dict.fromkeys([*section.openai_model, model, PurePosixPath(model).name])
        openai = OpenAiFile(section.openai_url, tuple(names))
    return FormatChoice(_KINDS[section.format], dialect, section.csv.encoding, section.text.encoding, openai)
