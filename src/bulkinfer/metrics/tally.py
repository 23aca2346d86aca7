"""A run's events, counted. One thread counts, others read; what they read belongs together."""

import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

from bulkinfer import __version__
from bulkinfer.events import (
    Cancelled,
    Committed,
    DocumentsFinished,
    EngineLost,
    EngineRestarting,
    EngineStarted,
    Event,
    Finished,
    Progress,
    RunEnded,
    RunStarted,
    ShardTaken,
)
from bulkinfer.metrics import catalogue as c
from bulkinfer.metrics.catalogue import CATALOGUE, Kind, Metric
from bulkinfer.records import FailureCode, RunStatus

_STATUSES = (RunStatus.RUNNING, RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.INTERRUPTED)
"""Not locked: that run has no metrics, those that there are are the other run's."""
_REJECTIONS = (FailureCode.PROMPT_TOO_LONG, FailureCode.ENGINE_REJECTED)
"""What the engine refuses before it runs it."""


@dataclass(frozen=True, slots=True)
class RunLabels:
    """What the metrics of a run are told apart by."""

    model: str
    job_name: str
    task_kind: str = "generate"
    engine_kind: str = ""

    @property
    def values(self) -> tuple[str, ...]:
        """In the order of `catalogue.LABELS`."""
        return self.model, self.job_name, self.task_kind


@dataclass(frozen=True, slots=True)
class Point:
    """One number of a metric."""

    labels: tuple[str, ...]
    """Values of the metric's own labels, in their order."""
    value: float
    """Of a histogram: the sum of what was observed."""
    counts: tuple[int, ...] = ()
    """Of a histogram: how many in each bucket, the last without a bound included; not cumulative."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A metric as it stands."""

    metric: Metric
    points: tuple[Point, ...]


