"""A first job file for an input: it looks which column names a row and which is its text, and says what it found.

It chooses and writes text; it neither runs nor reads more than the first rows.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bulkinfer.errors import InputError, JobError
from bulkinfer.job import Job, load_job
from bulkinfer.prompt import PromptTemplate
from bulkinfer.records import Document, Origin
from bulkinfer.runner.plan import check_fields
from bulkinfer.sources import (
    BatchRequests,
    Column,
    describe_columns,
    describe_requests,
    find_input,
    find_source_files,
    hide_secrets,
)
from bulkinfer.store import replacing

DEFAULT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""It loads everywhere, and is far too small for real work: the job says so."""
DEFAULT_EMBEDDING_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
"""The same for requests for vectors."""
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
_REQUEST_TEXTS = {CHAT: "messages", COMPLETIONS: "prompt", EMBEDDINGS: "input"}
MAX_ID_CHARS = 64
"""On average: a longer text is no name."""
MIN_ROWS_FOR_ID = 10
"""Below it, that values differ proves nothing: the name of the column has to say that it is an id."""
MAX_LOOKED_AT = 16
"""Files, until one has a readable row."""
MAX_TOLD = 20
"""Columns in the comment."""
_FIELD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_TEXT_NAMES = ("body", "text", "content", "message", "description", "prompt", "question", "abstract", "document")
_ID_NAME = re.compile(r"(.*_)?(id|key|uuid|uid|guid|nr|no|number|name)|.*Id|.*ID|index", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z0-9_./~][A-Za-z0-9_./@+-]*", re.ASCII)
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "none", "y", "n"})


@dataclass(frozen=True, slots=True)
class Draft:
    """A job file, and what was seen in the input."""

    text: str
    """Of the file."""
    columns: tuple[Column, ...]
    text_field: str
    id_field: str | None
    num_files: int
    endpoint: str | None = None
    """Of requests of OpenAI's batch API, which bring prompt and parameters."""


def draft_job(pattern: str, place: Path, model: str | None = None) -> Draft:
    """Look at an input and write a job for it, which will lie at `place`; relative paths are as in a shell.

    Raises InputError when nothing of the input can be read, or it has nothing that a prompt could print.
    """
    folder = Path.cwd()
    files = find_source_files([pattern], folder)
    columns = next((found for file in files[:MAX_LOOKED_AT] if (found := describe_columns(file))), ())
    requests = next(filter(None, map(describe_requests, files[:MAX_LOOKED_AT])), None)
    endpoint = None if requests is None else requests.endpoints[0]
    conversations = None if endpoint else _find_conversations(columns)
    text_field = conversations or (
        _REQUEST_TEXTS[endpoint] if endpoint else _choose_text(columns, hide_secrets(pattern))
    )
    id_field = "custom_id" if endpoint else _choose_id(columns, text_field)
    target = place.absolute().parent
    default = DEFAULT_EMBEDDING_MODEL if endpoint == EMBEDDINGS else DEFAULT_MODEL
    shown = _relate(model, target) if model and (folder / model).is_dir() else model or default
    beginning = _Beginning(_name_job(hide_secrets(pattern)), _relate(pattern, target), shown, model is None)
    lines = (
        _write_text_job(beginning, columns, text_field, id_field, is_conversation=conversations is not None)
        if requests is None
        else _write_request_job(beginning, requests)
    )
    return Draft("\n".join(lines) + "\n", columns, text_field, id_field, len(files), endpoint)


def write_draft(draft: Draft, place: Path, *, may_replace: bool) -> Job:
    """Write the job file, and load it as a run would. Raises JobError when it is there, or cannot be written."""
    if os.path.lexists(place) and not may_replace:
        raise JobError(f"{place}: is there already; name another file with --to, or replace it with --force")
    with replacing(place) as stream:
        stream.write(draft.text.encode())
    job = load_job(place)
    with job.placing():
        check_fields(job, PromptTemplate.of(job.spec), find_input(job))
    return job


