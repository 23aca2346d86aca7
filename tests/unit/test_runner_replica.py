"""Counts of several engines: each by itself over its lives, and all together."""

from dataclasses import replace

import pytest

from bulkinfer.records import Completion, EngineReady, Latency
from bulkinfer.runner.ledger import InputCounts, Ledger
from bulkinfer.runner.replica import combine_stats
from tests.unit.test_runner_ledger import REQUEST, STATS


def answer(prompt: int, output: int) -> Completion:
    """An answer of so many tokens."""
    return Completion(REQUEST.document_hash, "answer", "stop", prompt, 0, output, 0.0, 0.1, 0.2)


def test_readings_are_summed_but_the_use_of_caches_is_a_mean() -> None:
    other = replace(
        STATS, num_active=5, kv_cache_usage=0.75, num_preemptions=1, memory_bytes=7_000, peak_kv_cache_usage=0.875
    )
    assert combine_stats([]) is None
    assert combine_stats([STATS]) is STATS
    both = combine_stats([STATS, other])
    assert both == replace(
        STATS,
        num_active=8,
        num_waiting=2,
        kv_cache_usage=0.5,
        peak_kv_cache_usage=0.875,
        num_preemptions=3,
        num_steps=18,
        num_prompt_tokens=120,
        num_output_tokens=40,
        memory_bytes=12_000,
    )


def test_peaks_are_of_all_engines_at_one_time() -> None:
    ledger = Ledger(0, 4, 2)
    ledger.note_stats(replace(STATS, num_active=3, memory_bytes=5_000), 0)
    ledger.note_stats(replace(STATS, num_active=4, memory_bytes=2_000, kv_cache_usage=0.5), 1)
    ledger.note_stats(replace(STATS, num_active=1, memory_bytes=6_000), 0)
    ledger.note_stats(replace(STATS, num_active=5, memory_bytes=1_000), 1)
    assert (ledger.peak_active, ledger.peak_kv_cache_usage, ledger.peak_engine_memory_bytes) == (7, 0.5, 8_000)
    assert [counts.peak_active for counts in ledger.replicas] == [3, 5]
    ledger.note_death(1)
    ledger.note_stats(replace(STATS, num_active=7), 0)
    assert ledger.peak_active == 7, "what ran in a dead engine does not run any more"


def test_a_peak_between_two_readings_counts() -> None:
    ledger = Ledger(0, 4, 2)
    ledger.note_stats(replace(STATS, num_active=2, peak_active=4), 0)
    ledger.note_stats(replace(STATS, num_active=0, peak_active=3, peak_kv_cache_usage=0.875), 1)
    assert (ledger.peak_active, ledger.peak_kv_cache_usage) == (5, 0.875), "the first ran two when the second ran three"
    assert [counts.peak_active for counts in ledger.replicas] == [4, 3]


def test_the_death_of_one_engine_keeps_what_it_counted_and_what_the_other_counts() -> None:
    ledger = Ledger(0, 4, 2)
    for replica in range(2):
        ledger.note_stats(replace(STATS, num_preemptions=2, num_prompt_tokens=100, num_output_tokens=10), replica)
    ledger.note_completion(REQUEST, answer(30, 5), 1)
    ledger.note_death(1)
    assert (ledger.num_preemptions, ledger.tokens_spent()) == (4, (130, 15)), "what was not answered is lost"
    ledger.note_stats(replace(STATS, num_preemptions=3, num_prompt_tokens=40, num_output_tokens=4), 1)
    assert (ledger.num_preemptions, ledger.tokens_spent()) == (7, (170, 19))


def test_engines_that_load_side_by_side_take_as_long_as_the_slowest() -> None:
    ledger = Ledger(0, 4, 2)
    for replica, start_s in ((0, 3.0), (1, 4.0), (0, 2.5)):
        ledger.note_ready(EngineReady(start_s, 1_000, {}), replica)
    assert ledger.engine_start_s == 5.5


def test_each_engine_is_described_where_there_are_several() -> None:
    ledger = Ledger(0, 4, 2)
    ledger.note_completion(REQUEST, answer(30, 5), 1)
    ledger.note_start(is_again=True, replica=0)
    ledger.note_stats(STATS, 1)
    ledger.note_retired(0)
    nothing = {"documents": 0, "active": 0, "peak_active": 0, "preemptions": 0, "restarts": 1, "is_retired": True}
    something = {"documents": 1, "active": 3, "peak_active": 3, "preemptions": 2, "restarts": 0, "is_retired": False}
    nothing["max_concurrency"] = something["max_concurrency"] = 0
    assert ledger.describe_replicas() == {"replicas": [nothing, something]}
    progress = ledger.progress(num_queued=0, num_in_flight=0)
    assert (progress.num_replicas, progress.num_replicas_ready, progress.num_active) == (1, 0, 3)
    assert Ledger(0, 4).describe_replicas() == {}


def test_what_was_ready_when_it_was_given_up_is_not_counted_as_ready() -> None:
    """It may be alive, and refuse what it must not."""
    ledger = Ledger(0, 4, 2)
    for replica in range(2):
        ledger.note_ready(EngineReady(1.0, 1_000, {}), replica)
        ledger.note_stats(STATS, replica)
    ledger.note_retired(0)
    progress = ledger.progress(num_queued=0, num_in_flight=0)
    assert (progress.num_replicas, progress.num_replicas_ready, progress.num_active) == (1, 1, 3)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [((), 4), ((256,), 256), ((256, 256), 512), ((256, 128), 384), ((None, None), 8), ((8, 8, 16), 32)],
)
def test_the_slots_in_the_summary_are_those_of_all_engines_that_were_loaded(
    chosen: tuple[int | None, ...], expected: int
) -> None:
    """As the peak is. The first is loaded twice."""
    ledger = Ledger(0, 4, 3)
    for replica, max_concurrency in enumerate(chosen):
        ledger.note_ready(EngineReady(1.0, 1_000, {}, max_concurrency), replica)
    if chosen:
        ledger.note_death(0)
        ledger.note_ready(EngineReady(1.0, 1_000, {}, chosen[0]), 0)
    engine = ledger.summary(InputCounts(0, 0, None), Latency())["engine"]
    assert isinstance(engine, dict)
    assert engine["max_concurrency"] == expected
