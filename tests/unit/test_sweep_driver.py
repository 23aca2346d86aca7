"""Points on the simulated engine's virtual clock: they must come out as queueing theory says."""

from dataclasses import replace
from itertools import islice, pairwise
from statistics import mean
from typing import Any

import pytest

from bulkinfer.engines.base import Engine, EngineSpec
from bulkinfer.records import Aborted, EngineEvent, EngineStats
from bulkinfer.sweep.admission import Admission, Refusal, Waiting
from bulkinfer.sweep.clients import MAX_ATTEMPTS, PAUSE_S, ClosedClients, PoissonClients
from bulkinfer.sweep.driver import PointRun
from bulkinfer.sweep.options import Kind
from bulkinfer.sweep.point import PointSettings, Tally
from tests.sweep_support import SHORT_ONLY, Measured, make_load, make_waiting, measure, start_simulated


def mean_queue_s(measured: Measured) -> float:
    return mean(measured.tally.durations[Kind.SHORT].queue)


@pytest.mark.parametrize("utilisation", [0.3, 0.5, 0.7])
def test_one_server_with_random_arrivals_waits_as_pollaczek_and_khinchine_say(utilisation: float) -> None:
    """M/D/1: the mean wait is rho * S / (2 * (1 - rho))."""
    measured = measure(num_slots=1, seconds_per_token=1.0, output_tokens=1, duration_s=30_000, rate_per_s=utilisation)
    expected_s = utilisation / (2 * (1 - utilisation))
    assert mean_queue_s(measured) == pytest.approx(expected_s, rel=0.06)
    assert measured.point.requests_per_s == pytest.approx(utilisation, rel=0.03)
    assert not measured.point.is_overloaded


def test_a_loss_system_refuses_as_erlang_says() -> None:
    """Three servers, no queue, two requests offered in a service time: Erlang B is 4/19, whatever the service time."""
    measured = measure(
        num_slots=3,
        seconds_per_token=0.01,
        output_tokens=100,
        duration_s=4_000,
        rate_per_s=2.0,
        queue_size=0,
        is_rejecting=True,
    )
    point = measured.point
    # What was told to come back does: all who ask count.
    share = point.num_refused / (point.num_arrived + point.num_retries)
    num_asked_per_s = (point.num_arrived + point.num_retries) / point.measured_s
    offered = num_asked_per_s * 1.025  # a service of 1 s begins at the next step, half of 50 ms later
    blocked = (offered**3 / 6) / (1 + offered + offered**2 / 2 + offered**3 / 6)
    assert share == pytest.approx(blocked, abs=0.03)
    assert point.num_completed == pytest.approx(point.num_arrived + point.num_retries - point.num_refused, abs=4)


@pytest.mark.parametrize(("num_slots", "num_users"), [(1, 1), (4, 4), (4, 10)])
def test_a_closed_loop_obeys_littles_law(num_slots: int, num_users: int) -> None:
    measured = measure(
        num_slots=num_slots, seconds_per_token=0.1, output_tokens=10, duration_s=2_000, num_users=num_users
    )
    point = measured.point
    total_s = mean(measured.tally.durations[Kind.SHORT].total)
    assert point.requests_per_s * total_s == pytest.approx(num_users, rel=0.01)
    assert point.requests_per_s == pytest.approx(num_slots, rel=0.01)


def test_two_servers_never_hold_more_than_two() -> None:
    point = measure(
        num_slots=2,
        seconds_per_token=0.1,
        output_tokens=10,
        duration_s=500,
        rate_per_s=5.0,
        queue_size=3,
        is_rejecting=True,
    ).point
    assert point.max_queued <= 3
    assert point.mean_active == pytest.approx(2, abs=0.1)


def test_refusals_are_counted_exactly() -> None:
    """Ten users, one server, a queue of two: three are in at any time, and what is refused is what was not taken."""
    point = measure(
        num_slots=1,
        seconds_per_token=0.1,
        output_tokens=10,
        duration_s=500.55,
        num_users=10,
        queue_size=2,
        is_rejecting=True,
    ).point
    num_asked = point.num_arrived + point.num_retries
    assert dict(point.refused) == {"queue_full": point.num_refused}
    assert num_asked == point.num_refused + point.num_completed + point.num_unanswered
    assert point.num_unanswered == 3
    assert point.requests_per_s == pytest.approx(1.0, rel=0.01)


