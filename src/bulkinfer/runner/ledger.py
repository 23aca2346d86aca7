"""What the loop counts, and the progress and the summary that are made of it."""

import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from uuid import UUID

import psutil

from bulkinfer.events import Progress, ShardTaken
from bulkinfer.outcome import expect_failures
from bulkinfer.records import (
    Commit,
    Completion,
    EngineReady,
    Failure,
    FailureCode,
    JsonValue,
    Latency,
    Outcome,
    Request,
    Result,
    Workload,
)
from bulkinfer.runner.memory import peak_memory_bytes
from bulkinfer.runner.outlook import Outlook
from bulkinfer.runner.pace import Pace
from bulkinfer.runner.replica import EngineCounts, ReplicaCounts
from bulkinfer.runner.silence import Listening
from bulkinfer.shards import Shard

RATE_WINDOW_S = 30.0
"""Rates are taken over so much of the recent past: steady enough to read, quick enough to show a stall."""


@dataclass(frozen=True, slots=True)
class InputCounts:
    """What the store says of the rows that a run has read."""

    num_distinct: int
    """Different documents among them."""
    num_failed_rows: int
    """Rows that failed, in this run or an earlier one, and have no answer."""
    num_without_outcome: int | None
    """Documents with neither answer nor failure; None where nobody needs to know."""


