"""The values that cross module boundaries: documents, requests, completions, outcomes, counts.

All are frozen. Nothing here reads, writes or decides. Hashes are the first 16 bytes of a SHA-256.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from uuid import UUID

JsonValue = str | int | float | bool | None | Sequence["JsonValue"] | Mapping[str, "JsonValue"]
"""A value as JSON has it. Sources turn everything else (dates, decimals, UTF-8 bytes, NaN) into one of these."""


class FailureCode(StrEnum):
    """Why one document has no answer. Stable: users select by them."""

    UNREADABLE_ROW = "unreadable_row"
    """The row is not a document: broken JSON, an array, invalid UTF-8, a value that is no text."""
    MISSING_FIELD = "missing_field"
    """The prompt prints a field that the document lacks, or that is null."""
    TEMPLATE_ERROR = "template_error"
    """The template failed on this document for another reason."""
    EMPTY_PROMPT = "empty_prompt"
    """The rendered user message is empty or only white space."""
    PROMPT_TOO_LONG = "prompt_too_long"
    """Prompt tokens + max_tokens exceed `limits.max_context_tokens`."""
    ENGINE_REJECTED = "engine_rejected"
    """The engine refused the request as invalid."""
    TRUNCATED = "truncated"
    """The answer was cut at max_tokens."""
    INVALID_OUTPUT = "invalid_output"
    """The answer is not what the job promises: not valid JSON, not one of the choices, empty."""
    ENGINE_ERROR = "engine_error"
    """The engine failed on this request for a reason of its own."""
    ENGINE_KILLER = "engine_killer"
    """The engine died each time that this document was in flight alone."""


class FinishReason(StrEnum):
    """Why the engine stopped, in vLLM's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a document comes from."""

    source: str
    """The file, as the job file names it: relative to the job file where the job says so."""
    row: int
    """From 1; the line number in a JSONL file."""
    document_id: str
    """The value of the job's `input.id` field, else "<source>:<row>"."""


@dataclass(frozen=True, slots=True)
class Document:
    """One input row that could be read."""

    origin: Origin
    fields: Mapping[str, JsonValue]
    """The fields that the prompt uses and that the row has; absent and null are different."""


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """One input row that could not be read. It becomes a failure, never a stop."""

    origin: Origin
    digest: bytes
    """16 bytes, of the row as it stands: a mended row is a new document."""
    reason: str
    """Names file, line and what is wrong; never quotes the row."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of the conversation that is the prompt."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Request:
    """A rendered document, ready for the engine. The sampling parameters are the job's, except for `max_tokens`."""

    document_hash: bytes
    origin: Origin
    """Of the first row that holds this document."""
    messages: tuple[Message, ...]
    num_chars: int
    """Characters of all messages: what requests are ordered by before anything is tokenised."""
    attempt: int = 1
    queued_at_s: float = 0.0
    """When it entered the queue, on the engine's clock."""
    prefix_group: int | None = None
    """Requests of one shard with the same number share a long beginning; None: alone."""
    max_tokens: int | None = None
    """The most tokens of this answer; None: as many as the job says."""
    priority: int = 0
    """Lower is earlier, as in vLLM. Counts in an engine that was started with priorities; elsewhere the first comes
    first."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What the engine returned for one request. Durations count from the moment that the engine was given it."""

    document_hash: bytes
    text: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that came from the prefix cache."""
    output_tokens: int
    queue_s: float
    """Until the scheduler first ran it."""
    first_token_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Rejection:
    """The engine did not run one request. It says nothing about the others."""

    document_hash: bytes
    code: FailureCode
    message: str
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Aborted:
    """Requests that the engine has dropped, as it was asked to: nothing comes for them any more. A reading follows."""

    document_hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """What is known of the work when an engine is started; nothing, by default. Engines choose settings by it."""

    num_documents: int | None = None
    """Documents still to do in the whole input, estimated from the share of it that has been read."""
    mean_chars: float = 0.0
    """Of the rendered prompts found so far; likewise the next three."""
    p95_bytes: int = 0
    """In UTF-8: it tells the tokens of scripts with several bytes a character better than characters do."""
    max_chars: int = 0
    is_read_to_end: bool = False
    """Whether these are all prompts that there will be."""
    tokens_per_s: float | None = None
    """Prompt and output tokens per second of the last long run of this model on this machine, of all its engines."""
    longest_bytes: tuple[int, ...] = ()
    """Bytes of the longest prompts, the longest first: all, or NUM_LONGEST of them."""


NUM_LONGEST = 256
"""Prompts whose lengths a `Workload` tells one by one: they run first, and together."""


UNKNOWN_WORKLOAD = Workload()


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The model is loaded. `settings` are the engine's own words for what was chosen.

    What was chosen and not given by the job has a line in `settings["reasons"]`, by name.
    """

    start_s: float
    num_kv_cache_tokens: int
    settings: Mapping[str, JsonValue]
    max_concurrency: int | None = None
    """Sequences that the engine runs at once; None: as many as the job says."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A reading of the engine, sent about twice a second while it works. Counters count from the engine's start."""

    num_active: int
    """Sequences that the scheduler is running."""
    num_waiting: int
    """Requests inside the engine that wait for a free slot."""
    kv_cache_usage: float
    """Share of the KV cache blocks in use, 0 to 1."""
    num_preemptions: int
    num_steps: int
    num_output_tokens: int
    memory_bytes: int
    """Peak resident memory of the engine's process and its children, now."""
    num_prompt_tokens: int = 0
    """Of the prompts whose first token is out; those from the prefix cache count too."""
    num_full_steps: int = 0
    """Steps with as many sequences as there are slots, or with requests that had to wait."""
    num_fed_steps: int = 0
    """Steps up to the last full one or to the last request that came; in the tail after them no step can be full."""
    idle_s: float = 0.0
    """How long the engine had nothing to run before it got more: nothing had come, or it was not rendered yet."""
    num_aborted: int = 0
    """Requests that were dropped because somebody asked for it."""
    num_kv_blocks: int = 0
    """Blocks of the KV cache that requests can have; 0: the engine does not tell."""
    num_free_kv_blocks: int = 0
    """Those of them that no request has, now. What is only kept for the prefix cache is free."""
    peak_active: int = 0
    """The most sequences in any step since the reading before this one; likewise the next."""
    peak_kv_cache_usage: float = 0.0
    gpu_memory_bytes: int = 0
    """In use on the GPUs that the engine has, now; 0 without one."""
    busy_s: float = 0.0
    """How long its steps took. With the next two, and `num_output_tokens`, what a step costs can be fitted."""
    num_computed_prompt_tokens: int = 0
    """Prompt tokens that did not come from the prefix cache; a sequence that was put back counts again."""
    num_context_tokens: int = 0
    """Tokens in the KV cache that sequences looked back at, summed over the steps; 0: not told."""


