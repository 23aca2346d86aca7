"""Waiting for several engines: real ones ring from other threads, simulated ones by their clocks."""

import threading
import time

import pytest

from bulkinfer.engines import EngineGroup, create_engines
from bulkinfer.engines.bell import RealBell, Ringer, VirtualBell
from bulkinfer.engines.clock import VirtualClock
from bulkinfer.records import Completion, EngineReady, Message, Origin, Request
from tests.engine_support import simulated_spec


def real_bell() -> RealBell:
    """A bell that has just looked at all engines."""
    bell = RealBell(4)
    assert list(bell.wait(0.0)) == [0, 1, 2, 3], "the first look is at all"
    return bell


def test_who_rang_is_named_once() -> None:
    bell = real_bell()
    for replica in (3, 1, 3):
        Ringer(bell, replica).ring()
    assert list(bell.wait(0.0)) == [1, 3]
    assert list(bell.wait(0.0)) == []


def test_a_ring_from_another_thread_ends_the_wait() -> None:
    bell = real_bell()
    threading.Thread(target=bell.ring, args=(2,)).start()
    assert 2 in bell.wait(60.0)


def test_all_are_named_once_a_second_since_one_that_hangs_never_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    bell = real_bell()
    now_s += 0.75
    assert list(bell.wait(0.0)) == []
    now_s += 0.25
    assert list(bell.wait(0.0)) == [0, 1, 2, 3]
    assert bell.now() == now_s


def test_the_earliest_virtual_clocks_go_first() -> None:
    clocks = [VirtualClock() for _ in range(4)]
    bell = VirtualBell(clocks)
    for replica, now_s in enumerate((5.0, 1.0, 1.04, 1.2)):
        clocks[replica].sleep(now_s)
        bell.ring(replica)
    assert list(bell.wait(0.0)) == [1, 2]
    assert bell.now() == 1.0
    clocks[1].sleep(10.0)
    bell.ring(1)
    bell.ring(1)
    assert [list(bell.wait(0.0)) for _ in range(4)] == [[3], [0], [1], []]
    assert bell.now() == 11.0


def test_an_engine_that_was_idle_begins_when_its_work_came() -> None:
    spec = simulated_spec(clock="virtual", seconds_per_output_token=1.0, output_tokens=8)
    group = create_engines(spec, 2, start_timeout_s=1, silence_timeout_s=1, log_path_of=lambda _: None)
    first, second = group.engines
    one = ask(group, 0)
    assert (one.total_s, first.now()) == (8.0, 8.0)
    came_at_s = group.bell.now()
    assert came_at_s >= 7.0, "where the first one stands, when its last step began"
    assert ask(group, 1).total_s == 8.0
    assert second.now() == came_at_s + 8.0


def ask(group: EngineGroup, replica: int) -> Completion:
    """Start one of the engines and have it answer one request."""
    engine = group.engines[replica]
    engine.start()
    while True:
        for due in group.bell.wait(0.0):
            for event in group.engines[due].poll(group.bell.poll_s):
                match event:
                    case EngineReady():
                        engine.submit([Request(bytes(16), Origin("a", 1, "a"), (Message("user", "x"),), 1)])
                    case Completion():
                        return event