def test_who_is_told_to_come_back_mostly_finds_a_place() -> None:
    """Arrivals at random, at half of what can be served: a queue of one is full now and then, and soon has room."""
    point = measure(
        num_slots=1,
        seconds_per_token=0.1,
        output_tokens=10,
        duration_s=5_000,
        rate_per_s=0.5,
        queue_size=1,
        is_rejecting=True,
    ).point
    assert point.num_with_retry_after > 0.9 * point.num_refused > 100
    assert point.num_retries == pytest.approx(point.num_with_retry_after, rel=0.05)
    assert point.num_retries_taken / point.num_retries > 0.6
    assert not point.is_overloaded


def test_nobody_is_told_to_come_back_where_it_would_not_help() -> None:
    """Seven users for one server and a queue of four: who has an answer takes the place that became free."""
    point = measure(
        num_slots=1,
        seconds_per_token=1.0,
        output_tokens=1,
        duration_s=1_000,
        num_users=7,
        queue_size=4,
        is_rejecting=True,
    ).point
    assert point.num_refused > 500
    assert point.num_with_retry_after == 0


def test_a_rate_that_can_never_be_served_ends_and_is_told() -> None:
    point = measure(
        num_slots=1, seconds_per_token=1.0, output_tokens=1, duration_s=300, rate_per_s=3.0, queue_size=5
    ).point
    assert point.is_overloaded
    assert point.is_complete
    assert point.max_queued == 5
    assert point.num_unanswered == pytest.approx(600, rel=0.15)


def test_what_the_engine_refuses_is_no_overload() -> None:
    """Half of the prompts are longer than the context, and the engine is always full."""
    point = measure(
        num_slots=1,
        seconds_per_token=1.0,
        output_tokens=1,
        duration_s=2_000,
        rate_per_s=1.9,
        mix={Kind.SHORT: 0.5, Kind.LONG: 0.5},
        load=make_load(long_chars=20_000, max_tokens=1),
        queue_size=1_000,
    ).point
    assert point.refused["prompt_too_long"] > 1_000
    assert point.mean_active > 0.9
    assert not point.is_overloaded


@pytest.mark.parametrize(("arrived", "backlog", "is_too_much"), [(30, 6, True), (30, 5, False), (1000, 100, False)])
def test_a_small_share_of_the_load_can_be_too_much_on_its_own(arrived: int, backlog: int, *, is_too_much: bool) -> None:
    tally = Tally(0.0)
    tally.demand[0].arrived = 970
    tally.demand[1].arrived = arrived
    tally.used_s = 100.0
    point = tally.finish(PointSettings(1, 10.0, None, 8), 100.0, is_complete=True, waiting=(0, backlog), num_running=0)
    assert point.is_overloaded is is_too_much
    assert point.num_arrived == 970 + arrived


@pytest.mark.parametrize(("rate_per_s", "is_overloaded"), [(4.0, True), (1.5, False)])
def test_low_priority_can_be_too_much_for_what_the_reserve_leaves(rate_per_s: float, *, is_overloaded: bool) -> None:
    """Two of four sequences are for low priority, which serve two requests a second; nothing else comes."""
    low = replace(make_load(max_tokens=10), low=frozenset({Kind.SHORT}))
    point = measure(
        num_slots=4,
        seconds_per_token=0.1,
        output_tokens=10,
        duration_s=500,
        rate_per_s=rate_per_s,
        load=low,
        reserve=0.5,
    ).point
    assert point.mean_active < 2.1
    assert point.is_overloaded is is_overloaded


def test_a_line_without_end_ends_the_point() -> None:
    point = measure(
        num_slots=1, seconds_per_token=1.0, output_tokens=1, duration_s=10_000, rate_per_s=1000.0, queue_size=5
    ).point
    assert point.is_overloaded
    assert not point.is_complete
    assert point.measured_s < 20


def test_users_of_an_open_load_are_held_to_their_limit() -> None:
    point = measure(
        num_slots=1,
        seconds_per_token=1.0,
        output_tokens=1,
        duration_s=200,
        rate_per_s=5.0,
        num_users=2,
        per_user=3,
    ).point
    assert set(point.refused) == {"user_limit"}
    assert point.max_queued + point.max_outside <= 6