EngineEvent = EngineReady | EngineStats | Completion | Rejection | Aborted


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to one document."""

    document_hash: bytes
    output: str
    value: str | None
    """The parsed answer as JSON text, where the job asks for JSON."""
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_s: float
    """From entering the queue until the scheduler first ran it; likewise the next two."""
    first_token_s: float
    total_s: float
    attempts: int
    completed_at: datetime


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one document has no answer."""

    document_hash: bytes
    origin: Origin
    code: FailureCode
    message: str
    """Names field, line and limit; never quotes the document, the prompt or the answer."""
    raw_output: str | None
    attempts: int
    retryable: bool
    failed_at: datetime


Outcome = Result | Failure


class Only(StrEnum):
    """Which documents a run takes."""

    NEW = "new"
    FAILED = "failed"
    TRUNCATED = "truncated"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One input file, with what tells whether it changed since it was last read."""

    path: Path
    name: str
    """How it is named in the store and in messages; see `Origin.source`."""
    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class Scan:
    """One reading of one source file for one job, as the store knows it."""

    scan_id: UUID
    source: SourceFile
    num_known_rows: int
    """Rows 1 to this are in the store already, from an earlier run over the same unchanged file."""
    is_complete: bool = False
    """The file has no other rows than those."""
    is_settled: bool = True
    """The file's times prove that those rows are as they were read."""


@dataclass(frozen=True, slots=True)
class KnownSpan:
    """Rows of one scan that are in the store: those after `after`, up to `last_row`."""

    scan_id: UUID
    after: int
    last_row: int


@dataclass(frozen=True, slots=True)
class WantedRows:
    """Of one span, the rows whose document a run has to ask."""

    num_rows: int
    """Rows that the span has; less than its numbers where lines of a file are blank."""
    rows: Sequence[int]
    """Those that are wanted, ascending."""
    places: Sequence[int]
    """Of each of these: the how-manieth row of the span it is, from 1."""


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """The line that one input row gets in `documents`."""

    scan_id: UUID
    row: int
    document_hash: bytes
    document_id: str


@dataclass(frozen=True, slots=True)
class Commit:
    """One transaction that is on disk."""

    seq: int
    num_results: int
    num_failures: int
    document_hashes: tuple[bytes, ...]
    """Of the outcomes in it."""
    failure_codes: Mapping[FailureCode, int]
    """Of the failures in it."""
    commit_s: float
    database_bytes: int = 0
    """Size of the database after it, the write-ahead log included."""


class RunStatus(StrEnum):
    """How a run stands or ended."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    LOCKED = "locked"


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of a duration, in seconds; None where there is no result to take them from."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Latency:
    """Of the results that one run committed."""

    queue: Percentiles = Percentiles()
    first_token: Percentiles = Percentiles()
    total: Percentiles = Percentiles()
