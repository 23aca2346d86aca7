"""Several engines: which are started, who gets how much, and what the death of one does to the others."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkinfer.engines import EngineGroup
from bulkinfer.engines.base import Engine
from bulkinfer.engines.bell import RealBell
from bulkinfer.errors import BulkinferError, EngineDied, EngineError, JobError
from bulkinfer.events import EngineGivenUp, EngineRestarting, EngineStarting, Event, Warned
from bulkinfer.records import Completion, EngineEvent, FailureCode, Rejection
from bulkinfer.runner.fleet import Fleet
from bulkinfer.runner.ledger import Ledger
from bulkinfer.runner.window import Returned
from tests.unit.test_runner_window import READY, Clock, DeadlyEngine, ScriptedEngine, completion, hashes_of, request


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still until it is moved."""
    return Clock(monkeypatch)


class Ships:
    """A fleet over engines that always have something to poll, with everything that it tells."""

    def __init__(self, *engines: Engine, max_concurrency: int = 2, max_restarts: int = 3) -> None:
        self.ledger = Ledger(0, max_concurrency, len(engines))
        self.events: list[Event] = []
        self.bell = RealBell(len(engines))
        self.fleet = Fleet(
            EngineGroup(tuple(engines), self.bell),
            "my-model",
            max_concurrency=max_concurrency,
            max_restarts=max_restarts,
            ledger=self.ledger,
            emit=self.events.append,
        )
        self.num_engines = len(engines)

    def add(self, count: int, group: int | None = None) -> None:
        """Put requests r0, r1, ... into the queue."""
        for number in range(count):
            self.fleet.queue.append(replace(request(f"r{number}"), prefix_group=group))

    def turn(self) -> list[Returned]:
        """Feed and poll once, as the loop does."""
        self.fleet.feed(may_grow=False)
        for replica in range(self.num_engines):
            self.bell.ring(replica)
        return self.fleet.poll(0.0)

    def drive(self, clock: Clock) -> list[Returned]:
        """Until nothing is left; what came back, in order."""
        returned = []
        for _ in range(10_000):
            returned += self.turn()
            clock.now_s += self.fleet.start_wait_s()
            if self.fleet.num_in_flight == self.fleet.num_waiting == 0:
                return returned
        raise AssertionError("it does not end")

    def started(self) -> list[int | None]:
        """The engines that were started, in order."""
        return [event.replica for event in self.events if isinstance(event, EngineStarting)]


def outcomes(returned: list[Returned]) -> dict[str, list[bytes]]:
    """What was answered and what was refused, sorted."""
    found: dict[str, list[bytes]] = {"answered": [], "refused": []}
    for one in returned:
        name = "answered" if isinstance(one.event, Completion) else "refused"
        found[name].append(one.event.document_hash)
    return {name: sorted(hashes) for name, hashes in found.items()}


class Broken(DeadlyEngine):
    """An engine that ends with whatever it is given."""

    def __init__(self, *, is_slow: bool = False) -> None:
        super().__init__(lives_to_fail=1_000, is_slow=is_slow)


NO_MEMORY = EngineError("the engine did not start: no memory")


class Unloadable(ScriptedEngine):
    """An engine that does not start."""

    def __init__(self, error: BulkinferError = NO_MEMORY) -> None:
        super().__init__()
        self.error = error

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        """Say so."""
        raise self.error


@pytest.mark.parametrize(("num_requests", "expected"), [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3), (100, 3)])
def test_no_more_engines_are_started_than_the_known_work_has_use_for(num_requests: int, expected: int) -> None:
    ships = Ships(DeadlyEngine(), DeadlyEngine(), DeadlyEngine(), max_concurrency=4)
    ships.add(num_requests)
    for _ in range(3):
        ships.turn()
    assert ships.started() == list(range(expected))