def _choose_text(columns: Sequence[Column], pattern: str) -> str:
    """The longest text that most rows have; a name that texts usually have breaks ties within a factor of two."""
    usable = [column for column in columns if _can_print(column.name) and column.num_values]
    if not usable:
        found = ", ".join(column.name for column in columns[:MAX_TOLD]) or "none"
        raise InputError(
            f"{pattern}: no column has values and a name that a prompt can print (letters, digits, _); columns: {found}"
        )
    common = [column for column in usable if 2 * column.num_values >= column.num_rows] or usable
    unnamed = [column for column in common if not _ID_NAME.fullmatch(column.name)] or common
    texts = [column for column in common if column.type in {"text", "mixed"}] or unnamed
    longest = max(column.mean_chars for column in texts)
    named = [column for column in texts if column.name.lower() in _TEXT_NAMES and 2 * column.mean_chars >= longest]
    return max(named or texts, key=lambda column: column.mean_chars).name


def _find_conversations(columns: Sequence[Column]) -> str | None:
    """A column whose values are lists of messages, as chats have them."""
    named = (column for column in columns if column.type == "list" and 2 * column.num_values >= column.num_rows)
    return next((column.name for column in named if all(map(_is_conversation, column.examples))), None)


def _is_conversation(value: object) -> bool:
    messages = value if isinstance(value, list) else []
    return bool(messages) and all(isinstance(part, dict) and {"role", "content"} <= part.keys() for part in messages)


def _can_print(name: str) -> bool:
    """Whether `{{ name }}` is the value of that field; some words are Jinja's own."""
    if not _FIELD.fullmatch(name):
        return False
    try:
        template = PromptTemplate.parse(None, f"{{{{ {name} }}}}")
    except JobError:
        return False
    rendered = template.render(Document(Origin("", 1, ""), {name: name}))
    return isinstance(rendered, tuple) and rendered[0].content == name


def _choose_id(columns: Sequence[Column], text_field: str) -> str | None:
    """A short column that is different in each row; one with a name like an id, if there is one."""
    unique = [
        column
        for column in columns
        if column.name != text_field
        and column.type in {"text", "number"}
        and column.num_values == column.num_different == column.num_rows
        and column.mean_chars <= MAX_ID_CHARS
    ]
    named = [column for column in unique if _ID_NAME.fullmatch(column.name)]
    if named:
        return named[0].name
    short = [column for column in unique if column.num_rows >= MIN_ROWS_FOR_ID and _looks_like_id(column)]
    return min(short, key=lambda column: column.mean_chars).name if short else None


def _looks_like_id(column: Column) -> bool:
    """One word each."""
    return column.type == "text" and not any(" " in str(example) for example in column.examples)


@dataclass(frozen=True, slots=True)
class _Beginning:
    """What each job says first."""

    name: str
    path: str
    model: str
    is_default_model: bool

    def write_input(self, target: str) -> Iterator[str]:
        yield "# Written by `bulkinfer init`. Paths are relative to this file; `bulkinfer schema` has every key."
        yield "#"
        yield "#     bulkinfer plan FILE                # what it would do, without the model"
        yield "#     bulkinfer run FILE --limit 10      # try it; the same again asks only what is missing"
        yield f"#     bulkinfer export FILE --to {target}"
        yield f"name: {_quote(self.name)}"
        yield ""
        yield "input:"
        if hide_secrets(self.path) != self.path:
            yield "  # What is secret in it belongs into an environment variable; ${NAME} stands for one."
        yield f"  path: {_quote(self.path)}"

    def write_model(self) -> Iterator[str]:
        yield ""
        yield "model:"
        if self.is_default_model:
            yield "  # Tiny: it shows how things work, not how good they are. Name your own: a hub id, or a folder."
        yield f"  path: {_quote(self.model)}"

    def write_end(self) -> Iterator[str]:
        yield ""
        yield "limits:"
        yield "  max_failures: 5%                     # more, and the run ends with exit code 5"
        yield ""
        yield "output:"
        yield f"  database: {_quote(f'{self.name}.duckdb')}"


