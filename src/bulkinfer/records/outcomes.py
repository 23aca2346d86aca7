"""What a document ends with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from bulkinfer.records.documents import JsonValue, Origin


class FailureCode(StrEnum):
    """Why one document has no answer. Stable: users select by them."""

    UNREADABLE_ROW = "unreadable_row"
    """The row is not a document: broken JSON, an array, invalid UTF-8, a value that is no text."""
    MISSING_FIELD = "missing_field"
    """The prompt prints a field that the document lacks, or that is null."""
    INVALID_FIELD = "invalid_field"
    """A field that is no text of the prompt is not what it has to be: a conversation, a sampling parameter."""
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
    """The answer is not what the job promises: not valid JSON, not one of the choices, empty, no finite number."""
    ENGINE_ERROR = "engine_error"
    """The engine failed on this request for a reason of its own."""
    ENGINE_KILLER = "engine_killer"
    """The engine died each time that this document was in flight alone."""


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to one document."""

    document_hash: bytes
    output: str
    value: str | None
    """The parsed answer as JSON text, where the job asks for JSON; or the number of a score."""
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
    details: Mapping[str, JsonValue] | None = None
    """What task and policies add: probabilities, further answers, tokens before and after a cut; docs/jobs.md."""
    vector: bytes | None = None
    """Of a task that makes vectors: 32-bit floats in this machine's order of bytes. `output` is empty then."""


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
    details: Mapping[str, JsonValue] | None = None
    """As in a result."""


@dataclass(frozen=True, slots=True)
class PartAnswer:
    """The answer to a part of a document that was split, or to the question that joins such answers.

    Not an outcome: it is kept so that a run that was ended, and an equal part of another document, need not ask again.
    """

    part_hash: bytes
    """Of what was asked: 16 bytes."""
    document_hash: bytes
    """Of the first document that it was asked for."""
    output: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    attempts: int
    answered_at: datetime
    finish_reason: str
    """As of a result: an answer that was cut is one where the job takes those."""
    repairs: Sequence[Mapping[str, JsonValue]] = ()
    """As in `details` of a result: of answers to it that were not kept."""


Outcome = Result | Failure


class Only(StrEnum):
    """Which documents a run takes: new ones, or those without an answer whose newest failure has this code."""

    NEW = "new"
    FAILED = "failed"
    """Whatever the code."""
    TRUNCATED = "truncated"
    INVALID = "invalid"
    """`invalid_output`, for short."""
    INVALID_OUTPUT = "invalid_output"
    UNREADABLE_ROW = "unreadable_row"
    MISSING_FIELD = "missing_field"
    INVALID_FIELD = "invalid_field"
    TEMPLATE_ERROR = "template_error"
    EMPTY_PROMPT = "empty_prompt"
    PROMPT_TOO_LONG = "prompt_too_long"
    ENGINE_REJECTED = "engine_rejected"
    ENGINE_ERROR = "engine_error"
    ENGINE_KILLER = "engine_killer"
