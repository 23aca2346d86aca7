"""A run as lines of JSON, one object each, for who collects logs: `run --log-format json`. No text of documents."""

import sys
import time
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType
from typing import TextIO

from bulkinfer.errors import BulkinferError
from bulkinfer.events import (
    Cancelled,
    Committed,
    Draining,
    EngineGivenUp,
    EngineRestarting,
    EngineStarted,
    EngineStarting,
    Event,
    MetricsServed,
    Progress,
    RunEnded,
    RunStarted,
    ShardTaken,
    Warned,
)
from bulkinfer.records import JsonValue, RunStatus
from bulkinfer.streams import encode_json

PROGRESS_EVERY_S = 5.0
"""One line so often, as without a terminal."""


class LogFormat(StrEnum):
    """How a run tells people, or a log, what it does."""

    HUMAN = "human"
    JSON = "json"


class Level(StrEnum):
    """How much a line matters."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class JsonLog:
    """The log of one run, on stderr. Use as a context manager, and give it to the run as its event sink.

    Each line has `time` (UTC), `level`, `event` and `job`; from the run's beginning on `run_id`, and from its first
    shard on `shard`. What ends the block with an error has a line, too; its message is then taken out of the error, so
    that nobody prints it a second time, in another format.
    """

    def __init__(self, job: str, *, is_quiet: bool = False, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_quiet = is_quiet
        self._common: dict[str, JsonValue] = {"job": job}
        self._num_results = 0
        self._num_failures = 0
        self._told_s = 0.0
        self._has_ended = False

    def __enter__(self) -> "JsonLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, BulkinferError) and str(error):
            if not self._has_ended:
                self._write(Level.ERROR, "error", code=error.code, exit_code=int(error.exit_code), message=str(error))
            error.args = ()
        elif isinstance(error, Exception) and not isinstance(error, BulkinferError):  # a bug; its traceback follows
            self._write(Level.ERROR, "bug", exit_code=1, message=type(error).__name__)

    def __call__(self, event: Event) -> None:
        """Take one event of the run."""
        match event:
            case RunStarted():
                self._common = {"job": event.job, "run_id": str(event.run_id)}
                self._write(
                    Level.INFO,
                    "run_started",
                    task_fingerprint=str(event.task_fingerprint),
                    database=event.database,
                    num_source_files=event.num_source_files,
                    input_size_bytes=event.input_size_bytes,
                )
            case Warned(message):
                self._write(Level.WARNING, "warning", message=message)
            case ShardTaken():
                self._common["shard"] = event.number
                self._write(
                    Level.INFO,
                    "shard_taken",
                    num_read=event.num_read,
                    num_skipped=event.num_skipped,
                    num_requests=event.num_requests,
                    num_failures=event.num_failures,
                )
            case Committed():  # once a second, or ten times: the next progress tells it
                self._num_results += event.num_results
                self._num_failures += event.num_failures
            case Progress():
                self._tell_progress(event)
            case RunEnded():
                self._has_ended = True
                self._tell_end(event)
            case MetricsServed(url):
                self._write(Level.INFO, "metrics_served", url=url)
            case _:
                self._tell_engine(event)

    def _tell_engine(self, event: Event) -> None:
        match event:
            case EngineStarting(model, restarts, replica):
                self._write(Level.INFO, "engine_starting", engine=replica or 0, model=model, restarts=restarts)
            case EngineStarted(start_s=start_s, replica=replica):
                self._write(Level.INFO, "engine_started", engine=replica or 0, start_s=round(start_s, 3))
            case EngineRestarting(reason, num_in_flight, wait_s, replica):
                self._write(
                    Level.WARNING,
                    "engine_died",
                    engine=replica or 0,
                    message=reason,
                    num_in_flight=num_in_flight,
                    wait_s=round(wait_s, 3),
                )
            case EngineGivenUp(replica):
                self._write(Level.WARNING, "engine_given_up", engine=replica)
            case Draining(signal_number, num_in_flight, grace_s):
                self._write(
                    Level.WARNING, "draining", signal=signal_number, num_in_flight=num_in_flight, grace_s=grace_s
                )
            case Cancelled(num_documents):
                self._write(Level.WARNING, "cancelled", num_documents=num_documents)

    def _tell_progress(self, progress: Progress) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s < PROGRESS_EVERY_S:
            return
        is_first, self._told_s = self._told_s == 0, now_s
        if is_first:  # nothing has happened yet
            return
        self._write(
            Level.INFO,
            "progress",
            elapsed_s=round(progress.elapsed_s, 3),
            documents={
                "read": progress.num_read,
                "skipped": progress.num_skipped,
                "to_do": progress.num_to_do,
                "succeeded": progress.num_succeeded,
                "failed": progress.num_failed,
                "failed_by_code": {code.value: count for code, count in sorted(progress.failed_by_code.items())},
                "committed": self._num_results + self._num_failures,
                "queued": progress.num_queued,
                "in_flight": progress.num_in_flight,
                "is_read_to_end": progress.is_read_to_end,
            },
            tokens={
                "prompt": progress.prompt_tokens,
                "cached": progress.cached_tokens,
                "output": progress.output_tokens,
                "prompt_per_s": round(progress.prompt_tokens_per_s, 1),
                "output_per_s": round(progress.output_tokens_per_s, 1),
            },
            engine={
                "active": progress.num_active,
                "kv_cache_usage": round(progress.kv_cache_usage, 4),
                "preemptions": progress.num_preemptions,
                "restarts": progress.num_restarts,
                "ready": progress.num_replicas_ready,
            },
            memory_bytes={"runner": progress.runner_memory_bytes, "engine": progress.engine_memory_bytes},
            time_left_s=None if progress.time_left_s is None else round(progress.time_left_s, 1),
        )

    def _tell_end(self, ended: RunEnded) -> None:
        level = {RunStatus.COMPLETED: Level.INFO, RunStatus.INTERRUPTED: Level.WARNING}.get(ended.status, Level.ERROR)
        names = ("status", "exit_code", "error", "documents", "tokens", "seconds", "throughput", "peak_memory_bytes")
        self._write(level, "run_ended", **{name: ended.summary.get(name) for name in names})

    def _write(self, level: Level, event: str, **fields: JsonValue) -> None:
        if self._is_quiet and level is not Level.ERROR:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": now, "level": level.value, "event": event, **self._common, **fields}
        self._stream.write(encode_json(line) + "\n")
        self._stream.flush()
