"""What a run tells the outside while it runs. One callable takes them all; display, logs and status hang on it.

No event holds text of a document, a prompt or an answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from bulkinfer.records import FailureCode, JsonValue, RunStatus


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The job is loaded, the database is ours."""

    job: str
    run_id: UUID
    task_fingerprint: UUID
    database: str
    num_source_files: int
    input_size_bytes: int


@dataclass(frozen=True, slots=True)
class Warned:
    """Something is not as it should be, and the run goes on without it."""

    message: str


@dataclass(frozen=True, slots=True)
class EngineStarting:
    """The first document to do was found, so the model is being loaded; or it is loaded again after a death."""

    model: str
    restarts: int
    replica: int | None = None
    """Which engine, from 0; None where there is one. Likewise below."""


@dataclass(frozen=True, slots=True)
class EngineStarted:
    """The model is loaded."""

    start_s: float
    settings: Mapping[str, JsonValue]
    replica: int | None = None


@dataclass(frozen=True, slots=True)
class EngineLost:
    """An engine died, whether it is started again or not; for who counts deaths."""

    replica: int | None = None


@dataclass(frozen=True, slots=True)
class EngineRestarting:
    """The engine died; what was in flight goes back into the queue."""

    reason: str
    num_in_flight: int
    wait_s: float
    replica: int | None = None


@dataclass(frozen=True, slots=True)
class EngineGivenUp:
    """The engine is not started again, and others go on; a warning says why."""

    replica: int


@dataclass(frozen=True, slots=True)
class Draining:
    """The run stops early; what is in flight may finish for up to `grace_s`."""

    signal_number: int | None
    """None when too many documents failed."""
    num_in_flight: int
    grace_s: float


class RunPhase(StrEnum):
    """What a run is about."""

    READING = "reading"
    """No engine was needed yet."""
    LOADING = "loading"
    RUNNING = "running"
    RESTARTING = "restarting"
    """No engine lives; one waits for its next start."""
    STOPPING = "stopping"


class EnginePhase(StrEnum):
    """What one engine is about."""

    UNUSED = "unused"
    """There was never enough to do for it."""
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    """It died, and waits for its next start."""
    GIVEN_UP = "given_up"


@dataclass(frozen=True, slots=True)
class ActiveDocument:
    """A document that an engine has."""

    document_id: str
    """Cut after 200 characters."""
    in_flight_s: float
    """Since the engine was given it, on the engine's clock."""
    attempt: int
    num_chars: int
    """Of its prompt."""
    replica: int


@dataclass(frozen=True, slots=True)
class EngineProgress:
    """Where one engine stands."""

    replica: int
    phase: EnginePhase
    num_documents: int
    """That it answered in this run, restarts included."""
    num_in_flight: int
    window_capacity: int
    """Requests that it may have at once; 0 unless it is ready."""
    num_active: int
    kv_cache_usage: float
    num_restarts: int
    since_result_s: float | None
    """How long nothing has come back; None while nothing is in flight."""


@dataclass(frozen=True, slots=True)
class Trend:
    """What was done in each stretch of the last minutes, the latest last. It begins with the first request."""

    stretch_s: float = 1.0
    """Of each; it grows with the run."""
    num_documents: tuple[int, ...] = ()
    """That the engines were asked and that have an outcome."""
    num_prompt_tokens: tuple[int, ...] = ()
    """Computed, for answers and for sequences that still run; likewise the next."""
    num_output_tokens: tuple[int, ...] = ()


