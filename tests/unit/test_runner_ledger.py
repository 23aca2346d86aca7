"""The ledger: what a run counts, and what is made of the counts."""

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from bulkinfer.records import (
    Commit,
    Completion,
    EngineReady,
    EngineStats,
    Failure,
    FailureCode,
    Latency,
    Message,
    Origin,
    Percentiles,
    Request,
    Result,
)
from bulkinfer.runner.ledger import InputCounts, Ledger
from bulkinfer.runner.memory import peak_memory_bytes
from bulkinfer.shards import Shard

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
REQUEST = Request(b"0" * 16, Origin("a.jsonl", 1, "a"), (Message("user", "x"),), 100)
RESULT = Result(b"0" * 16, "answer", None, "stop", 30, 10, 5, 0.0, 0.1, 0.2, 1, NOW)
FAILURE = Failure(b"0" * 16, REQUEST.origin, FailureCode.TRUNCATED, "cut", None, 1, retryable=False, failed_at=NOW)
UNREADABLE = replace(FAILURE, code=FailureCode.UNREADABLE_ROW)
STATS = EngineStats(
    num_active=3,
    num_waiting=1,
    kv_cache_usage=0.25,
    num_preemptions=2,
    num_steps=9,
    num_prompt_tokens=60,
    num_output_tokens=20,
    memory_bytes=5_000,
)
LATENCY = Latency(queue=Percentiles(0.5, 1.5, 2.5), total=Percentiles(1.0, 2.0, 3.0))


class Clock:
    """The monotonic clock, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still until it is moved."""
    return Clock(monkeypatch)


def shard(num_requests: int, *, num_bad: int = 0, num_skipped: int = 0, bytes_read: int = 1_000) -> Shard:
    """A shard of requests of 100 characters, of unreadable rows, and of rows that need nothing."""
    num_read = num_requests + num_bad + num_skipped
    return Shard(
        requests=(REQUEST,) * num_requests,
        failures=(UNREADABLE,) * num_bad,
        rows=(),
        num_read=num_read,
        num_skipped=num_skipped,
        last_rows={UUID(int=1): num_read},
        bytes_read=bytes_read,
    )


def ledger_of(num_requests: int, *, input_size_bytes: int = 1_000, **about: int) -> Ledger:
    """A ledger that took one shard over."""
    ledger = Ledger(input_size_bytes=input_size_bytes, max_concurrency=4, started_s=time.monotonic())
    ledger.note_shard(shard(num_requests, **about))
    return ledger


def complete(ledger: Ledger, count: int, *, prompt: int = 30, cached: int = 10, output: int = 5) -> None:
    """So many requests are answered."""
    for _ in range(count):
        completion = Completion(b"0" * 16, "answer", "stop", prompt, cached, output, 0.0, 0.1, 0.2)
        ledger.note_completion(REQUEST, completion)
        ledger.note_outcome(RESULT, REQUEST.num_chars)


def fail(ledger: Ledger, count: int, code: FailureCode = FailureCode.TRUNCATED) -> None:
    """So many requests fail in the engine."""
    for _ in range(count):
        ledger.note_outcome(replace(FAILURE, code=code), REQUEST.num_chars)


def test_shards_add_up() -> None:
    ledger = Ledger(input_size_bytes=4_000, max_concurrency=4)
    ledger.note_shard(shard(5, num_bad=2, num_skipped=3, bytes_read=1_500))
    second = replace(shard(4, bytes_read=2_500), last_rows={UUID(int=1): 12, UUID(int=2): 2})
    ledger.note_shard(second)
    assert (ledger.num_read, ledger.num_skipped, ledger.num_to_do) == (14, 3, 11)
    assert (ledger.num_failed, ledger.num_outcomes, ledger.num_unaskable) == (2, 2, 2)
    assert ledger.last_rows == {UUID(int=1): 12, UUID(int=2): 2}
    assert (ledger.bytes_read, ledger.outlook.chars_asked) == (2_500, 900)


def test_outcomes_are_counted_by_kind_and_code() -> None:
    ledger = ledger_of(10, num_bad=1)
    complete(ledger, 3)
    fail(ledger, 2)
    assert (ledger.num_succeeded, ledger.num_failed, ledger.num_outcomes) == (3, 3, 6)
    assert dict(ledger.failed_by_code) == {FailureCode.UNREADABLE_ROW: 1, FailureCode.TRUNCATED: 2}
    assert (ledger.prompt_tokens, ledger.cached_tokens, ledger.output_tokens) == (90, 30, 15)


