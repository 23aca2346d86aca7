"""The input of a job as it is now, without the model that a run would need."""

from dataclasses import dataclass

from bulkinfer.errors import InputError
from bulkinfer.job import Job
from bulkinfer.prompt import PromptTemplate
from bulkinfer.records import SourceFile
from bulkinfer.runner.plan import describe_layout
from bulkinfer.sources import Source, open_source
from bulkinfer.sources import find_input as find_files


@dataclass(frozen=True, slots=True)
class JobInput:
    """Its files, and what makes the documents of them."""

    files: tuple[SourceFile, ...]
    fields: frozenset[str]
    id_field: str | None
    layout: str
    note: str | None = None
    """Why there are no files."""

    def open(self, file: SourceFile, fields: frozenset[str]) -> Source:
        """One of the files. Raises InputError."""
        return open_source(file, fields, self.id_field)


def find_input(job: Job) -> JobInput:
    """What the job names. Files that cannot be found are a note: answers outlive them. Raises JobError."""
    template = PromptTemplate.of(job.spec)
    files: list[SourceFile] = []
    note = None
    try:
        files = find_files(job)
    except InputError as error:
        note = str(error)
    return JobInput(tuple(files), template.fields, job.spec.input.id, describe_layout(job, template), note)
