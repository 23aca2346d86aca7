"""The simulated engine: its schedule, its cost model, its script of faults."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkinfer.engines.base import EngineRequest
from bulkinfer.engines.clock import VirtualClock
from bulkinfer.engines.simulated import (
    ScriptedFaultError,
    SimulatedEngine,
    estimate_prompt_tokens,
)
from bulkinfer.engines.simulated_text import write_text
from bulkinfer.records import Completion, FailureCode, JsonValue, Message, Rejection
from tests.engine_support import simulated_spec

HASH_OF_LENGTH = {length: (length - 1).to_bytes(4, "big") + bytes(12) for length in range(1, 9)}
"""Hashes whose answers have that many tokens when max_tokens is 8."""


def request(document_hash: bytes, content: str = "text") -> EngineRequest:
    return EngineRequest(document_hash, (Message("user", content),))


def run(engine: SimulatedEngine, requests: Sequence[EngineRequest] = ()) -> list[Completion | Rejection]:
    outcomes: list[Completion | Rejection] = [
        rejection for rejection in map(engine.add, requests) if rejection is not None
    ]
    while engine.num_unfinished():
        outcomes += engine.step()
    return outcomes


def run_completions(engine: SimulatedEngine, requests: Sequence[EngineRequest] = ()) -> list[Completion]:
    completions = []
    for outcome in run(engine, requests):
        assert isinstance(outcome, Completion)
        completions.append(outcome)
    return completions


@pytest.mark.parametrize(
    ("contents", "tokens"),
    [([""], 4), (["abcd"], 5), (["abcde"], 6), (["x" * 36], 13), (["abcd", "abcd"], 10), (["\ud800"], 5)],
)
def test_a_prompt_token_is_four_characters_and_a_message_costs_four_more(contents: list[str], tokens: int) -> None:
    assert estimate_prompt_tokens([Message("user", content) for content in contents]) == tokens


def test_a_request_alone_takes_its_prompt_tokens_and_its_output_tokens() -> None:
    spec = simulated_spec(seconds_per_prompt_token=0.5, seconds_per_output_token=1, output_tokens=3)
    (completion,) = run_completions(SimulatedEngine(spec, VirtualClock()), [request(bytes(16), "x" * 36)])
    assert (completion.prompt_tokens, completion.output_tokens, completion.cached_tokens) == (13, 3, 0)
    assert (completion.queue_s, completion.first_token_s, completion.total_s) == (0.0, 7.5, 9.5)
    assert completion.finish_reason == "stop"


def embed(document_hash: bytes, *, is_normalized: bool = True, **arguments: JsonValue) -> Completion:
    own = simulated_spec(**arguments)  # type: ignore[arg-type]  # none of them is a keyword of its own
    spec = replace(own, task="embed", is_normalized=is_normalized, sampling={})
    (completion,) = run_completions(
        SimulatedEngine(spec, VirtualClock()), [EngineRequest(document_hash, (Message("text", "x" * 36),))]
    )
    return completion


def test_a_vector_takes_one_step_and_draws_nothing() -> None:
    completion = embed(bytes(16), seconds_per_prompt_token=0.5, seconds_per_output_token=1, output_tokens=9)
    assert (completion.text, completion.prompt_tokens, completion.output_tokens) == ("", 13, 0)
    assert (completion.finish_reason, completion.total_s) == ("stop", 7.5)


def test_a_vector_is_that_of_its_hash_and_has_the_size_and_length_that_are_wanted() -> None:
    vectors = [array("f", embed(bytes([n]) * 16, vector_size=5).vector or b"") for n in (1, 2)]
    assert vectors[0] != vectors[1]
    assert vectors[0] == array("f", embed(bytes([1]) * 16, vector_size=5).vector or b"")
    assert [len(vector) for vector in vectors] == [5, 5]
    assert [math.hypot(*vector) for vector in vectors] == pytest.approx([1, 1])
    raw = array("f", embed(bytes([1]) * 16, vector_size=5, is_normalized=False).vector or b"")
    assert [number / math.hypot(*raw) for number in raw] == pytest.approx(list(vectors[0]), abs=1e-6)
    assert math.hypot(*raw) != pytest.approx(1, abs=0.01)


def test_an_engine_of_vectors_holds_nothing_afterwards_and_has_no_output_tokens() -> None:
    spec = replace(simulated_spec(max_concurrency=2), task="embed", sampling={})
    engine = SimulatedEngine(spec, VirtualClock())
    run(engine, [EngineRequest(bytes([n]) * 16, (Message("text", "x" * n),)) for n in range(1, 9)])
    stats = engine.stats()
    assert (stats.num_output_tokens, stats.num_free_kv_blocks) == (0, stats.num_kv_blocks)
    assert stats.num_prompt_tokens == sum(4 + (n + 3) // 4 for n in range(1, 9))


def test_requests_that_enter_together_share_the_steps() -> None:
    spec = simulated_spec(seconds_per_prompt_token=0.5, seconds_per_output_token=1, output_tokens=3)
    completions = run_completions(
        SimulatedEngine(spec, VirtualClock()), [request(bytes([n]) * 16, "x" * 36) for n in (1, 2)]
    )
    assert [(one.first_token_s, one.total_s) for one in completions] == [(14.0, 16.0), (14.0, 16.0)]


def test_with_one_slot_the_second_request_waits_for_the_first() -> None:
    spec = simulated_spec(max_concurrency=1, seconds_per_prompt_token=0.5, seconds_per_output_token=1, output_tokens=3)
    completions = run_completions(
        SimulatedEngine(spec, VirtualClock()), [request(bytes([n]) * 16, "x" * 36) for n in (1, 2)]
    )
    assert [(one.queue_s, one.total_s) for one in completions] == [(0.0, 9.5), (9.5, 19.0)]


def test_a_free_slot_is_filled_while_the_others_run_on() -> None:
    spec = simulated_spec(max_concurrency=2, seconds_per_prompt_token=0, seconds_per_output_token=1)
    engine = SimulatedEngine(spec, VirtualClock())
    completions = run_completions(engine, [request(HASH_OF_LENGTH[length]) for length in (8, 2, 3, 1)])
    # 8 runs from 0 to 8; beside it 2 from 0 to 2, 3 from 2 to 5, 1 from 5 to 6.
    assert {one.output_tokens: (one.queue_s, one.total_s) for one in completions} == {
        2: (0.0, 2.0),
        3: (2.0, 5.0),
        1: (5.0, 6.0),
        8: (0.0, 8.0),
    }


def test_one_call_of_step_lasts_no_longer_than_a_twentieth_of_a_second() -> None:
    clock = VirtualClock()
    engine = SimulatedEngine(simulated_spec(seconds_per_output_token=0.01, output_tokens=8), clock)
    engine.add(request(bytes(16)))
    assert engine.step() == []
    assert clock.now() == pytest.approx(0.05)
    assert len(engine.step()) == 1
    assert clock.now() == pytest.approx(0.08)


def test_without_cost_no_time_passes_and_one_step_finishes_all() -> None:
    clock = VirtualClock()
    engine = SimulatedEngine(simulated_spec(max_concurrency=1), clock)
    for number in range(100):
        engine.add(request(bytes([number]) * 16))
    assert len(engine.step()) == 100
    assert clock.now() == 0.0


def test_the_counters_count_tokens_and_steps() -> None:
    engine = SimulatedEngine(simulated_spec(max_concurrency=2), VirtualClock())
    run(engine, [request(HASH_OF_LENGTH[length]) for length in (8, 2, 3, 1)])
    stats = engine.stats()
    assert (stats.num_steps, stats.num_output_tokens, stats.num_active, stats.num_waiting) == (8, 14, 0, 0)
    assert stats.kv_cache_usage == 0.0


@given(st.lists(st.binary(min_size=16, max_size=16), unique=True, max_size=40), st.integers(1, 8))
def test_each_request_comes_back_once_and_the_slots_are_never_exceeded(hashes: list[bytes], slots: int) -> None:
    spec = simulated_spec(max_concurrency=slots, seconds_per_output_token=1)
    engine = SimulatedEngine(spec, VirtualClock())
    for document_hash in hashes:
        engine.add(request(document_hash))
    outcomes: list[Completion | Rejection] = []
    while engine.num_unfinished():
        outcomes += engine.step()
        stats = engine.stats()
        assert stats.num_active <= slots
        assert stats.num_active + stats.num_waiting + len(outcomes) == len(hashes)
        assert 0.0 <= stats.kv_cache_usage <= 1.0
    assert sorted(outcome.document_hash for outcome in outcomes) == sorted(hashes)


@given(st.permutations([bytes([n]) * 16 for n in range(12)]), st.integers(1, 12))
def test_an_answer_depends_on_the_document_alone(order: list[bytes], slots: int) -> None:
    def answers(hashes: Sequence[bytes], max_concurrency: int) -> dict[bytes, tuple[str, int]]:
        engine = SimulatedEngine(simulated_spec(max_concurrency=max_concurrency), VirtualClock())
        completions = run_completions(engine, [request(document_hash) for document_hash in hashes])
        return {one.document_hash: (one.text, one.output_tokens) for one in completions}

    assert answers(order, slots) == answers(sorted(order), 3)


@pytest.mark.parametrize(
    ("num_words", "text"),
    [(1, "ba"), (2, "ba brum"), (16, "ba brum" + " ba" * 14), (18, "ba brum" + " ba" * 14 + " ba brum")],
)
def test_an_answer_has_a_word_for_each_output_token(num_words: int, text: str) -> None:
    assert write_text(b"\x00\xf9" + bytes(14), num_words) == text


@pytest.mark.parametrize(
    ("output_tokens", "num_tokens", "finish_reason"), [(3, 3, "stop"), (8, 8, "stop"), (9, 8, "length")]
)
def test_an_answer_longer_than_max_tokens_is_cut(output_tokens: int, num_tokens: int, finish_reason: str) -> None:
    engine = SimulatedEngine(simulated_spec(max_tokens=8, output_tokens=output_tokens), VirtualClock())
    (completion,) = run_completions(engine, [request(bytes(16))])
    assert (completion.output_tokens, completion.finish_reason) == (num_tokens, finish_reason)


def test_prompt_and_answer_must_fit_into_the_context() -> None:
    engine = SimulatedEngine(simulated_spec(max_context_tokens=20, max_tokens=8), VirtualClock())
    assert engine.add(request(b"a" * 16, "x" * 32)) is None  # 12 + 8 tokens
    assert engine.add(request(b"b" * 16, "x" * 33)) == Rejection(
        b"b" * 16,
        FailureCode.PROMPT_TOO_LONG,
        "prompt of 13 tokens + max_tokens 8 = 21 exceeds limits.max_context_tokens 20",
        13,
        12,
    )


def test_an_aborted_request_never_comes_back() -> None:
    engine = SimulatedEngine(simulated_spec(max_concurrency=1, seconds_per_output_token=1), VirtualClock())
    for name in (b"a", b"b", b"c"):
        engine.add(request(name * 16))
    engine.step()
    engine.abort([b"a" * 16, b"b" * 16, b"unknown"])
    assert engine.stats().num_active == 0
    assert [one.document_hash for one in run(engine)] == [b"c" * 16]


def test_several_answers_are_as_many_sequences_and_come_back_once() -> None:
    engine = SimulatedEngine(simulated_spec(max_concurrency=2, seconds_per_output_token=1), VirtualClock())
    asked = [replace(request(bytes([number]) * 16), sampling={"n": 3}) for number in (5, 6)]
    for one in asked:
        assert engine.add(one) is None
    engine.step()
    assert engine.stats().num_active + engine.stats().num_waiting >= 5
    outcomes = run(engine)
    assert sorted(one.document_hash for one in outcomes) == [one.document_hash for one in asked]
    for outcome in outcomes:
        assert isinstance(outcome, Completion)
        assert outcome.details is not None
        outputs = outcome.details["outputs"]
        assert isinstance(outputs, list)
        assert len(outputs) == 3
    assert engine.num_unfinished() == 0


def test_a_request_for_several_answers_is_dropped_as_one() -> None:
    engine = SimulatedEngine(simulated_spec(max_concurrency=2, seconds_per_output_token=1), VirtualClock())
    for number in (5, 6):
        engine.add(replace(request(bytes([number]) * 16), sampling={"n": 3}))
    assert engine.abort([bytes([5]) * 16]) == (bytes([5]) * 16,)
    assert engine.stats().num_aborted == 1
    assert [one.document_hash for one in run(engine)] == [bytes([6]) * 16]


def test_what_is_dropped_is_named_and_its_room_is_free() -> None:
    engine = SimulatedEngine(simulated_spec(max_concurrency=2, seconds_per_output_token=1), VirtualClock())
    for number in (5, 6, 7):
        engine.add(request(bytes([number]) * 16))
    engine.step()
    before = engine.stats()
    assert (before.num_active, before.num_waiting, before.num_kv_blocks) == (2, 1, 2 * 512)
    assert before.num_free_kv_blocks < before.num_kv_blocks
    assert set(engine.abort([bytes([5]) * 16, bytes([7]) * 16, b"unknown"])) == {bytes([5]) * 16, bytes([7]) * 16}
    after = engine.stats()
    assert (after.num_active, after.num_waiting, after.num_aborted) == (1, 0, 2)
    assert before.num_free_kv_blocks < after.num_free_kv_blocks < after.num_kv_blocks
    assert engine.abort([bytes([6]) * 16]) == (bytes([6]) * 16,)
    assert engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks


def test_the_peak_is_of_the_steps_since_the_last_reading() -> None:
    engine = SimulatedEngine(simulated_spec(max_concurrency=3), VirtualClock())
    run(engine, [request(bytes([number]) * 16) for number in range(3)])
    first, second = engine.stats(), engine.stats()
    assert (first.num_active, first.peak_active, second.peak_active) == (0, 3, 0)
    assert first.peak_kv_cache_usage > second.peak_kv_cache_usage == 0.0


def test_a_request_may_have_its_own_max_tokens() -> None:
    engine = SimulatedEngine(simulated_spec(max_tokens=8, output_tokens=100, max_context_tokens=64), VirtualClock())
    own = [replace(request(bytes([number]) * 16), sampling={"max_tokens": number}) for number in (1, 3, 20)]
    completions = run_completions(engine, [*own, request(bytes(16))])
    assert sorted(one.output_tokens for one in completions) == [1, 3, 8, 20]
    assert {one.finish_reason for one in completions} == {"length"}
    none, too_many = (
        replace(request(bytes(16)), sampling={"max_tokens": 0}),
        replace(request(bytes(16)), sampling={"max_tokens": 60}),
    )
    refused = [engine.add(none), engine.add(too_many)]
    assert [one.code for one in refused if one] == [FailureCode.ENGINE_REJECTED, FailureCode.PROMPT_TOO_LONG]


@pytest.mark.parametrize(("has_priorities", "order"), [(True, [9, 3, 4, 1, 2]), (False, [9, 1, 2, 3, 4])])
def test_the_lowest_priority_number_goes_first_if_priorities_count(has_priorities: bool, order: list[int]) -> None:
    spec = replace(
        simulated_spec(max_concurrency=1, seconds_per_output_token=1, output_tokens=2), has_priorities=has_priorities
    )
    engine = SimulatedEngine(spec, VirtualClock())
    engine.add(request(bytes([9]) * 16))
    engine.step()  # what runs goes on
    for number, priority in ((1, 5), (2, 5), (3, -1), (4, 0)):
        engine.add(replace(request(bytes([number]) * 16), priority=priority))
    assert [one.document_hash[0] for one in run(engine)] == order


def with_fault(kind: str, times: int | None = None) -> SimulatedEngine:
    fault: JsonValue = {"match": "BAD", "kind": kind, "times": times}
    return SimulatedEngine(simulated_spec(faults=[fault]), VirtualClock())


@pytest.mark.parametrize(
    ("kind", "code"), [("reject", FailureCode.ENGINE_REJECTED), ("error", FailureCode.ENGINE_ERROR)]
)
def test_a_scripted_rejection_hits_only_what_it_matches(kind: str, code: FailureCode) -> None:
    outcomes = run(with_fault(kind), [request(b"a" * 16, "is BAD"), request(b"b" * 16, "is good")])
    by_hash = {outcome.document_hash: outcome for outcome in outcomes}
    bad, good = by_hash[b"a" * 16], by_hash[b"b" * 16]
    assert isinstance(bad, Rejection)
    assert bad.code is code
    assert isinstance(good, Completion)


def test_a_scripted_cut_has_max_tokens_and_says_length() -> None:
    (completion,) = run_completions(with_fault("truncate"), [request(bytes(16), "BAD")])
    assert (completion.output_tokens, completion.finish_reason) == (8, "length")


def test_a_scripted_empty_answer_is_empty() -> None:
    (completion,) = run_completions(with_fault("empty"), [request(bytes(16), "BAD")])
    assert (completion.text, completion.finish_reason) == ("", "stop")


@pytest.mark.parametrize("kind", ["die", "hang", "raise"])
def test_a_scripted_end_raises_where_the_process_is_not_its_own(kind: str) -> None:
    engine = with_fault(kind)
    assert engine.add(request(bytes(16), "BAD")) is None
    with pytest.raises(ScriptedFaultError):
        engine.step()


def test_a_fault_stops_after_its_number_of_times() -> None:
    engine = with_fault("reject", times=2)
    rejections = [engine.add(request(bytes([number]) * 16, "BAD")) for number in range(4)]
    assert [rejection is not None for rejection in rejections] == [True, True, False, False]


@pytest.mark.parametrize(("life", "is_deadly"), [(1, True), (2, True), (3, False)])
def test_a_deadly_fault_stops_after_its_number_of_lives(life: int, is_deadly: bool) -> None:
    fault: JsonValue = {"match": "BAD", "kind": "raise", "times": 2}
    engine = SimulatedEngine(simulated_spec(faults=[fault]), VirtualClock(), life=life)
    engine.add(request(bytes(16), "BAD"))
    if is_deadly:
        with pytest.raises(ScriptedFaultError):
            engine.step()
    else:
        assert len(engine.step()) == 1


def test_ready_tells_the_cost_model() -> None:
    ready = SimulatedEngine(simulated_spec(seconds_per_output_token=0.25), VirtualClock()).ready()
    assert ready.num_kv_cache_tokens == 4 * 512
    assert ready.settings["seconds_per_output_token"] == 0.25


def test_full_steps_are_counted_up_to_the_tail() -> None:
    engine = SimulatedEngine(simulated_spec(max_concurrency=2, seconds_per_output_token=1), VirtualClock())
    for number in (3, 5, 1):  # 4, 6 and 2 output tokens
        engine.add(request(bytes([number]) * 16))
    while engine.num_unfinished():
        engine.step()
    stats = engine.stats()  # 4 steps of two, then 2 of two again: the third enters as the first ends
    assert (stats.num_steps, stats.num_full_steps, stats.num_fed_steps) == (6, 6, 6)
    engine.add(request(bytes([7]) * 16))  # 8 tokens, alone
    while engine.num_unfinished():
        engine.step()
    stats = engine.stats()
    assert (stats.num_steps, stats.num_full_steps, stats.num_fed_steps) == (14, 6, 6)
    engine.add(request(bytes([7]) * 16))  # so the eight steps before it might have been full
    stats = engine.stats()
    assert (stats.num_full_steps, stats.num_fed_steps) == (6, 14)


def test_an_engine_that_never_has_enough_has_no_full_steps() -> None:
    engine = SimulatedEngine(simulated_spec(max_concurrency=4), VirtualClock())
    for number in range(3):
        engine.add(request(bytes([number]) * 16))
    while engine.num_unfinished():
        engine.step()
    stats = engine.stats()
    assert (stats.num_full_steps, stats.num_fed_steps) == (0, 0)
    assert stats.num_steps > 0


def test_limits_that_are_left_to_the_engine_are_those_of_a_small_model() -> None:
    spec = replace(simulated_spec(max_tokens=48), max_concurrency=None, max_context_tokens=None)
    engine = SimulatedEngine(spec, VirtualClock())
    ready = engine.ready()
    assert (ready.max_concurrency, ready.num_kv_cache_tokens) == (64, 64 * 2048)
    assert (ready.settings["max_concurrency"], ready.settings["max_context_tokens"]) == (64, 2048)
    rejection = engine.add(EngineRequest(bytes(16), (Message("user", "x" * 4 * 2000),)))
    assert rejection is not None
    expected = "exceeds the context of 2048, which is the simulated engine's own (limits.max_context_tokens: auto)"
    assert rejection.message.endswith(expected)