@pytest.mark.parametrize(
    ("num_requests", "num_bad", "num_succeeded", "num_failed", "expected"),
    [
        (1_000, 0, 0, 0, 0),
        (1_000, 7, 0, 0, 7),  # nothing asked yet: only what is known
        (1_000, 7, 100, 99, 106),  # 199 asked: too few to go by
        (1_000, 0, 100, 100, 500),  # 200 asked, half failed
        (1_000, 7, 150, 50, 257),  # a quarter of 1,000, and the 7 that were never asked
        (1_000, 0, 200, 0, 0),
        (300, 9_700, 200, 0, 9_700),
        (300, 0, 299, 1, 1),
        (1_000, 0, 997, 3, 3),  # all asked: exact
    ],
)
def test_failures_to_expect_grow_with_those_that_were_asked(
    num_requests: int, num_bad: int, num_succeeded: int, num_failed: int, expected: int
) -> None:
    ledger = ledger_of(num_requests, num_bad=num_bad)
    complete(ledger, num_succeeded)
    fail(ledger, num_failed, FailureCode.ENGINE_ERROR)
    assert ledger.expect_failures() == expected


@pytest.mark.parametrize("code", [FailureCode.TRUNCATED, FailureCode.INVALID_OUTPUT, FailureCode.PROMPT_TOO_LONG])
def test_what_goes_with_the_length_of_documents_says_nothing_of_the_shorter_ones(code: FailureCode) -> None:
    """The longest are asked first."""
    ledger = ledger_of(1_000, num_bad=7)
    fail(ledger, 200, code)
    complete(ledger, 150)
    assert ledger.expect_failures() == 207
    fail(ledger, 50, FailureCode.ENGINE_ERROR)
    num_run = 200 if code is FailureCode.PROMPT_TOO_LONG else 400
    num_asked = 800 if code is FailureCode.PROMPT_TOO_LONG else 1_000
    assert ledger.expect_failures() == 207 + 50 * num_asked // num_run


def test_tokens_left_are_unknown_before_the_first_answer() -> None:
    ledger = ledger_of(10)
    fail(ledger, 1)  # refused: no tokens to go by
    progress = ledger.progress(num_queued=0, num_in_flight=0)
    assert (progress.tokens_left, progress.time_left_s) == (None, None)


@pytest.mark.parametrize(
    ("input_size_bytes", "is_read_to_end", "num_answered", "expected"),
    [
        # 30 prompt tokens for each 100 characters, 5 output tokens for each document.
        (1_000, True, 4, 6 * 35),
        (1_000, True, 10, 0),
        (2_000, False, 4, 16 * 35),  # half of the input is read: ten more documents are to be expected
        (4_000, False, 4, 36 * 35),
        (4_000, False, 10, 30 * 35),
        (4_000, True, 4, 6 * 35),  # read to the end by a limit: what lies behind does not count
    ],
)
def test_tokens_left_count_documents_that_are_not_read_yet(
    input_size_bytes: int, is_read_to_end: bool, num_answered: int, expected: float
) -> None:
    ledger = ledger_of(10, input_size_bytes=input_size_bytes, bytes_read=1_000)
    ledger.is_read_to_end = is_read_to_end
    complete(ledger, num_answered)
    progress = ledger.progress(num_queued=0, num_in_flight=0)
    assert progress.tokens_left == pytest.approx(expected)


def test_tokens_left_go_by_characters_not_by_documents() -> None:
    """The longest go first: one of ten documents is done, but with it ten of nineteen parts of the text."""
    ledger = Ledger(input_size_bytes=1_000, max_concurrency=4)
    long = replace(REQUEST, num_chars=1_000)
    ledger.note_shard(replace(shard(9), requests=(long, *(REQUEST,) * 9), num_read=10))
    ledger.is_read_to_end = True
    ledger.note_completion(long, Completion(b"0" * 16, "answer", "stop", 300, 0, 5, 0.0, 0.1, 0.2))
    ledger.note_outcome(RESULT, 1_000)
    assert ledger.progress(num_queued=0, num_in_flight=0).tokens_left == pytest.approx(9 * 30 + 9 * 5)


