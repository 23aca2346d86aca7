"""The section `input`: where the documents are."""

from typing import Annotated

from pydantic import BeforeValidator, Field, Strict

from bulkinfer.job.section import PathText, Section, Text, as_sequence, one_or_many

Sources = Annotated[
    tuple[PathText, ...], Strict(strict=False), BeforeValidator(as_sequence), Field(min_length=1, max_length=10_000)
]


class InputSpec(Section):
    """The documents."""

    path: Annotated[
        Sources,
        one_or_many("A file, folder or glob, or a list of them; Parquet, JSONL, JSONL.gz or JSONL.zst.", 10_000),
    ] = Field(
        description="A file, folder or glob, or a list of them; Parquet, JSONL, JSONL.gz or JSONL.zst. "
        "Relative to the job file.",
        examples=["tickets.parquet", "tickets/*.jsonl.gz"],
    )
    id: Text | None = Field(
        default=None,
        max_length=1000,
        description='The field that names a document in results and failures. Default: "<source>:<row>".',
        examples=["ticket_id"],
    )