def test_cancelled_requests_free_their_sequences_and_blocks() -> None:
    measured = measure(
        num_slots=4,
        seconds_per_token=0.1,
        output_tokens=20,
        duration_s=300,
        num_users=8,
        cancel_share=0.3,
        queue_size=32,
    )
    point = measured.point
    assert point.num_cancelled_running > 20
    assert point.num_cancelled_waiting > 20
    assert point.num_late_cancels > 0
    # What the engine dropped: those of the point, and what was still open at its end.
    assert point.engine_aborted == point.num_cancelled_running + 4
    for shown in point.cancellations:
        assert shown.after.num_active == shown.before.num_active - shown.num_requests
        assert shown.after.num_free_kv_blocks > shown.before.num_free_kv_blocks
    assert point.at_rest is not None
    assert point.at_rest.num_active == 0
    assert point.at_rest.num_free_kv_blocks == point.at_rest.num_kv_blocks > 0
    # All four slots work on: nobody waits for an answer that does not come.
    assert point.mean_active == pytest.approx(4, abs=0.1)


def test_without_cancels_nothing_is_aborted_but_what_is_open_at_the_end() -> None:
    point = measure(num_slots=2, seconds_per_token=0.1, output_tokens=10, duration_s=50.55).point
    assert (point.num_cancelled, point.num_late_cancels, point.engine_aborted) == (0, 0, 2)


def test_what_the_engine_refuses_has_its_reason_and_does_not_come_again() -> None:
    load = make_load(short_chars=4, long_chars=4_000, max_tokens=4)
    point = measure(
        num_slots=2,
        seconds_per_token=0.1,
        output_tokens=4,
        duration_s=100,
        mix={Kind.SHORT: 0.5, Kind.LONG: 0.5},
        load=load,
        max_context_tokens=100,
    ).point
    assert set(point.refused) == {"prompt_too_long"}
    assert point.num_with_retry_after == 0
    assert point.num_retries == 0
    assert point.completed_by_kind == {"short": point.num_completed}


def test_a_sweep_that_is_stopped_keeps_what_it_has() -> None:
    asked = 0

    def is_stopped() -> bool:
        nonlocal asked
        asked += 1
        return asked > 50

    point = measure(num_slots=1, seconds_per_token=1.0, output_tokens=1, duration_s=1e6, is_stopped=is_stopped).point
    assert not point.is_complete
    assert 0 < point.num_completed < 100


def test_the_warm_up_counts_for_nothing() -> None:
    cold = measure(num_slots=1, seconds_per_token=1.0, output_tokens=1, duration_s=100, warmup_s=100)
    assert cold.point.num_completed == pytest.approx(100, abs=1)
    assert cold.point.measured_s == pytest.approx(100)


def test_a_long_prompt_takes_longer_only_for_its_own_kind() -> None:
    measured = measure(
        num_slots=1,
        seconds_per_token=1.0,
        output_tokens=1,
        duration_s=100,
        mix={Kind.SHORT: 0.5, Kind.LONG: 0.5},
    )
    assert set(measured.point.latency_by_kind) == {"short", "long"}
    assert sum(measured.point.completed_by_kind.values()) == measured.point.num_completed


def requests_of_one_user() -> ClosedClients:
    return ClosedClients(make_load().iter_requests(SHORT_ONLY, 0.0, 1, 0, 0), 1, 0.0)


def test_a_refused_user_comes_back_exactly_when_told() -> None:
    clients = requests_of_one_user()
    [waiting] = clients.take_due(0.0, 9)
    assert clients.note_refusal(waiting, Refusal("queue_full", 2.5), 1.0)
    assert clients.next_at_s() == 3.5
    assert clients.take_due(3.4, 9) == []
    [again] = clients.take_due(3.5, 9)
    assert (again.load, again.attempt, again.arrived_at_s) == (waiting.load, 2, 3.5)