def test_requests_behind_the_queue_are_known_work_too() -> None:
    ships = Ships(DeadlyEngine(), DeadlyEngine(), max_concurrency=4)
    ships.add(1)
    ships.fleet.feed(may_grow=False, num_behind=4)
    assert ships.started() == [0, 1]


def test_nothing_to_do_starts_nothing() -> None:
    ships = Ships(DeadlyEngine(), DeadlyEngine())
    assert (ships.turn(), ships.started(), ships.fleet.is_busy) == ([], [], False)


def test_the_last_requests_are_spread_over_the_engines_that_are_ready() -> None:
    engines = [DeadlyEngine(num_slots=0) for _ in range(3)]
    ships = Ships(*engines, max_concurrency=8)
    ships.add(18)
    for _ in range(2):
        ships.turn()
    assert [engine.peak_in_flight for engine in engines] == [6, 6, 6]


@pytest.mark.parametrize(("num_requests", "expected"), [(9, 8), (16, 8), (17, 9), (30, 15), (32, 16), (33, 16)])
def test_an_engine_that_is_ready_first_fills_its_slots_and_leaves_others_their_share(
    num_requests: int, expected: int
) -> None:
    first, second = DeadlyEngine(num_slots=0), ScriptedEngine([], [], [])
    ships = Ships(first, second, max_concurrency=8)
    ships.add(num_requests)
    for _ in range(2):
        ships.turn()
    assert first.peak_in_flight == expected


def test_an_engine_that_waits_for_its_restart_is_left_no_share(clock: Clock) -> None:
    first, second = DeadlyEngine(num_slots=0), ScriptedEngine([READY], EngineDied("killed"))
    ships = Ships(first, second, max_concurrency=8)
    ships.add(30)
    for _ in range(2):
        ships.turn()
    ships.fleet.feed(may_grow=False)
    assert first.peak_in_flight == 16


@pytest.mark.parametrize(("sequences", "expected"), [(2, [0, 1, 2]), (4, [0, 1]), (7, [0]), (None, [0])])
def test_how_many_engines_are_started_follows_what_the_first_says_that_it_runs(
    sequences: int | None, expected: list[int]
) -> None:
    """Before that it is a guess, 10 here."""
    engines = [ScriptedEngine([replace(READY, max_concurrency=sequences)]) for _ in range(3)]
    ships = Ships(*engines, max_concurrency=10)
    ships.add(7)
    assert (ships.turn(), ships.started()) == ([], [0])
    for _ in range(3):
        ships.turn()
    assert ships.started() == expected


def test_all_requests_come_back_once_and_from_several_engines(clock: Clock) -> None:
    ships = Ships(*(DeadlyEngine(num_slots=2) for _ in range(4)))
    ships.add(200)
    returned = ships.drive(clock)
    assert outcomes(returned) == {"answered": sorted(hashes_of(200)), "refused": []}
    assert Counter(one.replica for one in returned) == {0: 50, 1: 50, 2: 50, 3: 50}


def test_a_group_stays_on_one_engine_while_there_is_other_work(clock: Clock) -> None:
    ships = Ships(*(DeadlyEngine(num_slots=2) for _ in range(3)))
    for group in range(6):
        for number in range(12):
            ships.fleet.queue.append(replace(request(f"g{group}n{number}"), prefix_group=group))
    owners: dict[bytes, set[int]] = {}
    for one in ships.drive(clock):
        owners.setdefault(one.event.document_hash[:2], set()).add(one.replica)
    assert sum(len(found) == 1 for found in owners.values()) >= 4, "only the last groups are shared"


def test_a_death_is_of_one_engine_and_others_take_over_what_it_had(clock: Clock) -> None:
    ships = Ships(ScriptedEngine([READY], EngineDied("killed")), DeadlyEngine(num_slots=2))
    ships.add(8)
    returned = []
    for _ in range(8):
        returned += ships.turn()
    assert outcomes(returned) == {"answered": sorted(hashes_of(8)), "refused": []}
    [event] = [event for event in ships.events if isinstance(event, EngineRestarting)]
    assert (event.replica, event.num_in_flight) == (0, 4)
    assert ships.started() == [0, 1], "the other one was quicker than the restart"
    assert {one.flight.request.attempt for one in returned} == {1, 2}