NO_TREND = Trend()


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the run stands; about four times a second."""

    elapsed_s: float
    num_read: int
    num_skipped: int
    """Rows whose document is answered already, failed earlier, or stands earlier in the input."""
    num_to_do: int
    """Documents found so far that had no outcome before this run; all there are once `is_read_to_end`."""
    num_succeeded: int
    num_failed: int
    failed_by_code: Mapping[FailureCode, int]
    is_read_to_end: bool
    share_read: float
    """Share of the input's bytes that has been read, 0 to 1: what the estimate for unread documents rests on."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    prompt_tokens_per_s: float
    """Over the last half minute; likewise the next."""
    output_tokens_per_s: float
    tokens_left: float | None
    """Prompt and output tokens still to do, estimated from characters left; None before there is a first result."""
    time_left_s: float | None
    num_queued: int
    num_in_flight: int
    num_active: int
    kv_cache_usage: float
    engine_memory_bytes: int
    runner_memory_bytes: int
    num_replicas: int = 1
    """Engines that the job has, but for those given up."""
    num_replicas_ready: int = 0
    """Those of them that have a model loaded."""
    num_preemptions: int = 0
    """Of all engines in all their lives; likewise the next."""
    num_restarts: int = 0
    gpu_memory_bytes: int = 0
    """In use on the engines' GPUs; 0 without one."""
    phase: RunPhase = RunPhase.RUNNING
    documents_per_s: float = 0.0
    """Outcomes of documents that the engines were asked, over the last half minute."""
    queue_capacity: int = 0
    window_capacity: int = 0
    """Requests that the engines which are ready may have at once; `num_in_flight` are what they have."""
    since_result_s: float | None = None
    """How long no document has come back; None while none is in flight."""
    slowest: tuple[ActiveDocument, ...] = ()
    """Those that are in flight longest, the longest first."""
    trend: Trend = NO_TREND
    engines: tuple[EngineProgress, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardTaken:
    """The loop took a shard over: its requests stand before the queue now."""

    number: int
    """From 1."""
    num_read: int
    num_skipped: int
    """Rows whose document has an outcome already, or stands earlier in the input."""
    num_requests: int
    num_failures: int
    """Rows that gave no request: unreadable, or without a prompt."""


@dataclass(frozen=True, slots=True)
class Finished:
    """One attempt at a document that is over, in numbers."""

    code: FailureCode | None
    """None: it is answered."""
    attempts: int
    """0: the engine never saw it."""
    is_asked_again: bool = False
    """It failed for a reason that may pass, and has no outcome yet."""
    prompt_tokens: int = 0
    """0 where the engine completed nothing; likewise the next two."""
    cached_tokens: int = 0
    output_tokens: int = 0
    queue_s: float | None = None
    """From entering the queue until the scheduler first ran it; None without an answer. Likewise the next two."""
    first_token_s: float | None = None
    total_s: float | None = None


@dataclass(frozen=True, slots=True)
class DocumentsFinished:
    """Attempts that ended. Told only to a run that was asked to (`RunOptions.tells_documents`): they are many."""

    documents: tuple[Finished, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """Outcomes are on disk."""

    seq: int
    num_results: int
    num_failures: int
    commit_s: float
    database_bytes: int
    """Size of the database after it, the write-ahead log included."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The run stopped while these were in flight. They have no outcome; the next run asks them again."""

    num_documents: int


@dataclass(frozen=True, slots=True)
class MetricsServed:
    """Who wants the metrics of this run asks here."""

    url: str


@dataclass(frozen=True, slots=True)
class Reading:
    """How far a plan has read the input."""

    num_read: int
    share_read: float
    """Of the input's bytes, 0 to 1."""

    def describe(self) -> str:
        """One line for people."""
        return f"reading the input: {self.num_read:,} rows, {100 * self.share_read:.0f} %"


@dataclass(frozen=True, slots=True)
class Counting:
    """A plan renders and tokenizes a sample."""

    num_documents: int
    num_counted: int

    def describe(self) -> str:
        """One line for people."""
        return f"counting tokens: {self.num_counted:,} of a sample of {self.num_documents:,} documents"


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run is over; `summary` is what `run --json` prints."""

    status: RunStatus
    summary: Mapping[str, JsonValue]


Event = (
    RunStarted
    | Warned
    | EngineStarting
    | EngineStarted
    | EngineLost
    | EngineRestarting
    | EngineGivenUp
    | Draining
    | Progress
    | ShardTaken
    | DocumentsFinished
    | Committed
    | Cancelled
    | MetricsServed
    | Reading
    | Counting
    | RunEnded
)
EventSink = Callable[[Event], None]