@dataclass(slots=True)
class Ledger(EngineCounts):
    """Counts of one run. Written by the loop's thread alone; a reader on another thread sees each number whole."""

    input_size_bytes: int
    max_concurrency: int
    """Of an engine; expected, until one is ready."""
    num_replicas: int = 1
    max_tokens: int | None = None
    """The most output tokens of one document."""
    max_context_tokens: int | None = None
    started_s: float = field(default_factory=time.monotonic)
    num_shards: int = 0
    num_read: int = 0
    num_skipped: int = 0
    num_to_do: int = 0
    num_unaskable: int = 0
    """Documents that failed before the engine: unreadable, or without a prompt."""
    num_succeeded: int = 0
    num_committed_results: int = 0
    num_committed_failures: int = 0
    committed_by_code: Counter[FailureCode] = field(default_factory=Counter)
    failed_by_code: Counter[FailureCode] = field(default_factory=Counter)
    is_read_to_end: bool = False
    bytes_read: int = 0
    last_rows: dict[UUID, int] = field(default_factory=dict)
    chars_finished: int = 0
    chars_answered: int = 0
    num_answered: int = 0
    num_part_answers: int = 0
    """Answers to parts of documents, and those that join some; each once, however often it was asked."""
    num_documents_answered: int = 0
    """Documents that the engine wrote an answer to, good or not; likewise."""
    num_parts_reused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    settings: Mapping[str, JsonValue] = field(default_factory=dict)
    vector_size: int | None = None
    """Numbers in each vector that the engines make."""
    outlook: Outlook = field(default_factory=Outlook)
    first_submit_s: float | None = None
    last_answer_s: float | None = None
    peak_queue_size: int = 0
    _recent: deque[tuple[float, int, int, int]] = field(default_factory=deque)
    listening: Listening = field(init=False)
    _pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        self.replicas = tuple(ReplicaCounts() for _ in range(self.num_replicas))
        self.listening = Listening(self.started_s)

    @property
    def num_failed(self) -> int:
        """Documents that failed in this run."""
        return self.failed_by_code.total()

    @property
    def num_outcomes(self) -> int:
        """Documents that this run is done with."""
        return self.num_succeeded + self.num_failed

    @property
    def num_asked_outcomes(self) -> int:
        """Those of them that an engine was asked."""
        return self.num_outcomes - self.num_unaskable

    def note_shard(self, shard: Shard) -> ShardTaken:
        """The loop took a shard over."""
        self.num_shards += 1
        self.num_read += shard.num_read
        self.num_skipped += shard.num_skipped
        self.num_to_do += len(shard.requests) + len(shard.failures)
        self.num_unaskable += len(shard.failures)
        self.failed_by_code.update(failure.code for failure in shard.failures)
        self.outlook.note_shard(shard)
        self.bytes_read = shard.bytes_read
        self.last_rows.update(shard.last_rows)
        counts = len(shard.requests), len(shard.failures)
        return ShardTaken(self.num_shards, shard.num_read, shard.num_skipped, *counts)

    def note_ready(self, ready: EngineReady, replica: int = 0) -> None:
        """An engine is loaded, for the first time or again."""
        EngineCounts.note_ready(self, ready, replica)
        self.max_concurrency = ready.max_concurrency or self.max_concurrency
        self.replicas[replica].max_concurrency = self.max_concurrency
        self.settings = ready.settings
        self.vector_size = ready.vector_size
        self.max_context_tokens = ready.max_context_tokens

    def note_death(self, replica: int = 0) -> None:
        """An engine died: rates begin anew."""
        EngineCounts.note_death(self, replica)
        self._recent.clear()

    def note_submit(self) -> None:
        """Requests go to the engine."""
        self.first_submit_s = self.first_submit_s or time.monotonic()
        self.listening.note_asked()

    def note_completion(self, request: Request, completion: Completion, replica: int = 0) -> None:
        """Tokens were spent, whatever the outcome."""
        self.replicas[replica].note_completion(completion)
        self.num_answered += 1
        self.chars_answered += request.num_chars
        self.prompt_tokens += completion.prompt_tokens
        self.cached_tokens += completion.cached_tokens
        self.output_tokens += completion.output_tokens
        self.last_answer_s = time.monotonic()

    def note_part(self, *, is_answered: bool) -> None:
        """A part of a document is done with."""
        self.num_part_answers += is_answered
        self.listening.note_outcome()

    def note_commit(self, commit: Commit) -> None:
        """Outcomes are on disk."""
        self.num_committed_results += commit.num_results
        self.num_committed_failures += commit.num_failures
        self.committed_by_code.update(commit.failure_codes)

    def note_outcome(self, outcome: Outcome, num_chars: int) -> None:
        """A document that the engine was asked is done with."""
        self.chars_finished += num_chars
        self.listening.note_outcome()
        self.num_documents_answered += isinstance(outcome, Result) or outcome.raw_output is not None
        match outcome:
            case Result():
                self.num_succeeded += 1
            case Failure(code=code):
                self.failed_by_code[code] += 1

    def expect_failures(self) -> int:
        """Failures among all documents found so far, if the rest fares as those that the engine has run already."""
        return expect_failures(self.failed_by_code, self.num_succeeded, self.num_unaskable, self.num_to_do)

    def progress(self, *, num_queued: int, num_in_flight: int) -> Progress:
        """Where the run stands now. Also takes the reading that later rates are made of."""
        now_s = time.monotonic()
        prompt_rate, output_rate, document_rate = self._rates(now_s)
        stats = self.stats
        left = self._tokens_left()
        return Progress(
            elapsed_s=now_s - self.started_s,
            num_read=self.num_read,
            num_skipped=self.num_skipped,
            num_to_do=self.num_to_do,
            num_succeeded=self.num_succeeded,
            num_failed=self.num_failed,
            failed_by_code=dict(self.failed_by_code),
            is_read_to_end=self.is_read_to_end,
            share_read=self._share_read(),
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            prompt_tokens_per_s=prompt_rate,
            output_tokens_per_s=output_rate,
            tokens_left=None if left is None else sum(left),
            time_left_s=self._pace.seconds_for(*left) if left is not None and prompt_rate + output_rate > 0 else None,
            num_queued=num_queued,
            num_in_flight=num_in_flight,
            num_active=stats.num_active if stats else 0,
            kv_cache_usage=stats.kv_cache_usage if stats else 0.0,
            engine_memory_bytes=self.peak_engine_memory_bytes,
            runner_memory_bytes=psutil.Process().memory_info().rss,
            num_replicas=sum(not replica.is_retired for replica in self.replicas),
            num_replicas_ready=sum(replica.is_ready for replica in self.replicas),
            num_preemptions=self.num_preemptions,
            num_restarts=self.num_restarts,
            gpu_memory_bytes=stats.gpu_memory_bytes if stats else 0,
            documents_per_s=document_rate,
        )

    def workload(self) -> Workload:
        """What an engine that is started now would have to do."""
        return self.outlook.estimate(self.num_asked_outcomes, self._share_read())

    def _rates(self, now_s: float) -> tuple[float, float, float]:
        """Prompt tokens, output tokens and documents per second over the recent past, from the first request on."""
        if self.first_submit_s is None:
            return 0.0, 0.0, 0.0
        prompt_tokens, output_tokens = self.tokens_spent()
        self._recent.append((now_s, prompt_tokens, output_tokens, self.num_asked_outcomes))
        self._pace.note(now_s, prompt_tokens, output_tokens)
        while self._recent[0][0] < now_s - RATE_WINDOW_S and len(self._recent) > 2:
            self._recent.popleft()
        then_s, prompt_before, output_before, outcomes_before = self._recent[0]
        if now_s <= then_s:
            return 0.0, 0.0, 0.0
        per_s = 1 / (now_s - then_s)
        return (
            (prompt_tokens - prompt_before) * per_s,
            (output_tokens - output_before) * per_s,
            (self.num_asked_outcomes - outcomes_before) * per_s,
        )

    def _share_read(self) -> float:
        if self.is_read_to_end or self.input_size_bytes == 0:
            return 1.0
        return min(1.0, self.bytes_read / self.input_size_bytes)

    def _tokens_left(self) -> tuple[float, float] | None:
        """Prompt and output tokens still to do. A count of documents would lie: the longest go first.

        Known documents by their characters, documents not read yet by the share of the input that has been read; tokens
        per character and output tokens per document from what is answered so far.
        """
        if self.num_answered == 0 or self.chars_answered == 0:
            return None
        share = self._share_read()
        unread = (1 - share) / share if share > 0 else 0.0
        chars_left = self.outlook.chars_asked * (1 + unread) - self.chars_finished
        documents_left = self.num_to_do * (1 + unread) - self.num_outcomes
        prompt_left = chars_left * self.prompt_tokens / self.chars_answered
        output_left = documents_left * self._expect_output_tokens()
        prompt_spent, output_spent = self.tokens_spent()
        return (
            max(0.0, prompt_left - (prompt_spent - self.prompt_tokens)),
            max(0.0, output_left - (output_spent - self.output_tokens)),
        )

    def _expect_output_tokens(self) -> float:
        """Of one answer. While more sequences run than are answered, the answers so far are the short ones; then the
        tokens of those that run count, too: the estimate of an exponential length from a sample that is cut off."""
        num_active = self.stats.num_active if self.stats else 0
        if num_active <= self.num_answered:
            return self.output_tokens / self.num_answered
        expected = self.tokens_spent()[1] / self.num_answered
        return expected if self.max_tokens is None else min(self.max_tokens, expected)

    def summary(self, counts: "InputCounts", latency: Latency) -> dict[str, JsonValue]:
        """The part of `run --json` that tells what was done, once all is on disk."""
        not_finished = self.num_to_do - self.num_outcomes
        not_asked = 0
        if counts.num_without_outcome is not None:
            not_asked = max(0, counts.num_without_outcome - not_finished)
        return {
            "documents": {
                "read": self.num_read,
                "distinct": counts.num_distinct,
                "duplicates": self.num_read - counts.num_distinct,
                "already_done": max(0, counts.num_distinct - self.num_to_do - not_asked),
                "succeeded": self.num_succeeded,
                "failed": self.num_failed,
                "failed_by_code": sort_codes(self.failed_by_code),
                "failed_rows": counts.num_failed_rows,
                "not_asked": not_asked,
                "not_finished": not_finished,
            },
            **self._summary_of_engine(latency),
        }

    def summary_of_commits(self) -> dict[str, JsonValue]:
        """The same when the store can no longer be asked: only what it acknowledged counts."""
        return {
            "documents": {
                "read": self.num_read,
                "distinct": self.num_read - self.num_skipped,
                "duplicates": 0,
                "already_done": 0,
                "succeeded": self.num_committed_results,
                "failed": self.num_committed_failures,
                "failed_by_code": sort_codes(self.committed_by_code),
                "failed_rows": self.num_committed_failures,
                "not_asked": 0,
                "not_finished": self.num_to_do - self.num_committed_results - self.num_committed_failures,
            },
            **self._summary_of_engine(Latency()),
        }

    def _summary_of_engine(self, latency: Latency) -> dict[str, JsonValue]:
        generate_s = 0.0
        if self.first_submit_s is not None and self.last_answer_s is not None:
            generate_s = self.last_answer_s - self.first_submit_s
        per_s = 1 / generate_s if generate_s > 0 else 0.0
        return {
            "tokens": {"prompt": self.prompt_tokens, "cached": self.cached_tokens, "output": self.output_tokens},
            "seconds": {
                "total": round(time.monotonic() - self.started_s, 3),
                "engine_start": round(self.engine_start_s, 3),
                "generate": round(generate_s, 3),
            },
            **self._summary_of_parts(),
            "throughput": {
                "documents_per_s": round(self.num_documents_answered * per_s, 3),
                "prompt_tokens_per_s": round(self.prompt_tokens * per_s, 3),
                "output_tokens_per_s": round(self.output_tokens * per_s, 3),
            },
            "latency_s": asdict(latency),
            "engine": self._engine_summary(),
            "peak_memory_bytes": {"runner": peak_memory_bytes(), "engine": self.peak_engine_memory_bytes},
        }

    def _summary_of_parts(self) -> Mapping[str, JsonValue]:
        """Where documents were split."""
        if not (self.num_part_answers or self.num_parts_reused):
            return {}
        return {"parts": {"answered": self.num_part_answers, "reused": self.num_parts_reused}}

    def _engine_summary(self) -> Mapping[str, JsonValue]:
        return {
            # Of all that were loaded, as the peak is.
            "max_concurrency": sum(replica.max_concurrency for replica in self.replicas) or self.max_concurrency,
            "peak_active": self.peak_active,
            "peak_queue_size": self.peak_queue_size,
            "kv_cache_usage_peak": round(self.peak_kv_cache_usage, 4),
            "preemptions": self.num_preemptions,
            "prefix_cache_hit_rate": round(self.cached_tokens / self.prompt_tokens, 4) if self.prompt_tokens else 0.0,
            "restarts": self.num_restarts,
            "is_used": self.first_submit_s is not None,
            "settings": self.settings,
            **self.describe_replicas(),
            **self.steps.describe(),
        }


def sort_codes(counts: Mapping[FailureCode, int]) -> dict[str, JsonValue]:
    """Failures by code, for the summary and the status file."""
    return {code.value: count for code, count in sorted(counts.items()) if count}