class _Distribution:
    """What a histogram counts."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """A value equal to a bound belongs below it, in both formats."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Tally:
    """All metrics of one run."""

    def __init__(self, labels: RunLabels) -> None:
        self.labels = labels
        self.start_s = time.time()
        """Since when the counters count, in Unix time."""
        self._lock = Lock()
        self._values: dict[Metric, dict[tuple[str, ...], float]] = {metric: {} for metric in CATALOGUE}
        self._distributions = {
            metric: _Distribution(metric.bounds) for metric in CATALOGUE if metric.kind is Kind.HISTOGRAM
        }
        self._set_zeros()

    def take(self, event: Event) -> None:
        """Count one event."""
        with self._lock:
            match event:
                case DocumentsFinished(documents):
                    self._count(documents)
                case Progress():
                    self._note_progress(event)
                case Committed():
                    self._note_commit(event)
                case ShardTaken():
                    self._add(c.SHARDS, 1)
                case EngineStarted(start_s=start_s, replica=replica):
                    self._set(c.MODEL_LOAD, start_s, str(replica or 0))
                case EngineLost():
                    self._add(c.ENGINE_DEATHS, 1)
                case EngineRestarting(num_in_flight=num_in_flight):
                    self._add(c.DOCUMENTS_RETRIED, num_in_flight, "engine_death")
                case Cancelled(num_documents):
                    self._add(c.DOCUMENTS_CANCELLED, num_documents)
                case RunStarted():
                    self._set(c.RUN_INFO, 1, str(event.run_id), str(event.task_fingerprint), __version__)
                    self._set_status(RunStatus.RUNNING)
                case RunEnded(status):
                    self._end(status, read_exit_code(event))

    def end(self, status: RunStatus, exit_code: int) -> None:
        """The run is over, or could not begin."""
        with self._lock:
            self._end(status, exit_code)

    def read(self) -> list[Reading]:
        """Every metric as it stands now. For any thread."""
        with self._lock:
            self._set(c.LAST_UPDATE, time.time())
            return [Reading(metric, self._points(metric)) for metric in CATALOGUE]

    def _points(self, metric: Metric) -> tuple[Point, ...]:
        if metric.kind is Kind.HISTOGRAM:
            distribution = self._distributions[metric]
            return (Point((), distribution.total, tuple(distribution.counts)),)
        return tuple(Point(labels, value) for labels, value in self._values[metric].items())

    def _set_zeros(self) -> None:
        """What has not happened yet is 0, not absent: rates and alerts need it from the beginning."""
        for metric in CATALOGUE:
            if metric.kind is Kind.COUNTER and not metric.labels:
                self._set(metric, 0)
        for code in FailureCode:
            self._set(c.DOCUMENTS_FAILED, 0, code.value)
        for reason in _REJECTIONS:
            self._set(c.DOCUMENTS_REJECTED, 0, reason.value)
        for reason_text in ("engine_error", "engine_death"):
            self._set(c.DOCUMENTS_RETRIED, 0, reason_text)
        for outcome in ("result", "failure"):
            self._set(c.DOCUMENTS_COMMITTED, 0, outcome)
        self._set(c.RUN_START, self.start_s)
        for gauge in (c.DOCUMENTS_TO_DO, c.INPUT_READ, c.RUNNER_MEMORY, c.ENGINE_MEMORY, c.GPU_MEMORY):
            self._set(gauge, 0)
        self._set_idle()

    def _set_idle(self) -> None:
        for gauge in (c.QUEUED, c.IN_FLIGHT, c.ACTIVE, c.KV_CACHE_USAGE, c.ENGINES, c.ENGINES_READY):
            self._set(gauge, 0)
        self._set(c.PROMPT_TOKEN_RATE, 0)
        self._set(c.OUTPUT_TOKEN_RATE, 0)

    def _end(self, status: RunStatus, exit_code: int) -> None:
        self._set_idle()
        self._set_status(status)
        self._set(c.RUN_END, time.time())
        self._set(c.RUN_EXIT_CODE, exit_code)

    def _set_status(self, status: RunStatus) -> None:
        for one in _STATUSES:
            self._set(c.RUN_STATUS, int(one is status), one.value)

    def _note_progress(self, progress: Progress) -> None:
        for metric, value in (
            (c.DOCUMENTS_READ, progress.num_read),
            (c.DOCUMENTS_SKIPPED, progress.num_skipped),
            (c.DOCUMENTS_TO_DO, progress.num_to_do),
            (c.INPUT_READ, progress.share_read),
            (c.QUEUED, progress.num_queued),
            (c.IN_FLIGHT, progress.num_in_flight),
            (c.ACTIVE, progress.num_active),
            (c.PROMPT_TOKEN_RATE, progress.prompt_tokens_per_s),
            (c.OUTPUT_TOKEN_RATE, progress.output_tokens_per_s),
            (c.KV_CACHE_USAGE, progress.kv_cache_usage),
            (c.PREEMPTIONS, progress.num_preemptions),
            (c.ENGINES, progress.num_replicas),
            (c.ENGINES_READY, progress.num_replicas_ready),
            (c.ENGINE_RESTARTS, progress.num_restarts),
            (c.RUNNER_MEMORY, progress.runner_memory_bytes),
            (c.ENGINE_MEMORY, progress.engine_memory_bytes),
            (c.GPU_MEMORY, progress.gpu_memory_bytes),
        ):
            self._set(metric, value)

    def _note_commit(self, commit: Committed) -> None:
        self._distributions[c.COMMIT_TIME].observe(commit.commit_s)
        self._add(c.DOCUMENTS_COMMITTED, commit.num_results, "result")
        self._add(c.DOCUMENTS_COMMITTED, commit.num_failures, "failure")
        self._set(c.DATABASE_SIZE, commit.database_bytes)

    def _count(self, documents: Sequence[Finished]) -> None:
        """The one place that sees each document: tens of thousands a second, where they cost nothing else."""
        num_answered = num_hits = prompt_tokens = cached_tokens = output_tokens = 0
        see_queue, see_first = (
            self._distributions[c.QUEUE_TIME].observe,
            self._distributions[c.FIRST_TOKEN_TIME].observe,
        )
        see_total, see_generation = (
            self._distributions[c.COMPLETION_TIME].observe,
            self._distributions[c.GENERATION_TIME].observe,
        )
        see_token = self._distributions[c.PER_TOKEN_TIME].observe
        see_input, see_output = (
            self._distributions[c.INPUT_LENGTH].observe,
            self._distributions[c.OUTPUT_LENGTH].observe,
        )
        for one in documents:
            if one.prompt_tokens:
                prompt_tokens += one.prompt_tokens
                cached_tokens += one.cached_tokens
                output_tokens += one.output_tokens
                num_hits += one.cached_tokens > 0
                see_input(one.prompt_tokens)
                see_output(one.output_tokens)
            if one.queue_s is None or one.first_token_s is None or one.total_s is None:
                self._count_failed(one)
                continue
            num_answered += 1
            see_queue(one.queue_s)
            see_first(one.first_token_s)
            see_total(one.total_s)
            generation_s = max(0.0, one.total_s - one.first_token_s)
            see_generation(generation_s)
            if one.output_tokens > 1:
                see_token(generation_s / (one.output_tokens - 1))
        self._add(c.DOCUMENTS_ANSWERED, num_answered)
        self._add(c.PROMPT_TOKENS, prompt_tokens)
        self._add(c.CACHED_TOKENS, cached_tokens)
        self._add(c.OUTPUT_TOKENS, output_tokens)
        self._add(c.CACHE_HITS, num_hits)

    def _count_failed(self, one: Finished) -> None:
        assert one.code is not None
        if one.is_asked_again:
            self._add(c.DOCUMENTS_RETRIED, 1, "engine_error")
            return
        self._add(c.DOCUMENTS_FAILED, 1, one.code.value)
        if one.code in _REJECTIONS:
            self._add(c.DOCUMENTS_REJECTED, 1, one.code.value)

    def _set(self, metric: Metric, value: float, *labels: str) -> None:
        self._values[metric][labels] = value

    def _add(self, metric: Metric, number: float, *labels: str) -> None:
        self._values[metric][labels] += number


def read_exit_code(ended: RunEnded) -> int:
    """The exit code in a run's summary."""
    exit_code = ended.summary["exit_code"]
    assert isinstance(exit_code, int)
    return exit_code