def test_a_user_who_is_refused_for_good_goes_on_after_a_pause() -> None:
    clients = requests_of_one_user()
    [waiting] = clients.take_due(0.0, 9)
    assert not clients.note_refusal(waiting, Refusal("prompt_too_long", None), 1.0)
    assert clients.next_at_s() == 1.0 + PAUSE_S
    [other] = clients.take_due(1.0 + PAUSE_S, 9)
    assert other.load.number != waiting.load.number


def test_nobody_comes_back_for_ever() -> None:
    clients = PoissonClients(make_load().iter_requests(SHORT_ONLY, 0.0, 1, 0, 0), 0.001, 0, 0.0)
    waiting: Waiting = make_waiting("a")
    for attempt in range(1, MAX_ATTEMPTS):
        assert clients.note_refusal(waiting, Refusal("queue_full", 0.1), 0.0)
        [waiting] = clients.take_due(0.1, 9)
        assert waiting.attempt == attempt + 1
    assert not clients.note_refusal(waiting, Refusal("queue_full", 0.1), 0.0)


def test_random_arrivals_have_their_rate_and_come_in_order() -> None:
    clients = PoissonClients(make_load().iter_requests(SHORT_ONLY, 0.0, 1, 0, 0), 10.0, 3, 0.0)
    times = [one.arrived_at_s for one in islice(clients.take_due(1_000.0, 100_000), 100_000)]
    assert len(times) == pytest.approx(10_000, rel=0.05)
    assert times == sorted(times)
    gaps = [after - before for before, after in pairwise(times)]
    assert mean(gap**2 for gap in gaps) / mean(gaps) ** 2 == pytest.approx(2, rel=0.1)  # of an exponential draw


def read(num_waiting: int, num_free: int) -> EngineStats:
    return EngineStats(0, num_waiting, 0.0, 0, 0, 0, 0, num_kv_blocks=9, num_free_kv_blocks=num_free)


class SlowToRest:
    """Acknowledges an earlier drop first, then what is asked in the end, and frees the blocks last."""

    def __init__(self, dropped: tuple[bytes, ...], later: tuple[bytes, ...]) -> None:
        self._events: list[list[EngineEvent]] = [
            [Aborted(dropped), read(0, 9)],
            [Aborted(later), read(1, 9)],
            [read(0, 5)],
            [],
            [read(0, 9)],
        ]
        self.num_aborts = 0

    def now(self) -> float:
        return 0.0

    def abort(self, _: Any) -> None:  # noqa: ANN401 - hashes
        self.num_aborts += 1

    def poll(self, _: float) -> list[EngineEvent]:
        return self._events.pop(0)


def test_a_point_is_over_when_all_that_it_sent_is_gone() -> None:
    engine: Any = SlowToRest((b"a",), (b"b",))
    admission = Admission(1, 2, per_user=None, is_rejecting=False, now_s=0.0)
    clients = ClosedClients(iter(()), 1, 0.0)
    run = PointRun(engine, PointSettings(2, None, 1, 1), admission, clients, warmup_s=0, duration_s=1)
    flight: Any = None
    run._flights.update({b"a": flight, b"b": flight})
    assert run._come_to_rest() == read(0, 9)
    assert engine._events == []
    assert engine.num_aborts == 2


class Preempting:
    """Counts ten more preemptions at each reading of the engine that it wraps."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.readings: list[tuple[float, int]] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the engine has it
        return getattr(self._engine, name)

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        return [self._count(event) for event in self._engine.poll(timeout_s)]

    def _count(self, event: EngineEvent) -> EngineEvent:
        if not isinstance(event, EngineStats):
            return event
        num = 10 * len(self.readings) + 10
        self.readings.append((self._engine.now(), num))
        return replace(event, num_preemptions=num)


def test_preemptions_count_from_the_last_reading_of_the_warm_up_to_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    engines: list[Preempting] = []

    def start(spec: EngineSpec) -> Any:  # noqa: ANN401 - looks like an engine
        engines.append(Preempting(start_simulated(spec)))
        return engines[0]

    monkeypatch.setattr("tests.sweep_support.start_simulated", start)
    point = measure(num_slots=2, seconds_per_token=0.1, output_tokens=4, duration_s=5, warmup_s=5).point
    [engine] = engines
    before = max(num for at_s, num in engine.readings if at_s < 5)
    assert before > 10
    assert point.num_preemptions == engine.readings[-1][1] - before > 10 * len(point.readings)
