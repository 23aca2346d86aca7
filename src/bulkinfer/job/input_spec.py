"""The section `input`: where the documents are."""

import codecs
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, Strict, WithJsonSchema, model_validator

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


_SHARE = re.compile(r"\s*(\d{1,3}(?:\.\d{1,12})?)\s*%\s*", re.ASCII)


def _as_sample(value: object) -> object:
    """A number of rows stays one; a share becomes a number between 0 and 1."""
    match = _SHARE.fullmatch(value) if isinstance(value, str) else None
    share = None if match is None else float(match[1]) / 100
    if share is not None and 0 < share <= 1:
        return share
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 10**9:
        return value
    raise wrong_value('a number of rows from 1 to 1000000000, or a share such as "5%"', found=value)


Sample = Annotated[
    int | float,
    BeforeValidator(_as_sample),
    PlainSerializer(lambda size: size if isinstance(size, int) else f"{100 * size:g}%"),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^\d{1,3}(\.\d+)?\s*%$"}]}
    ),
]


Aliases = Annotated[tuple[Text, ...], Strict(strict=False), BeforeValidator(as_sequence), Field(max_length=100)]


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
    format: Literal["auto", "parquet", "jsonl", "csv", "tsv", "arrow", "text", "openai"] = Field(
        default="auto",
        description="What the files hold, whatever their names; `auto`: as the ending of each says. `text` makes a "
        "document of each file, with the fields text, path and name; `openai` reads requests of OpenAI's batch API, "
        "and the job then needs neither prompt nor input.id.",
    )
    openai_url: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"] | None = Field(
        default=None,
        description="With format openai: the endpoint of the requests that are taken; those for another are failures. "
        "Default: /v1/embeddings with task.kind embed, else /v1/chat/completions.",
    )
    openai_model: Annotated[Aliases, one_or_many("Further names by which requests may call the model.", 100)] = Field(
        default=(),
        description="With format openai: further names by which requests may call the job's model, such as the one "
        "that they were written for. model.path and the name of its folder are taken in any case.",
        examples=["gpt-4o-mini"],
    )
    where: Text | None = Field(
        default=None,
        max_length=100_000,
        description="A condition in DuckDB's SQL over the columns of a row: only rows for which it holds are "
        "documents. It is no part of the task: answers that are there stay.",
        examples=["language = 'en' and length(body) > 20"],
    )
    sql: Text | None = Field(
        default=None,
        max_length=1_000_000,
        description="A query in DuckDB's SQL over the whole input as the table `input`: its rows are the documents. "
        "The result needs room in the folder for temporary files.",
        examples=["select category, string_agg(body, chr(10)) as bodies from input group by category order by 1"],
    )
    sample: Sample | None = Field(
        default=None,
        description="So many rows of the input, or such a share of them, drawn the same way each time.",
        examples=[1000, "1%"],
    )
    sample_seed: int = Field(default=0, ge=0, le=2**63 - 1, description="Another seed draws another sample.")
    limit: int | None = Field(
        default=None,
        ge=1,
        le=10**15,
        description="The first so many rows of the whole input, of those that `where` and `sample` leave.",
        examples=[100],
    )
    csv: CsvSpec = Field(default_factory=CsvSpec, description="How CSV and TSV files are written.")
    text: TextSpec = Field(default_factory=TextSpec, description="How text files are written.")

    @model_validator(mode="after")
    def _check_openai(self) -> "InputSpec":
        for name in ("openai_url", "openai_model"):
            if self.format != "openai" and getattr(self, name):
                raise wrong_value(f"no {name} with format {self.format}", "set format: openai, or remove the key")
        return self

    @model_validator(mode="after")
    def _check_where(self) -> "InputSpec":
        if self.where is not None and self.sql is not None:
            raise wrong_value("either where or sql", "put the condition into the query")
        return self
