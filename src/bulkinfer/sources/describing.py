"""What an input file looks like, for who has to choose among its columns."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from bulkinfer.records import Document, FormatKind, JsonValue, SourceFile
from bulkinfer.sources.openai_batch import ENDPOINTS
from bulkinfer.sources.opening import open_source

NUM_LOOKED_AT = 200
"""Rows."""
NUM_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Column:
    """One field that rows of a file have."""

    name: str
    type: str
    """text, number, boolean, list or object; mixed where rows differ, empty where no row had a value."""
    examples: tuple[JsonValue, ...]
    """The first different values that are not null: they are the user's own, and belong into no log."""
    num_values: int
    """Rows that had a value other than null and an empty text."""
    num_different: int
    num_rows: int
    """That were looked at."""
    mean_chars: float
    """Of its texts; 0 without any."""


def describe_columns(file: SourceFile) -> tuple[Column, ...]:
    """The columns of a file in the order in which they come, judged by its first rows.

    Raises InputError when nothing of the file can be read. A file without a readable row has no columns.
    """
    rows = [row.fields for row in islice(_iter_documents(file), NUM_LOOKED_AT)]
    names = dict.fromkeys(name for row in rows for name in row)
    return tuple(_describe(name, rows) for name in names)


@dataclass(frozen=True, slots=True)
class BatchRequests:
    """What a file of OpenAI's batch API asks for, judged by its first lines."""

    endpoints: tuple[str, ...]
    """The most frequent first; requests for another than the job's are failures."""
    models: tuple[str, ...]
    """Names by which they call the model, in the order in which they come."""


def describe_requests(file: SourceFile) -> BatchRequests | None:
    """None where most of the first rows are no requests. Raises InputError as `describe_columns` does."""
    if file.format.kind not in {FormatKind.JSONL, FormatKind.OPENAI}:
        return None
    lines = replace(file, format=replace(file.format, kind=FormatKind.JSONL))
    rows = [row.fields for row in islice(_iter_documents(lines), NUM_LOOKED_AT)]
    asked = [(str(row["url"]), row["body"]) for row in rows if _is_request(row)]
    if 2 * len(asked) <= len(rows):
        return None
    models = dict.fromkeys(str(body["model"]) for _, body in asked if isinstance(body, Mapping) and body.get("model"))
    return BatchRequests(tuple(url for url, _ in Counter(url for url, _ in asked).most_common()), tuple(models))


def _is_request(row: Mapping[str, JsonValue]) -> bool:
    return "custom_id" in row and row.get("url") in ENDPOINTS and isinstance(row.get("body"), Mapping)


def _iter_documents(file: SourceFile) -> Iterator[Document]:
    rows = islice(open_source(file, None, None).iter_rows(), 10 * NUM_LOOKED_AT)
    return (row for row in rows if isinstance(row, Document))


def _describe(name: str, rows: Sequence[Mapping[str, JsonValue]]) -> Column:
    values = [value for row in rows if (value := row.get(name)) is not None and value != ""]
    kinds = Counter(map(_name_kind, values))
    different = {repr(value): value for value in values}
    lengths = [len(value) for value in values if isinstance(value, str)]
    return Column(
        name=name,
        type="empty" if not kinds else next(iter(kinds)) if len(kinds) == 1 else "mixed",
        examples=tuple(islice(different.values(), NUM_EXAMPLES)),
        num_values=len(values),
        num_different=len(different),
        num_rows=len(rows),
        mean_chars=sum(lengths) / len(lengths) if lengths else 0.0,
    )


def _name_kind(value: JsonValue) -> str:
    match value:
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "text"
        case Mapping():
            return "object"
        case _:
            return "list"
