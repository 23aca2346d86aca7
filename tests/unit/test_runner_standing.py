"""How a run stands, for those who look on: phases, silences, what takes long; and the same told to other processes."""

import json
from collections import Counter
from dataclasses import fields, replace

import pytest

from bulkinfer.display import describe_in_one_line, describe_status, read_progress
from bulkinfer.errors import EngineDied, EngineError
from bulkinfer.events import NO_TREND, EnginePhase, Progress, RunPhase
from bulkinfer.records import JsonValue, Origin
from bulkinfer.runner.standing import MAX_ID_CHARS, NUM_SLOWEST, Standing, decide_phase
from tests.unit.test_runner_fleet import Ships
from tests.unit.test_runner_ledger import STATS, complete, shard
from tests.unit.test_runner_window import READY, Clock, ScriptedEngine, completion, request


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still until it is moved."""
    return Clock(monkeypatch)


def standing_of(ships: Ships) -> Standing:
    """How its run stands."""
    return Standing(ships.ledger, ships.fleet, queue_capacity=16)


def test_a_run_that_has_begun_reads(clock: Clock) -> None:
    seen = standing_of(Ships(ScriptedEngine())).look()
    assert (seen.phase, seen.since_result_s, seen.slowest, seen.trend) == (RunPhase.READING, None, (), NO_TREND)
    assert (seen.queue_capacity, seen.window_capacity) == (16, 0)


def test_the_phase_follows_the_engine(clock: Clock) -> None:
    engine = ScriptedEngine([], [READY], EngineDied("killed"), [], [READY])
    ships = Ships(engine)
    standing = standing_of(ships)
    ships.add(3)
    found = []
    for _ in range(5):
        ships.turn()
        found.append(standing.look().phase)
        clock.now_s += ships.fleet.start_wait_s()
    assert found == [
        RunPhase.LOADING,
        RunPhase.RUNNING,
        RunPhase.RESTARTING,
        RunPhase.LOADING,
        RunPhase.RUNNING,
    ]
    assert standing.look(is_stopping=True).phase is RunPhase.STOPPING


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        ({EnginePhase.UNUSED}, RunPhase.READING),
        ({EnginePhase.UNUSED, EnginePhase.LOADING}, RunPhase.LOADING),
        ({EnginePhase.READY, EnginePhase.LOADING, EnginePhase.RESTARTING}, RunPhase.RUNNING),
        ({EnginePhase.LOADING, EnginePhase.GIVEN_UP}, RunPhase.LOADING),
        ({EnginePhase.RESTARTING, EnginePhase.UNUSED}, RunPhase.RESTARTING),
        ({EnginePhase.GIVEN_UP, EnginePhase.UNUSED}, RunPhase.RESTARTING),
    ],
)
def test_a_run_is_about_what_its_best_engine_is_about(phases: set[EnginePhase], expected: RunPhase) -> None:
    assert decide_phase(phases) is expected


def test_the_slowest_are_those_in_flight_longest_of_all_engines(clock: Clock) -> None:
    engines = [ScriptedEngine([READY]), ScriptedEngine([READY])]
    ships = Ships(*engines, max_concurrency=4)
    standing = standing_of(ships)
    ships.add(12)
    ships.turn()
    ships.turn()
    engines[0].now_s += 30.0
    engines[1].now_s += 20.0
    seen = standing.look()
    assert len(seen.slowest) == NUM_SLOWEST
    assert [one.in_flight_s for one in seen.slowest] == sorted((one.in_flight_s for one in seen.slowest), reverse=True)
    assert seen.slowest[0].in_flight_s == 30.0
    assert Counter(one.replica for one in seen.slowest)[0] == NUM_SLOWEST
    assert seen.window_capacity == 16
    assert [engine.num_in_flight for engine in seen.engines] == [window.num_in_flight for window in ships.fleet.windows]


def test_the_slowest_come_in_the_order_in_which_they_went_in_and_go_when_they_are_done(clock: Clock) -> None:
    engine = ScriptedEngine([READY], [], [], [completion("r0")])
    ships = Ships(engine)
    standing = standing_of(ships)
    ships.add(3)
    ships.turn()
    ships.turn()
    engine.now_s += 5.0
    ships.fleet.queue.append(request("late"))
    ships.turn()
    engine.now_s += 1.0
    seen = [(one.document_id, one.in_flight_s) for one in standing.look().slowest]
    assert seen == [("r0", 6.0), ("r1", 6.0), ("r2", 6.0), ("late", 1.0)]
    ships.turn()
    assert [one.document_id for one in standing.look().slowest] == ["r1", "r2", "late"]


def test_a_request_that_was_asked_before_says_so(clock: Clock) -> None:
    engine = ScriptedEngine([READY], EngineDied("killed"), [READY])
    ships = Ships(engine)
    standing = standing_of(ships)
    ships.add(1)
    for _ in range(4):
        ships.turn()
        clock.now_s += ships.fleet.start_wait_s()
    assert [(one.document_id, one.attempt, one.num_chars) for one in standing.look().slowest] == [("r0", 2, 10)]


def test_an_id_of_a_million_characters_does_not_fill_the_status_file(clock: Clock) -> None:
    ships = Ships(ScriptedEngine([READY]))
    ships.fleet.queue.append(replace(request("r0"), origin=Origin("a.jsonl", 1, "x" * 1_000_000)))
    ships.turn()
    ships.turn()
    standing = standing_of(ships)
    assert standing.look().slowest[0].document_id == "x" * MAX_ID_CHARS
    assert len(json.dumps(standing.describe())) < 5_000


def test_silence_is_measured_from_the_last_result_while_something_is_in_flight(clock: Clock) -> None:
    engine = ScriptedEngine([READY], [], [], [completion("r0")])
    ships = Ships(engine)
    standing = standing_of(ships)
    ships.ledger.note_shard(shard(2))
    assert standing.look().since_result_s is None
    ships.add(2)
    ships.turn()
    ships.turn()
    assert standing.look().since_result_s == 0.0
    clock.now_s += 42.0
    assert (standing.look().since_result_s, standing.look().engines[0].since_result_s) == (42.0, 42.0)
    assert standing.describe()["since_result_s"] == 42.0
    clock.now_s += 1.0
    assert standing.describe()["since_result_s"] == 43.0, "also while the loop does not look"
    complete(ships.ledger, 1)
    seen = standing.look()
    assert (seen.since_result_s, seen.engines[0].since_result_s) == (0.0, 0.0)


def test_a_pause_with_nothing_in_flight_is_no_silence(clock: Clock) -> None:
    ships = Ships(ScriptedEngine([READY], [completion("r0")]))
    standing = standing_of(ships)
    ships.add(1)
    ships.turn()
    ships.turn()
    standing.look()
    ships.turn()
    clock.now_s += 100.0
    assert standing.look().since_result_s is None
    ships.add(1)
    ships.turn()
    assert standing.look().since_result_s == 0.0


def test_the_silence_of_a_run_lasts_while_its_engine_is_started_again(clock: Clock) -> None:
    ships = Ships(ScriptedEngine([READY], [], EngineDied("killed")))
    standing = standing_of(ships)
    ships.add(3)
    for _ in range(2):
        ships.turn()
        standing.look()
    clock.now_s += 42.0
    ships.turn()
    seen = standing.look()
    assert (seen.phase, seen.num_in_flight) == (RunPhase.RESTARTING, 0)
    assert seen.since_result_s == 42.0
    assert standing.describe()["since_result_s"] == 42.0


def test_one_silent_engine_of_two_is_seen(clock: Clock) -> None:
    ships = Ships(ScriptedEngine([READY]), ScriptedEngine([READY]), max_concurrency=2)
    standing = standing_of(ships)
    ships.ledger.note_shard(shard(8))
    ships.add(8)
    ships.turn()
    ships.turn()
    standing.look()
    clock.now_s += 60.0
    complete(ships.ledger, 1)
    seen = standing.look()
    assert seen.since_result_s == 0.0
    assert [engine.since_result_s for engine in seen.engines] == [0.0, 60.0]


def test_the_counts_of_a_live_run_are_told(clock: Clock) -> None:
    ships = Ships(ScriptedEngine())
    ships.ledger.started_s = clock.now_s
    ships.ledger.note_shard(shard(10, num_bad=2, num_skipped=8))
    standing = standing_of(ships)
    no_steps = {"steps": 0, "full_steps": 0, "full_step_share": None, "idle_s": 0.0}
    before = standing.describe()
    assert before["engine"] == {"active": 0, "kv_cache_usage": 0.0, "preemptions": 0, "restarts": 0, **no_steps}
    assert "phase" not in before, "nobody has looked yet"
    ships.ledger.note_stats(replace(STATS, kv_cache_usage=0.123456))
    complete(ships.ledger, 1)
    ships.add(5)
    clock.now_s += 1.5
    assert standing.describe() == {
        "elapsed_s": 1.5,
        "documents": {
            "read": 20,
            "skipped": 8,
            "to_do": 12,
            "succeeded": 1,
            "failed": 2,
            "failed_by_code": {"unreadable_row": 2},
            "is_read_to_end": False,
            "queued": 5,
            "in_flight": 0,
        },
        "tokens": {"prompt": 30, "cached": 10, "output": 5},
        "engine": {"active": 3, "kv_cache_usage": 0.1235, "preemptions": 2, "restarts": 0, **no_steps, "steps": 9},
    }


def test_what_another_process_reads_is_what_the_run_saw(clock: Clock) -> None:
    """All of it, through JSON: both draw the same view."""
    engines = [ScriptedEngine([READY]), ScriptedEngine(EngineError("no memory")), ScriptedEngine([READY])]
    ships = Ships(*engines)
    ships.ledger.note_shard(shard(20, num_bad=3, num_skipped=1, bytes_read=500))
    ships.ledger.note_stats(replace(STATS, kv_cache_usage=0.25), 0)
    standing = standing_of(ships)
    ships.add(20)
    for _ in range(12):
        ships.turn()
        complete(ships.ledger, 1)
        clock.now_s += 0.5
        seen = standing.look()
    assert seen.engines[1].phase is EnginePhase.GIVEN_UP
    assert seen.trend.num_documents
    assert seen.slowest
    told = read_progress(json.loads(json.dumps(standing.describe())))
    assert told is not None
    for name in (one.name for one in fields(Progress)):
        found, expected = getattr(told, name), getattr(seen, name)
        assert found == (pytest.approx(expected, abs=0.001) if isinstance(expected, float) else expected), name


@pytest.mark.parametrize("missing", ["documents", "throughput", "slowest", "trend", "phase", "window"])
def test_a_run_that_tells_less_is_not_drawn(clock: Clock, missing: str) -> None:
    standing = standing_of(Ships(ScriptedEngine()))
    standing.look()
    described = standing.describe()
    assert read_progress(described) is not None
    assert read_progress({name: value for name, value in described.items() if name != missing}) is None
    assert read_progress({**described, "phase": "dreaming"}) is None


@pytest.mark.parametrize(
    "damage",
    [
        {"engine": []},
        {"engine": "x"},
        {"engine": None},
        {"documents": {"failed_by_code": 7}},
        {"slowest": 7},
        {"trend": "x"},
        {"queue": None},
        {"queue": {"capacity": "x"}},
        {"engine": {"kv_cache_usage": "x"}},
        {"documents": {"read": 10**30}},
        {"documents": {"queued": None}},
        {"tokens_left": "x"},
        {"share_read": None},
        {"time_left_s": []},
        {"throughput": {"documents_per_s": {}}},
        {"trend": {"output_tokens": [1] * 500}},
        {"trend": {"documents": "x"}},
        {"slowest": [{"document_id": None, "in_flight_s": 1.0, "attempt": 1, "num_chars": 7, "replica": 0}]},
    ],
    ids=str,
)
def test_a_damaged_status_is_not_drawn(clock: Clock, damage: dict[str, JsonValue]) -> None:
    standing = standing_of(Ships(ScriptedEngine()))
    standing.look()
    described = standing.describe()
    merged = {
        name: {**old, **value} if isinstance(old := described[name], dict) and isinstance(value, dict) else value
        for name, value in damage.items()
    }
    found = {**described, **merged, "status": "running", "pid": 7, "host": "here"}
    assert read_progress(found) is None
    assert "running, pid 7 on here" in describe_in_one_line(found)
    assert "running, pid 7 on here" in next(iter(describe_status(found)))


def test_looking_costs_the_same_however_much_is_in_flight() -> None:
    """It never walks through what is in flight: only the first of it."""
    ships = Ships(ScriptedEngine([READY]), max_concurrency=5_000)
    ships.add(10_000)
    ships.turn()
    ships.turn()
    assert ships.fleet.num_in_flight == 10_000
    assert len(ships.fleet.windows[0].first_in_flight(NUM_SLOWEST)) == NUM_SLOWEST
