"""The input of a job as it is now, without the model that a run would need."""

from dataclasses import dataclass

from bulkinfer.errors import InputError
from bulkinfer.fingerprint import list_filled_later
from bulkinfer.job import Job
from bulkinfer.prompt import PromptTemplate
from bulkinfer.records import SourceFile
from bulkinfer.runner.plan import describe_layout
from bulkinfer.sources import Source, add_images, find_named_files, open_source
from bulkinfer.sources import find_input as find_files


@dataclass(frozen=True, slots=True)
class JobInput:
    """Its files, and what makes the documents of them."""

    files: tuple[SourceFile, ...]
    fields: frozenset[str]
    id_field: str | None
    layout: str
    later_fields: frozenset[str] = frozenset()
    """Of the fields, those that no run of before has read for this job: their absence says nothing of the rows."""
    left_out: frozenset[str] = frozenset()
    """Names of files that are there and of which the job chooses nothing: behind its limit, or read by its query."""
    note: str | None = None
    """Why there are no files."""

    def open(self, file: SourceFile, fields: frozenset[str]) -> Source:
        """One of the files. Raises InputError."""
        return open_source(file, fields, self.id_field)


def find_input(job: Job) -> JobInput:
    """What the job names. Files that cannot be found are a note: answers outlive them. Raises JobError."""
    with job.placing():
        return _find_input(job)


def _find_input(job: Job) -> JobInput:
    template = PromptTemplate.of(job.spec)
    files: list[SourceFile] = []
    left_out: set[str] = set()
    note = None
    try:
        files = find_files(job)
        if job.spec.input.limit is not None or job.spec.input.sql is not None:
            left_out = {file.name for file in find_named_files(job)} - {file.name for file in files}
    except InputError as error:
        note = str(error)
    files = add_images(files, template.describe_images(str(job.folder)))
    layout = describe_layout(job, template)
    later = list_filled_later(job.spec)
    return JobInput(tuple(files), template.fields, job.spec.input.id, layout, later, frozenset(left_out), note)