@pytest.mark.parametrize("num_engines", [2, 3, 8])
def test_a_document_that_ends_engines_ends_two_and_is_found_by_the_second(clock: Clock, num_engines: int) -> None:
    engines = [DeadlyEngine("r33", num_slots=2) for _ in range(num_engines)]
    ships = Ships(*engines, max_concurrency=4)
    ships.add(300)
    returned = ships.drive(clock)
    expected = sorted(set(hashes_of(300)) - {b"r33"})
    assert outcomes(returned) == {"answered": expected, "refused": [b"r33"]}
    died = {event.replica for event in ships.events if isinstance(event, EngineRestarting)}
    assert len(died) <= 2
    assert sum(engine.num_deaths for engine in engines) <= 2 + 4
    assert not any(isinstance(event, Warned) for event in ships.events)


@pytest.mark.parametrize("num_killers", [2, 20, 60])
def test_many_such_documents_cost_no_engine(clock: Clock, num_killers: int) -> None:
    killers = [f"r{number}" for number in range(0, 2 * num_killers, 2)]
    ships = Ships(*(DeadlyEngine(*killers, num_slots=2) for _ in range(3)), max_concurrency=4)
    ships.add(120)
    found = outcomes(ships.drive(clock))
    assert found["refused"] == sorted(killer.encode() for killer in killers)
    assert len(found["answered"]) == 120 - num_killers
    assert not any(isinstance(event, Warned) for event in ships.events)


def test_nothing_but_such_documents_cost_no_engine(clock: Clock) -> None:
    killers = [f"r{number}" for number in range(40)]
    ships = Ships(*(DeadlyEngine(*killers) for _ in range(3)), max_concurrency=4)
    ships.add(40)
    assert outcomes(ships.drive(clock)) == {"answered": [], "refused": sorted(hashes_of(40))}


def test_a_broken_engine_is_given_up_and_no_document_is_blamed(clock: Clock) -> None:
    ships = Ships(Broken(), DeadlyEngine(num_slots=1), max_concurrency=2)
    ships.add(400)
    assert outcomes(ships.drive(clock)) == {"answered": sorted(hashes_of(400)), "refused": []}
    [warning] = [event for event in ships.events if isinstance(event, Warned)]
    assert warning.message.startswith("engine 0 is given up, 1 of 2 engines are left: the engine died ")
    assert [event.replica for event in ships.events if isinstance(event, EngineGivenUp)] == [0]
    assert [counts.is_retired for counts in ships.ledger.replicas] == [True, False]


@pytest.mark.parametrize("group", [None, 0])
def test_an_engine_that_takes_its_time_to_die_of_our_own_prompt_loses_nothing(clock: Clock, group: int | None) -> None:
    """The fleet is fed while the prompt is in flight."""
    ships = Ships(Broken(is_slow=True), DeadlyEngine(num_slots=1), max_concurrency=2)
    ships.add(400, group)
    assert outcomes(ships.drive(clock)) == {"answered": sorted(hashes_of(400)), "refused": []}
    assert len([event for event in ships.events if isinstance(event, Warned)]) == 1


def test_an_engine_that_refuses_our_own_prompt_late_loses_nothing(clock: Clock) -> None:
    refusal = Rejection(bytes(16), FailureCode.ENGINE_REJECTED, "no such mode")
    script: list[list[EngineEvent] | BulkinferError] = [[READY], EngineDied("dead")] * 4
    ships = Ships(ScriptedEngine(*script, [READY], [], [refusal]), DeadlyEngine(num_slots=1), max_concurrency=2)
    ships.add(400)
    assert outcomes(ships.drive(clock)) == {"answered": sorted(hashes_of(400)), "refused": []}
    [warning] = [event.message for event in ships.events if isinstance(event, Warned)]
    assert warning.endswith("refused a prompt of bulkinfer's own: no such mode")


