"""The section `input`: where the documents are."""

import codecs
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Strict, model_validator

from bulkinfer.job.section import PathText, Section, Text, as_sequence, one_or_many, wrong_value

Sources = Annotated[
    tuple[PathText, ...], Strict(strict=False), BeforeValidator(as_sequence), Field(min_length=1, max_length=10_000)
]
_FORMATS = (
    "Parquet, Arrow (Feather), JSONL, CSV, TSV or text files, the last four also as .gz or .zst, or a folder that "
    "Hugging Face datasets saved"
)
_PATH = f"A file, folder or glob, or a list of them; {_FORMATS}."


def _check_encoding(name: str) -> str:
    try:
        is_text = codecs.lookup(name)._is_text_encoding  # noqa: SLF001 - no other way tells base64 from an encoding
    except (LookupError, ValueError):
        is_text = False
    if not is_text:
        raise wrong_value("the name of a text encoding, such as utf-8, utf-16, latin-1 or cp1252", found=name)
    return name


Encoding = Annotated[str, Field(min_length=1, max_length=40), AfterValidator(_check_encoding)]
Character = Annotated[str, Field(min_length=1, max_length=1, pattern=r"^[^\r\n]$")]


class CsvSpec(Section):
    """How CSV and TSV files are written."""

    delimiter: Character | None = Field(
        default=None,
        description="What stands between two values. Default: a tab in .tsv and .tab files, else which of , ; tab | "
        "divides the first lines best.",
        examples=[";"],
    )
    quote: str = Field(
        default='"',
        max_length=1,
        pattern=r"^[^\r\n]?$",
        description="What stands around a value that holds delimiters or line ends; empty: nothing does.",
    )
    escape: Character | None = Field(
        default=None, description="What stands before a quote within a quoted value. Default: the quote is doubled."
    )
    encoding: Encoding | None = Field(
        default=None,
        description="Of the file. Default: what its byte order mark says, else UTF-8; rows that are not are failures.",
        examples=["latin-1", "utf-16"],
    )
    columns: Annotated[tuple[Text, ...], Strict(strict=False), Field(max_length=10_000)] = Field(
        default=(),
        description="The names of the columns of a file without a header line. Default: the first line has them.",
        examples=[["id", "body"]],
    )

    @model_validator(mode="after")
    def _check_characters(self) -> "CsvSpec":
        characters = [character for character in (self.delimiter, self.quote, self.escape) if character]
        if len(set(characters)) < len(characters):
            raise wrong_value("delimiter, quote and escape to be different characters")
        if len(set(self.columns)) < len(self.columns):
            raise wrong_value("columns to have different names")
        return self


class TextSpec(Section):
    """How text files are written."""

    encoding: Encoding | None = Field(
        default=None, description="Of the file. Default: what its byte order mark says, else UTF-8."
    )


class InputSpec(Section):
    """The documents."""

    path: Annotated[Sources, one_or_many(_PATH, 10_000)] = Field(
        description=f"{_PATH} Relative to the job file.",
        examples=["tickets.parquet", "tickets/*.jsonl.gz", ["old.csv", "new.parquet"]],
    )
    id: Text | None = Field(
        default=None,
        max_length=1000,
        description='The field that names a document in results and failures. Default: "<source>:<row>".',
        examples=["ticket_id"],
    )
    format: Literal["auto", "parquet", "jsonl", "csv", "tsv", "arrow", "text"] = Field(
        default="auto",
        description="What the files hold, whatever their names; `auto`: as the ending of each says. `text` makes a "
        "document of each file, with the fields text, path and name.",
    )
    csv: CsvSpec = Field(default_factory=CsvSpec, description="How CSV and TSV files are written.")
    text: TextSpec = Field(default_factory=TextSpec, description="How text files are written.")