def test_tokens_left_count_documents_that_failed_as_done() -> None:
    ledger = ledger_of(10, num_bad=4)
    ledger.is_read_to_end = True
    complete(ledger, 2)
    fail(ledger, 3)
    assert ledger.progress(num_queued=0, num_in_flight=0).tokens_left == pytest.approx(5 * 35)


@pytest.mark.parametrize(
    ("input_size_bytes", "bytes_read", "is_read_to_end", "expected"),
    [
        (1_000, 0, False, 0.0),
        (1_000, 250, False, 0.25),
        (1_000, 2_000, False, 1.0),
        (0, 0, False, 1.0),
        (9, 1, True, 1),
    ],
)
def test_the_share_of_the_input_that_is_read(
    input_size_bytes: int, bytes_read: int, is_read_to_end: bool, expected: float
) -> None:
    ledger = ledger_of(1, input_size_bytes=input_size_bytes, bytes_read=bytes_read)
    ledger.is_read_to_end = is_read_to_end
    assert ledger.progress(num_queued=0, num_in_flight=0).share_read == expected


def test_rates_and_time_left_are_of_the_recent_past(clock: Clock) -> None:
    ledger = ledger_of(1_000)
    ledger.is_read_to_end = True
    ledger.note_submit()
    first = ledger.progress(num_queued=0, num_in_flight=0)
    assert (first.prompt_tokens_per_s, first.output_tokens_per_s, first.time_left_s) == (0.0, 0.0, None)
    clock.now_s += 10
    complete(ledger, 100)
    second = ledger.progress(num_queued=7, num_in_flight=8)
    assert (second.elapsed_s, second.num_queued, second.num_in_flight) == (10.0, 7, 8)
    assert (second.prompt_tokens_per_s, second.output_tokens_per_s) == (300.0, 50.0)
    assert second.tokens_left == pytest.approx(900 * 35)
    assert second.time_left_s == pytest.approx(90.0)


def test_loading_the_model_does_not_lower_the_rates(clock: Clock) -> None:
    ledger = ledger_of(1_000)
    ledger.progress(num_queued=0, num_in_flight=0)
    clock.now_s += 20
    ledger.note_submit()
    ledger.progress(num_queued=0, num_in_flight=0)
    clock.now_s += 5
    complete(ledger, 100)
    assert ledger.progress(num_queued=0, num_in_flight=0).output_tokens_per_s == 100.0


def test_documents_that_no_engine_was_asked_do_not_count_for_the_rate(clock: Clock) -> None:
    """Else a shard of a thousand unreadable rows would look like a fast engine."""
    ledger = ledger_of(100, num_bad=1_000)
    ledger.note_submit()
    ledger.progress(num_queued=0, num_in_flight=0)
    clock.now_s += 10
    complete(ledger, 20)
    fail(ledger, 10)
    assert ledger.progress(num_queued=0, num_in_flight=0).documents_per_s == pytest.approx(3.0)


def test_a_stall_shows_in_the_rates_after_half_a_minute(clock: Clock) -> None:
    ledger = ledger_of(1_000)
    ledger.note_submit()
    ledger.progress(num_queued=0, num_in_flight=0)
    clock.now_s += 1
    complete(ledger, 100)
    busy = ledger.progress(num_queued=0, num_in_flight=0)
    assert busy.output_tokens_per_s == 500.0
    for _ in range(32):
        clock.now_s += 1
        stalled = ledger.progress(num_queued=0, num_in_flight=0)
    assert (stalled.prompt_tokens_per_s, stalled.output_tokens_per_s) == (0.0, 0.0)
    assert stalled.time_left_s is None
    assert stalled.output_tokens == 500


def test_two_readings_far_apart_still_give_a_rate(clock: Clock) -> None:
    ledger = ledger_of(1_000)
    ledger.note_submit()
    ledger.progress(num_queued=0, num_in_flight=0)
    clock.now_s += 100
    complete(ledger, 100)
    assert ledger.progress(num_queued=0, num_in_flight=0).output_tokens_per_s == 5.0


