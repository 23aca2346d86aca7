"""The window: how much the engine holds, when it is started, and what its death does."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bulkinfer.engines.base import Engine
from bulkinfer.errors import BulkinferError, EngineDied, EngineError, JobError
from bulkinfer.events import EngineRestarting, EngineStarted, EngineStarting, Event
from bulkinfer.records import (
    UNKNOWN_WORKLOAD,
    Completion,
    EngineEvent,
    EngineReady,
    EngineStats,
    FailureCode,
    Message,
    Origin,
    Rejection,
    Request,
    Workload,
)
from bulkinfer.records.requests import IMAGE_CHARS_PER_CHAR
from bulkinfer.runner.ledger import Ledger
from bulkinfer.runner.window import MAX_HALVINGS, MAX_WINDOW_CHARS, Returned, Window

READY = EngineReady(start_s=2.5, num_kv_cache_tokens=1_000, settings={"device": "none"})


class Clock:
    """The monotonic clock, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)


class ScriptedEngine:
    """An engine whose polls give what the test put into `script`, one entry each; nothing when it is used up."""

    def __init__(self, *script: list[EngineEvent] | BulkinferError) -> None:
        self.script = deque(script)
        self.calls: list[str] = []
        self.submitted: list[Request] = []
        self.now_s = 7.0

    def start(self, workload: Workload = UNKNOWN_WORKLOAD) -> None:
        """Note the call."""
        self.calls.append("start")

    def submit(self, requests: Sequence[Request]) -> None:
        """Take the requests."""
        self.calls.append("submit")
        self.submitted += requests

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        """The next entry of the script."""
        self.calls.append("poll")
        entry = self.script.popleft() if self.script else []
        if isinstance(entry, BulkinferError):
            raise entry
        return entry

    def abort(self, document_hashes: Sequence[bytes]) -> None:
        """The window never aborts."""
        raise AssertionError("not expected")

    def now(self) -> float:
        """A clock of the engine's own."""
        return self.now_s

    def close(self) -> None:
        """Note the call."""
        self.calls.append("close")


class Bench:
    """A window over an engine, with everything that it tells."""

    def __init__(self, engine: Engine, *, max_concurrency: int = 2, max_restarts: int = 3) -> None:
        self.ledger = Ledger(input_size_bytes=0, max_concurrency=max_concurrency)
        self.events: list[Event] = []
        self.window = Window(engine, "my-model", max_concurrency, max_restarts, self.ledger, self.events.append)


def request(name: str, num_chars: int = 10) -> Request:
    """A request that is known by its name."""
    return Request(name.encode(), Origin("a.jsonl", 1, name), (Message("user", "x"),), num_chars)


def queue_of(names: str) -> deque[Request]:
    """A queue of requests with names of one letter."""
    return deque(request(name) for name in names)


def completion(name: str) -> Completion:
    """An answer."""
    return Completion(name.encode(), "answer", "stop", 3, 0, 1, 0.0, 0.1, 0.2)


def names(requests: Sequence[Request]) -> str:
    """What the engine was given, in order."""
    return "".join(request.document_hash.decode() for request in requests)


def answered(returned: Sequence[Returned]) -> str:
    """What came back, in order."""
    return names([one.flight.request for one in returned])


def start(bench: Bench, queue: deque[Request]) -> None:
    """Feed until the engine is ready and has its first requests. The script must begin with READY."""
    bench.window.feed(queue)
    assert bench.window.poll(0.0) == []
    bench.window.feed(queue)


