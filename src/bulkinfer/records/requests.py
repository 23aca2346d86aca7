"""What the engine is asked for one document, and what it returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from bulkinfer.records.documents import JsonValue, Origin
from bulkinfer.records.images import ImageFile
from bulkinfer.records.outcomes import FailureCode

FORM = "structured_outputs"
"""The sampling parameter, by vLLM's name, that holds answers to a form."""
IMAGE_CHARS_PER_CHAR = 32
"""See `Request.sent_chars`."""


class FinishReason(StrEnum):
    """Why the engine stopped, in vLLM's words, but for the last."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"
    WHITE_SPACE = "white_space"
    """Our own: a structured answer went on with nothing but white space."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of the conversation that is the prompt; or one of the texts that are completed, embedded or scored."""

    role: str
    """Of a turn, as chat templates name it; of a text, its key in `prompt`: text, query, document."""
    content: str
    images: tuple[str, ...] = field(default=(), repr=False)
    """Before the text: `data:` URLs, or keys of the request's image files."""


class RepairStep(StrEnum):
    """What is done about an answer that was not kept."""

    AGAIN = "again"
    """Asked again, for another draw."""
    LONGER = "longer"
    """With more tokens."""
    SHOWN = "shown"
    """With the answer and what is wrong with it as further turns."""


@dataclass(frozen=True, slots=True)
class Repair:
    """An answer that was not kept, and what was done about it."""

    code: FailureCode
    message: str
    raw_output: str
    output_tokens: int
    max_tokens: int
    """Of the attempt that gave it."""
    step: RepairStep

    def describe(self) -> dict[str, JsonValue]:
        """For `details.repairs`: in numbers, without the answer."""
        return {
            "code": str(self.code),
            "message": self.message,
            "output_tokens": self.output_tokens,
            "max_tokens": self.max_tokens,
            "then": str(self.step),
        }


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a message that the document brings: all else is the job's own text, and is never cut."""

    message: int
    """Which of the messages, from 0."""
    start: int
    """In characters of its content; likewise the next."""
    end: int
    """Behind the last one."""


class Overlong(StrEnum):
    """What is done with a document that does not fit into the context."""

    FAIL = "fail"
    TRUNCATE_HEAD = "truncate_head"
    """The head is cut away: the end stays."""
    TRUNCATE_MIDDLE = "truncate_middle"
    """Both ends stay, with a marker between them."""
    TRUNCATE_TAIL = "truncate_tail"
    """The tail is cut away: the beginning stays."""
    SPLIT = "split"
    """Overlapping parts are answered, and the answers joined."""


@dataclass(frozen=True, slots=True)
class Request:
    """A rendered document, ready for the engine. The sampling parameters are the job's, but for those in `sampling`."""

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
    sampling: Mapping[str, JsonValue] = field(default_factory=dict)
    """Parameters of this request alone, by vLLM's names; they go before the job's."""
    adapter: str | None = None
    """The name of the LoRA adapter that answers; None: the model alone."""
    priority: int = 0
    """Lower is earlier, as in vLLM. Counts in an engine that was started with priorities; elsewhere the first comes
    first."""
    image_files: Mapping[str, ImageFile] = field(default_factory=dict)
    """The files of its messages' images, by key."""
    num_image_chars: int = 0
    """Of all its images as text, as the engine gets them."""
    spans: tuple[Span, ...] = ()
    """What may be cut where the prompt is too long; empty: nothing."""
    fields: Mapping[str, JsonValue] | None = None
    """What the answers to parts of it are joined with, where it may be split."""
    repairs: tuple[Repair, ...] = ()
    """Answers to it in this run that were not kept."""

    @property
    def held_chars(self) -> int:
        """Characters that it holds in memory itself, images that are no files among them."""
        return self.num_chars + sum(len(image) for message in self.messages for image in message.images)

    @property
    def sent_chars(self) -> int:
        """What it counts for among requests in flight, in characters of text: an image weighs less, as the engine's
        process alone holds it, and the text of an image is made for one computation and then dropped."""
        return self.num_chars + self.num_image_chars // IMAGE_CHARS_PER_CHAR


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
    details: Mapping[str, JsonValue] | None = None
    """What the task asks for besides the text: see `Result.details`."""
    vector: bytes | None = None
    """Of a task that makes vectors: 32-bit floats in this machine's order of bytes. `text` is empty then."""
    fault: str | None = None
    """Why `text` could not be read as an answer, without it. Of several answers, `details.outputs` has that of each."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """The engine did not run one request. It says nothing about the others."""

    document_hash: bytes
    code: FailureCode
    message: str
    prompt_tokens: int | None = None
    room_tokens: int | None = None
    """Of a prompt that is too long: what it might have had."""
    cuts: tuple[tuple[int, int], ...] = ()
    """Of a prompt that is to be split: start and end of each part, in characters of the longest text of its spans."""
    longest_tokens: int | None = None
    """Of the prompts of those parts."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """Requests that the engine has dropped, as it was asked to: nothing comes for them any more. A reading follows."""

    document_hashes: tuple[bytes, ...]