def test_tokens_of_sequences_that_still_run_count_for_rates_and_time_left(clock: Clock) -> None:
    """100 answers are 3,000 prompt and 500 output tokens; 200 and 100 more are computed for what runs."""
    ledger = ledger_of(1_000)
    ledger.is_read_to_end = True
    ledger.note_submit()
    ledger.progress(num_queued=0, num_in_flight=0)
    clock.now_s += 10
    complete(ledger, 100)
    ledger.note_stats(replace(STATS, num_prompt_tokens=3_200, num_output_tokens=600))
    progress = ledger.progress(num_queued=0, num_in_flight=0)
    assert (progress.prompt_tokens_per_s, progress.output_tokens_per_s) == (320.0, 60.0)
    assert progress.tokens_left == pytest.approx(900 * 35 - 300)
    assert (progress.prompt_tokens, progress.output_tokens) == (3_000, 500), "these are of answers"


def test_a_reading_older_than_the_answers_is_not_believed(clock: Clock) -> None:
    ledger = ledger_of(1_000)
    ledger.is_read_to_end = True
    ledger.note_submit()
    ledger.progress(num_queued=0, num_in_flight=0)
    clock.now_s += 10
    ledger.note_stats(STATS)
    complete(ledger, 100)
    progress = ledger.progress(num_queued=0, num_in_flight=0)
    assert (progress.prompt_tokens_per_s, progress.output_tokens_per_s) == (300.0, 50.0)
    assert progress.tokens_left == pytest.approx(900 * 35)


def test_after_a_restart_the_engines_counters_go_on_from_the_answers(clock: Clock) -> None:
    ledger = ledger_of(1_000)
    ledger.is_read_to_end = True
    ledger.note_submit()
    complete(ledger, 100)
    ledger.note_death()
    ledger.note_start(is_again=True)
    ledger.progress(num_queued=0, num_in_flight=0)
    clock.now_s += 10
    ledger.note_stats(replace(STATS, num_prompt_tokens=600, num_output_tokens=40))
    progress = ledger.progress(num_queued=0, num_in_flight=0)
    assert (progress.prompt_tokens_per_s, progress.output_tokens_per_s) == (60.0, 4.0)
    assert progress.tokens_left == pytest.approx(900 * 35 - 640)


def test_peaks_are_kept_and_preemptions_go_on_over_a_restart() -> None:
    ledger = ledger_of(1)
    ledger.note_stats(STATS)
    ledger.note_stats(replace(STATS, num_active=1, kv_cache_usage=0.125, memory_bytes=4_000, num_preemptions=6))
    assert (ledger.peak_active, ledger.peak_kv_cache_usage, ledger.peak_engine_memory_bytes) == (3, 0.25, 5_000)
    assert ledger.num_preemptions == 6
    now = ledger.progress(num_queued=0, num_in_flight=0)
    assert (now.num_active, now.kv_cache_usage, now.engine_memory_bytes) == (1, 0.125, 5_000)

    ledger.note_death()
    dead = ledger.progress(num_queued=0, num_in_flight=0)
    assert (dead.num_active, dead.kv_cache_usage) == (0, 0.0)
    ledger.note_stats(replace(STATS, num_preemptions=1))
    assert ledger.num_preemptions == 7


def test_a_death_is_no_restart_and_neither_is_the_first_start() -> None:
    ledger = ledger_of(1)
    ledger.note_start(is_again=False)
    ledger.note_death()
    assert ledger.num_restarts == 0
    for _ in range(2):
        ledger.note_start(is_again=True)
    assert ledger.num_restarts == 2


def test_progress_holds_the_counts() -> None:
    ledger = ledger_of(10, num_bad=1, num_skipped=4)
    complete(ledger, 2)
    fail(ledger, 1)
    progress = ledger.progress(num_queued=0, num_in_flight=0)
    assert (progress.num_read, progress.num_skipped, progress.num_to_do) == (15, 4, 11)
    assert (progress.num_succeeded, progress.num_failed) == (2, 2)
    assert progress.failed_by_code == {FailureCode.UNREADABLE_ROW: 1, FailureCode.TRUNCATED: 1}
    assert (progress.prompt_tokens, progress.cached_tokens, progress.output_tokens) == (60, 20, 10)
    assert progress.runner_memory_bytes > 10_000_000