class DeadlyEngine:
    """An engine that ends with the requests named in `killers`, and answers all others in their order.

    It runs `num_slots` at a time, a poll each. `lives_to_fail`: in so many lives every request ends it. `is_slow`: it
    does nothing in the poll that follows a submit.
    """

    def __init__(
        self,
        *killers: str,
        num_slots: int = 1_000,
        dies_in_submit: bool = False,
        lives_to_fail: int = 0,
        is_slow: bool = False,
    ) -> None:
        self.killers = {killer.encode() for killer in killers}
        self.num_slots = num_slots
        self.dies_in_submit = dies_in_submit
        self.lives_to_fail = lives_to_fail
        self.is_slow = is_slow
        self._is_resting = False
        self.num_lives = self.num_deaths = self.peak_in_flight = 0
        self.groups: list[str] = []
        self._is_ready = False
        self._in_flight: list[bytes] = []

    def start(self, workload: Workload = UNKNOWN_WORKLOAD) -> None:
        """A new life."""
        self.num_lives += 1
        self._is_ready = False

    def submit(self, requests: Sequence[Request]) -> None:
        """Take the requests, or die of them."""
        self.groups.append(names(requests))
        self._in_flight += [request.document_hash for request in requests]
        self._is_resting = self.is_slow
        self.peak_in_flight = max(self.peak_in_flight, len(self._in_flight))
        if self.dies_in_submit:
            self._die_of(self._in_flight, "killed in submit")

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        """Answer what runs, or die of it."""
        if not self._is_ready:
            self._is_ready = True
            return [READY]
        if self._is_resting:
            self._is_resting = False
            return []
        running, self._in_flight = self._in_flight[: self.num_slots], self._in_flight[self.num_slots :]
        self._die_of(running, "killed")
        return [completion(document_hash.decode()) for document_hash in running]

    def abort(self, document_hashes: Sequence[bytes]) -> None:
        """The window never aborts."""
        raise AssertionError("not expected")

    def now(self) -> float:
        """It has no time."""
        return 0.0

    def close(self) -> None:
        """Forget everything."""
        self._in_flight = []

    def _die_of(self, running: Sequence[bytes], how: str) -> None:
        if self.killers & set(running) or (running and self.num_lives <= self.lives_to_fail):
            self.num_deaths += 1
            raise EngineDied(how)


def drive(bench: Bench, queue: deque[Request], clock: Clock, returned: list[Returned] | None = None) -> list[Returned]:
    """Feed and poll as the loop does until nothing is left; return what came back, in order."""
    returned = [] if returned is None else returned
    for _ in range(10_000):
        bench.window.feed(queue)
        for one in bench.window.poll(0.0):
            if isinstance(one.event, Completion):
                bench.ledger.note_completion(one.flight.request, one.event)
            returned.append(one)
        clock.now_s += bench.window.start_wait_s()
        if not queue and bench.window.num_in_flight == bench.window.num_waiting == 0:
            return returned
    raise AssertionError("it does not end")


def numbered_queue(count: int) -> deque[Request]:
    """Requests r0, r1, ..."""
    return deque(request(f"r{number}") for number in range(count))


def hashes_of(count: int) -> list[bytes]:
    """Those of `numbered_queue`."""
    return [f"r{number}".encode() for number in range(count)]


def hashes(returned: Sequence[Returned]) -> list[bytes]:
    """What came back, in order."""
    return [one.event.document_hash for one in returned]


def killer_names(returned: Sequence[Returned]) -> list[str]:
    """Those that came back as killers; nothing else may be refused."""
    refused = [one.event for one in returned if isinstance(one.event, Rejection)]
    assert {event.code for event in refused} <= {FailureCode.ENGINE_KILLER}
    return [event.document_hash.decode() for event in refused]


def marked(returned: Sequence[Returned]) -> str:
    """The one killer, or the empty text."""
    return ",".join(killer_names(returned))


def test_an_empty_queue_starts_no_engine_and_polls_none() -> None:
    engine = ScriptedEngine([READY])
    bench = Bench(engine)
    bench.window.feed(deque())
    assert bench.window.poll(0.0) == []
    assert (engine.calls, bench.events) == ([], [])


def test_the_first_request_starts_the_engine_once_and_waits_until_it_is_ready() -> None:
    engine = ScriptedEngine([], [READY])
    bench = Bench(engine)
    queue = queue_of("ab")
    bench.window.feed(queue)
    assert (engine.calls, names(queue), bench.window.num_in_flight) == (["start"], "ab", 0)
    assert (bench.window.is_started, bench.window.is_ready) == (True, False)
    bench.window.poll(0.0)
    bench.window.feed(queue)
    assert engine.submitted == []
    bench.window.poll(0.0)
    bench.window.feed(queue)
    assert (names(engine.submitted), names(queue), bench.window.num_in_flight) == ("ab", "", 2)
    assert engine.calls == ["start", "poll", "poll", "submit"]


def test_ready_and_stats_reach_ledger_and_sink() -> None:
    stats = EngineStats(
        num_active=2,
        num_waiting=1,
        kv_cache_usage=0.5,
        num_preemptions=4,
        num_steps=9,
        num_prompt_tokens=60,
        num_output_tokens=20,
        memory_bytes=5_000,
    )
    bench = Bench(ScriptedEngine([READY, stats]))
    bench.window.feed(queue_of("a"))
    assert bench.window.poll(0.0) == []
    assert bench.events == [EngineStarting("my-model", 0), EngineStarted(2.5, {"device": "none"})]
    assert (bench.ledger.engine_start_s, bench.ledger.stats, bench.ledger.num_preemptions) == (2.5, stats, 4)