def test_an_engine_that_does_not_load_is_given_up_and_the_others_go_on(clock: Clock) -> None:
    ships = Ships(Unloadable(), DeadlyEngine(num_slots=2))
    ships.add(20)
    assert len(ships.drive(clock)) == 20
    assert [event.message for event in ships.events if isinstance(event, Warned)] == [
        "engine 0 is given up, 1 of 2 engines are left: the engine did not start: no memory"
    ]


def test_an_engine_that_finds_no_room_is_given_up_and_no_outcome_of_others_is_lost(clock: Clock) -> None:
    class Late(ScriptedEngine):
        """Does not start in the poll in which the other engine answers."""

        def poll(self, timeout_s: float) -> list[EngineEvent]:
            if (events := super().poll(timeout_s)) == [READY]:
                raise JobError("no room for the KV cache")
            return events

    ships = Ships(DeadlyEngine(num_slots=1), Late([], [READY]), max_concurrency=2)
    ships.add(20)
    assert outcomes(ships.drive(clock)) == {"answered": sorted(hashes_of(20)), "refused": []}
    [warning] = [event.message for event in ships.events if isinstance(event, Warned)]
    assert warning == "engine 1 is given up, 1 of 2 engines are left: no room for the KV cache"


def test_a_job_that_no_engine_can_start_with_is_at_fault(clock: Clock) -> None:
    ships = Ships(Unloadable(JobError("no such model")), Unloadable(JobError("no such model")))
    ships.add(20)
    with pytest.raises(JobError, match="no such model"):
        ships.drive(clock)


def test_a_job_that_one_engine_has_started_with_is_not_at_fault(clock: Clock) -> None:
    ships = Ships(Broken(), Unloadable(JobError("no room for the KV cache")), max_concurrency=100)
    ships.add(20)
    with pytest.raises(EngineError, match="no room"):
        ships.drive(clock)


def test_the_last_engines_error_is_the_runs() -> None:
    ships = Ships(Unloadable(), Unloadable())
    ships.add(20)
    with pytest.raises(EngineError, match="no memory"):
        ships.turn()
    assert len([event for event in ships.events if isinstance(event, Warned)]) == 1


def test_all_engines_broken_end_the_run_and_blame_nobody(clock: Clock) -> None:
    ships = Ships(Broken(), Broken(), Broken())
    ships.add(20)
    with pytest.raises(EngineError, match=r"with nothing but a prompt of bulkinfer's own.*; run again to resume$"):
        ships.drive(clock)
    warnings = [event.message for event in ships.events if isinstance(event, Warned)]
    assert len(warnings) == 2
    assert not any("resume" in warning for warning in warnings)
    assert ships.ledger.num_answered == 0


def test_what_failed_for_a_passing_reason_goes_first(clock: Clock) -> None:
    engines = DeadlyEngine(num_slots=1), DeadlyEngine(num_slots=1)
    ships = Ships(*engines, max_concurrency=1)
    ships.add(50)
    while not (returned := ships.turn()):
        pass
    ships.fleet.ask_again(returned[0].flight.request)
    for _ in range(4):
        ships.turn()
    submitted = "".join(group for engine in engines for group in engine.groups)
    assert submitted.count(returned[0].event.document_hash.decode()) >= 2


def test_one_engine_raises_its_own_error_and_is_not_given_up() -> None:
    ships = Ships(Unloadable())
    ships.add(3)
    with pytest.raises(EngineError, match="no memory"):
        ships.turn()
    assert not any(isinstance(event, Warned) for event in ships.events)