def test_documents_per_second_count_each_document_once(clock: Clock) -> None:
    ledger = ledger_of(10)
    ledger.note_submit()
    clock.now_s += 2
    completion = Completion(b"0" * 16, "answer", "length", 30, 10, 5, 0.0, 0.1, 0.2)
    for _ in range(3):  # and is asked again
        ledger.note_completion(REQUEST, completion)
    ledger.note_outcome(replace(FAILURE, raw_output="answer"), 100)
    ledger.note_completion(REQUEST, completion)
    ledger.note_part(is_answered=True)
    complete(ledger, 2)
    ledger.note_outcome(FAILURE, 100)  # the engine refused it
    summary: dict[str, Any] = dict(ledger.summary(InputCounts(10, 0, None), LATENCY))
    assert summary["throughput"]["documents_per_s"] == 1.5
    assert summary["parts"] == {"answered": 1, "reused": 0}


def test_the_summary_of_a_run(clock: Clock) -> None:
    ledger = ledger_of(10, num_bad=2, num_skipped=8)
    ledger.note_ready(EngineReady(3.5, 1_000, {}))
    clock.now_s += 4
    ledger.note_submit()
    clock.now_s += 1
    ledger.note_submit()
    ledger.note_stats(STATS)
    ledger.peak_queue_size = 6
    clock.now_s += 1
    complete(ledger, 8)
    clock.now_s += 0.5
    fail(ledger, 1)
    summary: dict[str, Any] = dict(ledger.summary(InputCounts(15, 9, None), LATENCY))
    memory = summary.pop("peak_memory_bytes")
    assert summary == {
        "documents": {
            "read": 20,
            "distinct": 15,
            "duplicates": 5,
            "already_done": 3,
            "succeeded": 8,
            "failed": 3,
            "failed_by_code": {"truncated": 1, "unreadable_row": 2},
            "failed_rows": 9,
            "not_asked": 0,
            "not_finished": 1,
        },
        "tokens": {"prompt": 240, "cached": 80, "output": 40},
        "seconds": {"total": 6.5, "engine_start": 3.5, "generate": 2.0},
        "throughput": {"documents_per_s": 4.0, "prompt_tokens_per_s": 120.0, "output_tokens_per_s": 20.0},
        "latency_s": {
            "queue": {"p50": 0.5, "p95": 1.5, "p99": 2.5},
            "first_token": {"p50": None, "p95": None, "p99": None},
            "total": {"p50": 1.0, "p95": 2.0, "p99": 3.0},
        },
        "engine": {
            "max_concurrency": 4,
            "peak_active": 3,
            "peak_queue_size": 6,
            "kv_cache_usage_peak": 0.25,
            "preemptions": 2,
            "prefix_cache_hit_rate": 0.3333,
            "restarts": 0,
            "is_used": True,
            "steps": 9,
            "full_steps": 0,
            "full_step_share": None,
            "idle_s": 0.0,
            "settings": {},
        },
    }
    assert memory["engine"] == 5_000
    assert memory["runner"] > 10_000_000


def test_the_summary_of_a_run_without_an_answer(clock: Clock) -> None:
    ledger = Ledger(input_size_bytes=0, max_concurrency=4, started_s=clock.now_s)
    clock.now_s += 2
    summary: dict[str, Any] = dict(ledger.summary(InputCounts(0, 0, None), Latency()))
    assert summary["seconds"] == {"total": 2.0, "engine_start": 0.0, "generate": 0.0}
    assert set(summary["throughput"].values()) == {0.0}
    assert (summary["engine"]["prefix_cache_hit_rate"], summary["engine"]["is_used"]) == (0.0, False)


@pytest.mark.parametrize(
    ("num_without_outcome", "not_asked", "already_done"),
    [
        (None, 0, 18),  # 30 different documents, 12 to do
        (1, 0, 18),  # the one that was asked and is not finished
        (6, 5, 13),
        (19, 18, 0),
    ],
)
def test_documents_that_a_selective_run_leaves_alone_are_no_done_ones(
    num_without_outcome: int | None, not_asked: int, already_done: int
) -> None:
    ledger = ledger_of(10, num_bad=2, num_skipped=20)
    complete(ledger, 9)
    summary: dict[str, Any] = dict(ledger.summary(InputCounts(30, 2, num_without_outcome), Latency()))
    documents = summary["documents"]
    assert (documents["not_asked"], documents["already_done"]) == (not_asked, already_done)
    assert (documents["not_finished"], documents["distinct"], documents["duplicates"]) == (1, 30, 2)