def test_twice_the_engines_sequences_are_in_flight_and_each_answer_makes_room_for_one() -> None:
    engine = ScriptedEngine([READY], [completion("b")], [completion("a"), completion("d")])
    bench = Bench(engine, max_concurrency=2)
    queue = queue_of("abcdefgh")
    start(bench, queue)
    assert (names(engine.submitted), names(queue)) == ("abcd", "efgh")
    bench.window.feed(queue)
    assert names(engine.submitted) == "abcd", "full"
    assert answered(bench.window.poll(0.0)) == "b"
    bench.window.feed(queue)
    assert (names(engine.submitted), bench.window.num_in_flight) == ("abcde", 4)
    assert answered(bench.window.poll(0.0)) == "ad"
    bench.window.feed(queue)
    assert (names(engine.submitted), names(queue), bench.window.num_in_flight) == ("abcdefg", "h", 4)


def test_nothing_is_submitted_when_there_is_no_room() -> None:
    engine = ScriptedEngine([READY])
    bench = Bench(engine, max_concurrency=1)
    start(bench, queue_of("ab"))
    bench.window.feed(queue_of("c"))
    assert engine.calls.count("submit") == 1


@pytest.mark.parametrize(
    ("lengths", "num_taken"),
    [
        ([MAX_WINDOW_CHARS, 1], 1),
        ([MAX_WINDOW_CHARS - 1, 1, 1], 2),
        ([3 * MAX_WINDOW_CHARS, 1], 1),  # one is taken however long it is
        ([1, MAX_WINDOW_CHARS, 1], 1),  # and no shorter one overtakes
        ([MAX_WINDOW_CHARS // 4] * 9, 4),
    ],
)
def test_the_text_in_flight_is_bounded(lengths: list[int], num_taken: int) -> None:
    engine = ScriptedEngine([READY])
    bench = Bench(engine, max_concurrency=100)
    start(bench, deque(request(f"r{number}", length) for number, length in enumerate(lengths)))
    assert len(engine.submitted) == num_taken


def test_images_in_flight_are_bounded_too() -> None:
    engine = ScriptedEngine([READY], [completion("a")])
    bench = Bench(engine, max_concurrency=100)
    half = MAX_WINDOW_CHARS * IMAGE_CHARS_PER_CHAR // 2
    queue = deque(replace(request(name, 0), num_image_chars=half) for name in "abcd")
    start(bench, queue)
    assert names(engine.submitted) == "ab"
    bench.window.poll(0.0)
    bench.window.feed(queue)
    assert names(engine.submitted) == "abc"


def test_an_answer_gives_its_text_back_to_the_bound() -> None:
    engine = ScriptedEngine([READY], [completion("a")], [completion("b")])
    bench = Bench(engine, max_concurrency=100)
    queue = deque(request(name, MAX_WINDOW_CHARS) for name in "abc")
    start(bench, queue)
    for expected in ("ab", "abc"):
        bench.window.poll(0.0)
        bench.window.feed(queue)
        assert names(engine.submitted) == expected


def test_what_comes_back_knows_its_request_and_when_it_was_submitted() -> None:
    rejection = Rejection(b"a", FailureCode.PROMPT_TOO_LONG, "too long", 900)
    engine = ScriptedEngine([READY], [rejection, completion("b")])
    bench = Bench(engine)
    engine.now_s = 42.0
    start(bench, queue_of("ab"))
    engine.now_s = 50.0
    first, second = bench.window.poll(0.0)
    assert (first.event, first.flight.submitted_at_s, first.flight.request.document_hash) == (rejection, 42.0, b"a")
    assert second.event == completion("b")
    assert bench.window.num_in_flight == 0


def test_a_death_puts_requests_back_first_in_their_order_as_another_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    engine = ScriptedEngine([READY], [completion("b")], EngineDied("killed"), [READY])
    bench = Bench(engine, max_concurrency=2)
    queue = queue_of("abcdxyz")
    start(bench, queue)
    bench.window.poll(0.0)
    assert bench.window.poll(0.0) == []
    assert (bench.window.num_in_flight, bench.window.num_waiting, names(queue)) == (0, 3, "xyz")
    assert (bench.window.is_started, bench.window.is_ready) == (False, False)
    assert engine.calls[-2:] == ["poll", "close"]
    assert bench.events[-1] == EngineRestarting("killed", 3, 1.0)
    assert bench.ledger.num_restarts == 0, "not started yet"

    engine.submitted.clear()
    clock.now_s += 1.0
    start(bench, queue)
    assert [(one.document_hash, one.attempt) for one in engine.submitted] == [
        (b"a", 2),
        (b"c", 2),
        (b"d", 2),
        (b"x", 1),
    ]
    assert (bench.window.num_waiting, bench.ledger.num_restarts) == (0, 1)
    assert EngineStarting("my-model", 1) in bench.events


def test_after_a_death_the_next_start_waits_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    engine = ScriptedEngine([READY], EngineDied("killed"))
    bench = Bench(engine)
    queue = queue_of("a")
    assert bench.window.start_wait_s() == 0.0
    start(bench, queue)
    bench.window.poll(0.0)
    assert bench.window.start_wait_s() == 1.0
    clock.now_s += 0.75
    bench.window.feed(queue)
    assert (engine.calls.count("start"), bench.window.start_wait_s()) == (1, 0.25)
    assert bench.window.poll(0.0) == [], "a dead engine is not polled"
    clock.now_s += 0.25
    bench.window.feed(queue)
    assert (engine.calls.count("start"), bench.window.start_wait_s()) == (2, 0.0)


def test_requests_in_flight_at_two_deaths_run_alone_in_halves_and_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    engine = ScriptedEngine(
        [READY], EngineDied("one"), [READY], EngineDied("two"), [READY], [completion("a")], [completion("b")], []
    )
    bench = Bench(engine, max_concurrency=2)
    queue = queue_of("abcxyz")
    for _ in range(2):
        start(bench, queue)
        bench.window.poll(0.0)
        clock.now_s += 1.0
    assert (bench.window.num_waiting, bench.events[-1]) == (4, EngineRestarting("two", 4, 1.0))
    engine.submitted.clear()
    start(bench, queue)
    assert [(one.document_hash, one.attempt) for one in engine.submitted] == [(b"a", 3), (b"b", 3)]
    for expected in ("ab", "ab", "abcx", "abcx"):
        # What is in flight must be finished before the other half goes in.
        assert names(engine.submitted) == expected
        bench.window.poll(0.0)
        bench.window.feed(queue)
    assert names(queue) == "yz"


def test_suspects_that_were_answered_leave_the_way_to_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    bench = Bench(engine := DeadlyEngine(lives_to_fail=2), max_concurrency=2)
    returned = drive(bench, queue_of("abcdefgh"), clock)
    assert sorted(answered(returned)) == list("abcdefgh")
    assert marked(returned) == ""
    assert [len(group) for group in engine.groups] == [4, 4, 2, 2, 4], "and then at full size"


@pytest.mark.parametrize("max_restarts", [0, 1, 3])
def test_more_deaths_in_a_row_than_the_job_bears_end_the_run(
    monkeypatch: pytest.MonkeyPatch, max_restarts: int
) -> None:
    """The engine dies while it loads: no request is suspected."""
    clock = Clock(monkeypatch)
    engine = ScriptedEngine(*[EngineDied(f"death {number}") for number in range(max_restarts + 1)])
    bench = Bench(engine, max_restarts=max_restarts)
    queue = queue_of("ab")
    for _ in range(max_restarts):
        bench.window.feed(queue)
        assert bench.window.poll(0.0) == []
        clock.now_s += 60.0
    bench.window.feed(queue)
    with pytest.raises(EngineError) as caught:
        bench.window.poll(0.0)
    assert not isinstance(caught.value, EngineDied)
    assert f"{max_restarts + 1} times" in str(caught.value)
    assert f"death {max_restarts}" in str(caught.value)
    assert (bench.window.num_in_flight, bench.window.num_waiting, names(queue)) == (0, 0, "ab")
    assert engine.calls[-1] == "close"
    waits = [event.wait_s for event in bench.events if isinstance(event, EngineRestarting)]
    assert waits == [1.0, 2.0, 4.0][:max_restarts]


def test_without_restarts_the_first_death_ends_the_run() -> None:
    bench = Bench(ScriptedEngine([READY], EngineDied("one")), max_restarts=0)
    start(bench, queue_of("ab"))
    with pytest.raises(EngineError, match="1 times"):
        bench.window.poll(0.0)
    assert (bench.window.num_in_flight, bench.window.num_waiting) == (0, 2)


def test_deaths_in_a_row_are_forgotten_after_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    answers: list[EngineEvent] = [completion("a"), completion("b")]
    engine = ScriptedEngine([READY], EngineDied("one"), [READY], answers, EngineDied("two"), [READY])
    bench = Bench(engine, max_restarts=1)
    queue = queue_of("ab")
    start(bench, queue)
    bench.window.poll(0.0)
    clock.now_s += 1.0
    start(bench, queue)
    bench.window.poll(0.0)
    bench.window.feed(queue_of("cd"))
    assert bench.window.poll(0.0) == []
    assert bench.events[-1] == EngineRestarting("two", 2, 1.0), "and the wait begins small again"


def test_a_refusal_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine refuses before it computes anything: that shows nothing of its health."""
    clock = Clock(monkeypatch)
    refusals: list[EngineEvent] = [Rejection(name, FailureCode.ENGINE_REJECTED, "no", None) for name in (b"a", b"b")]
    engine = ScriptedEngine([READY], EngineDied("one"), [READY], refusals, EngineDied("two"))
    bench = Bench(engine, max_restarts=1)
    queue = queue_of("ab")
    start(bench, queue)
    bench.window.poll(0.0)
    clock.now_s += 1.0
    start(bench, queue)
    bench.window.poll(0.0)
    bench.window.feed(queue_of("cd"))
    with pytest.raises(EngineError, match="2 times"):
        bench.window.poll(0.0)


def test_stats_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    idle = EngineStats(0, 0, 0.0, 0, 0, 0, 0, 0)
    bench = Bench(ScriptedEngine([READY], EngineDied("one"), [READY, idle], EngineDied("two")), max_restarts=1)
    queue = queue_of("a")
    start(bench, queue)
    bench.window.poll(0.0)
    clock.now_s += 1.0
    bench.window.feed(queue)
    bench.window.poll(0.0)
    with pytest.raises(EngineError, match="2 times"):  # with nothing in flight, so that nobody is suspected
        bench.window.poll(0.0)


@pytest.mark.parametrize("num_slots", [1, 4, 1_000])
@pytest.mark.parametrize("dies_in_submit", [False, True])
@pytest.mark.parametrize("num_requests", [2, 7, 64, 128])
def test_one_killer_at_any_position_is_found_and_nobody_else_is_marked(
    monkeypatch: pytest.MonkeyPatch, num_requests: int, dies_in_submit: bool, num_slots: int
) -> None:
    clock = Clock(monkeypatch)
    for position in range(num_requests):
        killer = f"r{position}"
        engine = DeadlyEngine(killer, dies_in_submit=dies_in_submit, num_slots=num_slots)
        bench = Bench(engine, max_concurrency=64)
        returned = drive(bench, numbered_queue(num_requests), clock)
        assert marked(returned) == killer
        assert sorted(hashes(returned)) == sorted(hashes_of(num_requests)), "each once, the killer too"
        # All, all again, and one more for each halving.
        assert engine.num_deaths <= 2 + num_requests.bit_length()


def test_the_killer_is_failed_with_its_attempts_and_a_message_without_text(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    returned = drive(Bench(DeadlyEngine("r1"), max_concurrency=2), numbered_queue(4), clock)
    [killer] = [one for one in returned if isinstance(one.event, Rejection)]
    assert killer.event == Rejection(
        b"r1", FailureCode.ENGINE_KILLER, "the engine died each time that this document was in it alone"
    )
    assert killer.flight.request.attempt == 4, "with all, with all again, in a half, alone"


@pytest.mark.parametrize("dies_in_submit", [False, True])
def test_a_killer_in_a_long_queue_costs_a_few_deaths_and_the_rest_runs_at_full_size(
    monkeypatch: pytest.MonkeyPatch, dies_in_submit: bool
) -> None:
    clock = Clock(monkeypatch)
    for position in range(0, 300, 7):
        engine = DeadlyEngine(f"r{position}", dies_in_submit=dies_in_submit, num_slots=8)
        returned = drive(Bench(engine, max_concurrency=8), numbered_queue(300), clock)
        assert marked(returned) == f"r{position}"
        assert sorted(hashes(returned)) == sorted(hashes_of(300))
        assert engine.num_deaths <= 2 + 5
    assert engine.peak_in_flight == 16


@given(
    num_requests=st.integers(3, 200),
    num_slots=st.sampled_from([1, 3, 64]),
    dies_in_submit=st.booleans(),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_two_killers_are_both_found(
    num_requests: int, num_slots: int, dies_in_submit: bool, data: st.DataObject
) -> None:
    positions = data.draw(st.lists(st.integers(0, num_requests - 1), min_size=2, max_size=2, unique=True))
    killers = [f"r{position}" for position in positions]
    with pytest.MonkeyPatch.context() as patch:
        engine = DeadlyEngine(*killers, num_slots=num_slots, dies_in_submit=dies_in_submit)
        returned = drive(Bench(engine, max_concurrency=16), numbered_queue(num_requests), Clock(patch))
    assert sorted(killer_names(returned)) == sorted(killers)
    assert sorted(hashes(returned)) == sorted(hashes_of(num_requests))


@pytest.mark.parametrize("dies_in_submit", [False, True])
@pytest.mark.parametrize("max_restarts", [0, 1, 3])
@pytest.mark.parametrize("num_requests", [1, 2, 7, 128, 1_000])
def test_an_engine_that_always_dies_ends_the_run_and_marks_nobody(
    monkeypatch: pytest.MonkeyPatch, num_requests: int, max_restarts: int, dies_in_submit: bool
) -> None:
    clock = Clock(monkeypatch)
    engine = DeadlyEngine(lives_to_fail=10_000, dies_in_submit=dies_in_submit)
    bench = Bench(engine, max_concurrency=64, max_restarts=max_restarts)
    returned: list[Returned] = []
    with pytest.raises(EngineError) as caught:
        drive(bench, numbered_queue(num_requests), clock, returned)
    assert not isinstance(caught.value, EngineDied)
    assert returned == []
    assert engine.num_deaths <= max_restarts + MAX_HALVINGS + 1


@pytest.mark.parametrize("dies_in_submit", [False, True])
@pytest.mark.parametrize("num_killers", [1, 2, 3])
def test_killers_with_nothing_else_left_are_believed_once_the_engine_answers_a_prompt_of_ours(
    monkeypatch: pytest.MonkeyPatch, num_killers: int, dies_in_submit: bool
) -> None:
    clock = Clock(monkeypatch)
    killers = [f"r{number}" for number in range(num_killers)]
    engine = DeadlyEngine(*killers, dies_in_submit=dies_in_submit)
    bench = Bench(engine)
    assert sorted(killer_names(drive(bench, numbered_queue(num_killers), clock))) == killers
    assert engine.groups[-1] == "\0" * 16
    assert (bench.ledger.num_answered, bench.ledger.output_tokens) == (0, 0), "the trial is nobody's answer"


@pytest.mark.parametrize("max_restarts", [1, 3])
@pytest.mark.parametrize(("num_killers", "num_others"), [(14, 100), (40, 0), (128, 10)])
def test_many_killers_do_not_use_up_the_deaths_that_a_run_bears(
    monkeypatch: pytest.MonkeyPatch, num_killers: int, num_others: int, max_restarts: int
) -> None:
    """Each run would end without having set one aside, and the next would begin again."""
    clock = Clock(monkeypatch)
    killers = [f"r{number}" for number in range(num_killers)]
    bench = Bench(DeadlyEngine(*killers, num_slots=8), max_concurrency=64, max_restarts=max_restarts)
    returned = drive(bench, numbered_queue(num_killers + num_others), clock)
    assert sorted(killer_names(returned)) == sorted(killers)
    assert sorted(hashes(returned)) == sorted(hashes_of(num_killers + num_others))


def test_an_engine_that_ends_with_a_prompt_of_ours_is_broken_and_marks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    returned: list[Returned] = []
    with pytest.raises(EngineError, match=r"killed, with nothing but a prompt of bulkinfer's own"):
        drive(Bench(DeadlyEngine("r0", "\0" * 16)), numbered_queue(1), clock, returned)
    assert returned == []


def test_nothing_is_submitted_beside_a_prompt_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    script: list[list[EngineEvent] | BulkinferError] = [[READY], EngineDied("dead")] * 3
    engine = ScriptedEngine(*script, [READY], [], [completion("\0" * 16)])
    bench = Bench(engine)
    queue = queue_of("a")
    while names(engine.submitted) != "aaa" + "\0" * 16:
        start(bench, queue)
        bench.window.poll(0.0)
        clock.now_s += 1.0
    queue.append(request("b"))
    bench.window.feed(queue)
    assert names(engine.submitted[3:]) == "\0" * 16
    assert killer_names(bench.window.poll(0.0)) == ["a"]
    bench.window.feed(queue)
    assert names(engine.submitted[3:]) == "\0" * 16 + "b"


def test_documents_that_end_engines_and_come_while_it_proves_itself_are_set_aside_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    bench = Bench(DeadlyEngine("r0", "r1", is_slow=True))
    queue, later = numbered_queue(1), deque([request("r1"), request("r2")])
    returned: list[Returned] = []
    for _ in range(100):
        bench.window.feed(queue)
        returned += bench.window.poll(0.0)
        clock.now_s += bench.window.start_wait_s()
        if bench.window.num_held and bench.window.num_in_flight:  # the killer, and our own prompt
            queue.extend(later)
            later.clear()
    assert sorted(hashes(returned)) == hashes_of(3)
    assert sorted(killer_names(returned)) == ["r0", "r1"]


def test_what_an_engine_has_when_it_is_given_up_is_for_others_to_ask() -> None:
    bench = Bench(ScriptedEngine([READY]))
    start(bench, queue_of("abc"))
    bench.window.close()
    assert [(one.document_hash, one.attempt) for one in bench.window.surrender()] == [(b"a", 2), (b"b", 2), (b"c", 2)]
    assert (bench.window.num_in_flight, bench.window.surrender()) == (0, [])


def test_an_engine_that_refuses_a_prompt_of_ours_has_shown_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    refusal = Rejection(bytes(16), FailureCode.ENGINE_REJECTED, "no such mode", None)
    script: list[list[EngineEvent] | BulkinferError] = [[READY], EngineDied("dead")] * 3
    bench = Bench(ScriptedEngine(*script, [READY], [refusal]))
    with pytest.raises(EngineError, match="no such mode"):
        drive(bench, queue_of("a"), clock)


def test_a_killer_that_comes_last_is_believed_by_the_answers_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    bench = Bench(DeadlyEngine("r3"))
    assert marked(drive(bench, numbered_queue(3), clock)) == ""
    assert bench.ledger.num_answered == 3
    assert marked(drive(bench, deque([request("r3")]), clock)) == "r3"


def test_a_killer_is_released_only_once_something_else_was_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    script: list[list[EngineEvent] | BulkinferError] = [[READY], EngineDied("dead")] * 3
    engine = ScriptedEngine(*script, [READY], [], [completion("b")])
    bench = Bench(engine, max_concurrency=1)
    queue = queue_of("ab")
    for _ in range(3):  # both, both, a alone
        start(bench, queue)
        assert bench.window.poll(0.0) == []
        clock.now_s += 1.0
    start(bench, queue)
    assert names(engine.submitted) == "ab" + "ab" + "a" + "b"
    assert bench.window.poll(0.0) == []
    assert (bench.window.num_in_flight, bench.window.num_waiting) == (1, 1)
    assert [type(one.event) for one in bench.window.poll(0.0)] == [Completion, Rejection]
    assert (bench.window.num_in_flight, bench.window.num_waiting) == (0, 0)


def test_a_death_inside_of_submit_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    bench = Bench(DeadlyEngine(lives_to_fail=1, dies_in_submit=True), max_concurrency=2)
    queue = queue_of("abcde")
    start(bench, queue)
    assert (bench.window.num_in_flight, bench.window.num_waiting, bench.window.is_started) == (0, 4, False)
    assert bench.events[-1] == EngineRestarting("killed in submit", 4, 1.0)
    returned = drive(bench, queue, clock)
    assert [(one.flight.request.document_hash, one.flight.request.attempt) for one in returned] == [
        (b"a", 2),
        (b"b", 2),
        (b"c", 2),
        (b"d", 2),
        (b"e", 1),
    ]


def test_a_start_that_fails_after_a_first_ready_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    not_yet = EngineError("the memory is not free yet")
    engine = ScriptedEngine([READY], EngineDied("killed"), not_yet, not_yet, [READY])
    bench = Bench(engine)
    queue = queue_of("ab")
    start(bench, queue)
    for _ in range(3):
        assert bench.window.poll(0.0) == []
        clock.now_s += bench.window.start_wait_s()
        bench.window.feed(queue)
    assert [event.wait_s for event in bench.events if isinstance(event, EngineRestarting)] == [1.0, 2.0, 4.0]
    engine.submitted.clear()
    bench.window.poll(0.0)
    bench.window.feed(queue)
    assert names(engine.submitted) == "ab"
    assert bench.ledger.num_restarts == 3


class UnstartableEngine(ScriptedEngine):
    """Its second start raises: the system has no descriptors or memory for a process."""

    def start(self, workload: Workload = UNKNOWN_WORKLOAD) -> None:
        """Start, but not at the second call."""
        super().start(workload)
        if self.calls.count("start") == 2:
            raise EngineError("no descriptors left")


def test_a_start_that_raises_after_a_first_ready_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    bench = Bench(UnstartableEngine([READY], EngineDied("killed"), [READY], [completion("a")]))
    queue = queue_of("a")
    start(bench, queue)
    assert bench.window.poll(0.0) == []
    for _ in range(2):
        clock.now_s += bench.window.start_wait_s()
        bench.window.feed(queue)
    assert bench.window.poll(0.0) == []
    bench.window.feed(queue)
    assert answered(bench.window.poll(0.0)) == "a"


def test_an_empty_queue_is_not_the_end_while_more_may_come() -> None:
    bench = Bench(DeadlyEngine("a", "b"), max_restarts=20)
    bench.ledger.num_answered = 1
    queue = queue_of("ab")
    for _ in range(60):
        bench.window.feed(queue, may_grow=True)
        bench.window.poll(0.0)
        bench.window._may_start_s = 0.0
    assert (bench.window.num_waiting, bench.window.num_in_flight) == (2, 0)
    bench.window.feed(queue)
    bench.window.poll(0.0)
    bench.window.feed(queue)
    assert (bench.window.num_waiting, bench.window.num_in_flight) == (2, 1), "the prompt of our own"
    assert bench.window.num_documents == 0, "which is no document"


@pytest.mark.parametrize("is_raised_by_start", [False, True])
def test_what_loaded_once_is_no_fault_of_the_job_later(
    monkeypatch: pytest.MonkeyPatch, is_raised_by_start: bool
) -> None:
    """Room that there was at the first start may be short for a moment."""
    clock = Clock(monkeypatch)
    short = JobError("engine.vllm: no room for the KV cache")

    class Cramped(ScriptedEngine):
        def start(self, workload: Workload = UNKNOWN_WORKLOAD) -> None:
            super().start(workload)
            if is_raised_by_start and self.calls.count("start") == 2:
                raise short

    script: list[list[EngineEvent] | BulkinferError] = [[READY], EngineDied("killed")]
    script += [] if is_raised_by_start else [short]
    bench = Bench(Cramped(*script, [READY], [completion("a"), completion("b")]))
    assert answered(drive(bench, queue_of("ab"), clock)) == "ab"
    reasons = [event.reason for event in bench.events if isinstance(event, EngineRestarting)]
    assert reasons == ["killed", str(short)]


def test_starts_that_go_on_failing_after_a_first_ready_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    not_yet = EngineError("the memory is not free yet")
    bench = Bench(ScriptedEngine([READY], *[not_yet] * 9), max_restarts=3)
    queue = queue_of("ab")
    bench.window.feed(queue)
    bench.window.poll(0.0)
    bench.window.feed(queue)
    for _ in range(3):
        bench.window.poll(0.0)
        clock.now_s += 60.0
        bench.window.feed(queue)
    with pytest.raises(EngineError, match=r"4 times.*not free yet"):
        bench.window.poll(0.0)


def test_what_is_asked_again_goes_first_as_another_attempt() -> None:
    engine = ScriptedEngine([READY], [completion("a"), completion("b")])
    bench = Bench(engine, max_concurrency=1)
    queue = queue_of("abcd")
    start(bench, queue)
    first, second = bench.window.poll(0.0)
    bench.window.ask_again(first.flight.request)
    assert bench.window.num_waiting == 1
    bench.window.ask_again(replace(second.flight.request, attempt=2))
    bench.window.feed(queue)
    assert [(one.document_hash, one.attempt) for one in engine.submitted[2:]] == [(b"a", 2), (b"b", 3)]
    assert (bench.window.num_waiting, names(queue)) == (0, "cd")


@pytest.mark.parametrize("error", [EngineError("the engine did not start"), JobError("no such argument")])
def test_an_engine_that_does_not_start_is_not_started_again(error: EngineError | JobError) -> None:
    engine = ScriptedEngine(error)
    bench = Bench(engine)
    bench.window.feed(queue_of("a"))
    with pytest.raises(type(error)) as caught:
        bench.window.poll(0.0)
    assert caught.value is error
    assert bench.events == [EngineStarting("my-model", 0)]


def test_close_ends_the_engine() -> None:
    engine = ScriptedEngine([READY])
    bench = Bench(engine)
    start(bench, queue_of("a"))
    bench.window.close()
    assert engine.calls[-1] == "close"
    assert (bench.window.is_started, bench.window.is_ready) == (False, False)


def test_the_window_is_twice_what_the_engine_says_that_it_runs() -> None:
    bench = Bench(engine := ScriptedEngine([replace(READY, max_concurrency=3)]), max_concurrency=1)
    queue = queue_of("abcdefgh")
    start(bench, queue)
    assert names(engine.submitted) == "abcdef"
    assert bench.ledger.max_concurrency == 3


def test_an_engine_is_told_of_the_work_ahead() -> None:
    told: list[Workload] = []

    class Asking(ScriptedEngine):
        def start(self, workload: Workload = UNKNOWN_WORKLOAD) -> None:
            told.append(workload)

    bench = Bench(Asking([READY]))
    bench.ledger.outlook.tokens_per_s = 5.0
    start(bench, queue_of("a"))
    assert [workload.tokens_per_s for workload in told] == [5.0]