def _write_text_job(
    beginning: _Beginning,
    columns: Sequence[Column],
    text_field: str,
    id_field: str | None,
    *,
    is_conversation: bool,
) -> Iterator[str]:
    yield from beginning.write_input("answers.parquet")
    if id_field is None:
        yield "  # id: ...                            # a column that names a row; none is short and different in each"
    else:
        yield f"  id: {_quote(id_field)}  # names a row in results and failures"
    yield from beginning.write_model()
    yield ""
    yield "prompt:"
    if is_conversation:
        yield f"  messages: {_quote(text_field)}  # each row brings its conversation; the model writes its next message"
    else:
        yield from _write_prompt(columns, text_field)
    yield ""
    yield "sampling:"
    yield "  temperature: 0                       # always the most likely token"
    yield "  max_tokens: 128                      # an answer that needs more is a failure, `truncated`"
    yield from beginning.write_end()


def _write_prompt(columns: Sequence[Column], text_field: str) -> Iterator[str]:
    yield "  system: You summarise texts in one short sentence."
    yield "  user: |"
    yield f"    {{{{ {text_field} }}}}"
    yield ""
    yield "    Summarise this in one short sentence."
    yield from _tell_columns(columns, text_field)


def _write_request_job(beginning: _Beginning, requests: BatchRequests) -> Iterator[str]:
    """Requests bring prompt, parameters and names of their own."""
    endpoint, *others = requests.endpoints
    yield from beginning.write_input("answers.openai.jsonl")
    yield "  format: openai                       # requests of OpenAI's batch API, each named by its custom_id"
    yield f"  openai_url: {endpoint}"
    for other in others:
        yield f"  # There are requests for {other}, too: they are failures here, and need a job of their own."
    if requests.models:
        names = ", ".join(map(_quote_in_list, requests.models[:MAX_TOLD]))
        yield f"  openai_model: [{names}]  # what they call the model; it is the job's that answers"
    yield from beginning.write_model()
    if endpoint == EMBEDDINGS:
        yield ""
        yield "task:"
        yield "  kind: embed"
    else:
        yield ""
        yield "sampling:                              # of requests that do not say"
        yield "  temperature: 0                       # always the most likely token"
        yield "  max_tokens: 256                      # an answer that needs more is a failure, `truncated`"
    yield from beginning.write_end()


def _tell_columns(columns: Sequence[Column], text_field: str) -> Iterator[str]:
    others = [column for column in columns if column.name != text_field and _can_print(column.name)]
    if others:
        yield "  # Other fields that the prompt can print; one that may be missing needs {{ name | default('') }}:"
    for column in others[:MAX_TOLD]:
        length = f", {column.mean_chars:.0f} characters" if column.mean_chars else ""
        holes = "" if column.num_values == column.num_rows else f", in {column.num_values} of {column.num_rows} rows"
        yield f"  #   {{{{ {column.name} }}}}  {column.type}{length}{holes}"


def _name_job(pattern: str) -> str:
    stem = re.sub(r"[*?\[\]]", "", pattern.rstrip("/").rpartition("/")[2]).partition(".")[0]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem)[:100].strip("-_.") or "job"


def _relate(path: str, folder: Path) -> str:
    """The path as a file in the folder names it; absolute ones, those of a home folder and URLs stay."""
    if path.startswith(("/", "~")) or "://" in path:
        return path
    return os.path.relpath(Path.cwd() / path, folder)


def _quote(text: str) -> str:
    """A text as YAML reads it back, and a job file takes it."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS and not re.fullmatch(r"[0-9._+eE-]+|~", text):
        return text
    return _quote_in_list(text)


def _quote_in_list(text: str) -> str:
    return json.dumps(re.sub(r"(\$?\$\{)", r"$\1", text), ensure_ascii=False)