def test_without_the_store_only_what_it_acknowledged_counts() -> None:
    ledger = ledger_of(10, num_bad=2, num_skipped=8)
    complete(ledger, 7)
    fail(ledger, 1)
    ledger.note_commit(Commit(1, 3, 2, (), {FailureCode.MISSING_FIELD: 2}, 0.1))
    ledger.note_commit(Commit(2, 1, 0, (), {}, 0.1))
    summary: dict[str, Any] = dict(ledger.summary_of_commits())
    assert summary["documents"] == {
        "read": 20,
        "distinct": 12,
        "duplicates": 0,
        "already_done": 0,
        "succeeded": 4,
        "failed": 2,
        "failed_by_code": {"missing_field": 2},
        "failed_rows": 2,
        "not_asked": 0,
        "not_finished": 6,
    }
    assert summary["latency_s"]["total"] == {"p50": None, "p95": None, "p99": None}
    assert set(summary) == set(ledger.summary(InputCounts(12, 2, None), Latency())), "one shape for both"


def test_loading_twice_takes_the_time_of_both() -> None:
    ledger = ledger_of(1)
    ledger.note_ready(EngineReady(3.5, 1_000, {}))
    ledger.note_ready(EngineReady(2.25, 1_000, {}))
    assert ledger.engine_start_s == 5.75


def test_peak_memory_is_what_the_kernel_says() -> None:
    resident_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    assert peak_memory_bytes() >= resident_pages * 4096 * 0.9
    assert peak_memory_bytes() < 64 * 1024**3


def test_steps_and_idle_time_go_on_over_a_restart() -> None:
    ledger = ledger_of(10)
    ledger.note_stats(replace(STATS, num_steps=50, num_full_steps=40, num_fed_steps=48, idle_s=0.5))
    ledger.note_stats(replace(STATS, num_steps=100, num_full_steps=90, num_fed_steps=96, idle_s=0.75))
    ledger.note_death()
    assert ledger.steps.num_steps == 100
    ledger.note_stats(replace(STATS, num_steps=10, num_full_steps=2, num_fed_steps=4, idle_s=0.125))
    assert ledger.steps.describe() == {"steps": 110, "full_steps": 92, "full_step_share": 0.92, "idle_s": 0.875}


def test_while_more_run_than_are_answered_the_short_answers_are_not_taken_for_all(clock: Clock) -> None:
    """10 of 100 are answered with 5 tokens each, 90 run and have 360: 410 tokens for 10 ends are 41 an answer."""
    ledger = ledger_of(100)
    ledger.is_read_to_end = True
    ledger.note_submit()
    complete(ledger, 10)
    ledger.note_stats(replace(STATS, num_active=90, num_prompt_tokens=3_000, num_output_tokens=410))
    assert ledger.progress(num_queued=0, num_in_flight=90).tokens_left == pytest.approx(90 * 41 - 360)
    ledger.max_tokens = 20
    assert ledger.progress(num_queued=0, num_in_flight=90).tokens_left == pytest.approx(90 * 20 - 360)


def test_the_time_left_tells_prompts_from_answers(clock: Clock) -> None:
    """All 3,000 prompt tokens took 10 s, then 100 output tokens 10 s: the 400 that are left take 40, not a second."""
    ledger = ledger_of(100)
    ledger.is_read_to_end = True
    ledger.note_submit()
    ledger.progress(num_queued=0, num_in_flight=0)
    clock.now_s += 10
    ledger.note_stats(replace(STATS, num_active=10, num_prompt_tokens=3_000, num_output_tokens=0))
    ledger.progress(num_queued=0, num_in_flight=100)
    clock.now_s += 10
    complete(ledger, 20)
    ledger.note_stats(replace(STATS, num_active=10, num_prompt_tokens=3_000, num_output_tokens=100))
    progress = ledger.progress(num_queued=0, num_in_flight=80)
    assert progress.tokens_left == pytest.approx(80 * 5)
    assert progress.time_left_s == pytest.approx(40.0)