def test_closing_closes_all_engines() -> None:
    engines = [ScriptedEngine([READY]) for _ in range(3)]
    ships = Ships(*engines, max_concurrency=1)
    ships.add(9)
    ships.turn()
    ships.fleet.close()
    assert all("close" in engine.calls for engine in engines)
    assert not ships.fleet.is_busy


def test_answers_are_counted_for_their_engine(clock: Clock) -> None:
    ships = Ships(ScriptedEngine([READY], [completion("r0")]), DeadlyEngine(num_slots=0), max_concurrency=1)
    ships.add(4)
    for _ in range(2):
        returned = ships.turn()
    [one] = returned
    assert not isinstance(one.event, Rejection)
    ships.ledger.note_completion(one.flight.request, one.event, one.replica)
    assert [counts.num_documents for counts in ships.ledger.replicas] == [1, 0]


def test_an_engine_that_dies_often_is_asked_a_prompt_of_ours_before_it_is_given_up(clock: Clock) -> None:
    """Others answer what it had each time, so none of it is suspected; and then it is well again."""
    weak, strong = DeadlyEngine(lives_to_fail=4), DeadlyEngine(num_slots=8)
    ships = Ships(weak, strong, max_concurrency=4, max_restarts=3)
    ships.add(400)
    assert outcomes(ships.drive(clock)) == {"answered": sorted(hashes_of(400)), "refused": []}
    assert weak.num_deaths == 4
    assert not any(isinstance(event, Warned) for event in ships.events)


def test_the_group_of_an_engine_that_is_given_up_keeps_its_place(clock: Clock) -> None:
    ships = Ships(Broken(), DeadlyEngine(num_slots=1), max_concurrency=2)
    for number in range(40):
        ships.fleet.queue.append(replace(request(f"g{number}"), prefix_group=0))
    for number in range(400):
        ships.fleet.queue.append(request(f"r{number}"))
    answered = [one.event.document_hash for one in ships.drive(clock)]
    assert len(answered) == 440
    last_of_group = max(position for position, name in enumerate(answered) if name.startswith(b"g"))
    assert last_of_group < 200


def test_an_engine_that_may_start_now_is_preferred_to_one_that_must_wait(clock: Clock) -> None:
    ships = Ships(ScriptedEngine([READY], EngineDied("killed")), DeadlyEngine(), max_concurrency=4)
    ships.add(3)
    for _ in range(2):
        ships.turn()
    assert ships.started() == [0]
    ships.turn()
    assert ships.started() == [0, 1]


@given(
    st.lists(st.booleans(), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(1, 4),
    st.lists(st.none() | st.integers(0, 3), max_size=60),
    st.sets(st.integers(0, 59), max_size=8),
    st.booleans(),
)
def test_whatever_is_broken_each_request_has_its_outcome_and_nobody_else_is_blamed(
    are_broken: list[bool],
    num_slots: int,
    max_concurrency: int,
    groups: list[int | None],
    bad: set[int],
    is_slow: bool,
) -> None:
    """One engine is well; others may be broken, and some requests end engines. Requests of a group stand together."""
    killers = {number for number in bad if number < len(groups)}
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        names = [f"r{number}" for number in killers]
        engines = [
            Broken(is_slow=is_slow) if broken else DeadlyEngine(*names, num_slots=num_slots, is_slow=is_slow)
            for broken in (*are_broken, False)
        ]
        ships = Ships(*engines, max_concurrency=max_concurrency)
        for number, group in enumerate(sorted(groups, key=lambda group: -1 if group is None else group)):
            ships.fleet.queue.append(replace(request(f"r{number}"), prefix_group=group))
        found = outcomes(ships.drive(clock))
    assert found["refused"] == sorted(name.encode() for name in names)
    assert found["answered"] == sorted(set(hashes_of(len(groups))) - set(found["refused"]))
    given_up = [event for event in ships.events if isinstance(event, Warned)]
    assert len(given_up) <= sum(are_broken)
