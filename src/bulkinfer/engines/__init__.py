"""Engines: vLLM in a supervised child process, and a simulated one. `base` is the port that both fit."""

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bulkinfer.engines.base import Engine, EngineSpec
from bulkinfer.engines.bell import Bell, RealBell, Ringer, VirtualBell
from bulkinfer.engines.child import ChildEngine
from bulkinfer.engines.clock import Clock, RealClock, VirtualClock
from bulkinfer.engines.environment import count_cores, divide_machine, find_vllm
from bulkinfer.engines.local import LocalEngine
from bulkinfer.engines.overlong import fitting
from bulkinfer.engines.sharing import decide_on_cores, decide_on_gpus
from bulkinfer.engines.simulated import SimulatedEngine
from bulkinfer.engines.simulated_arguments import parse_simulated_arguments
from bulkinfer.engines.token_counter import choose_counter, find_config
from bulkinfer.errors import JobError

__all__ = ["EngineGroup", "choose_counter", "create_engine", "create_engines", "decide_replicas", "find_config"]


@dataclass(frozen=True, slots=True)
class EngineGroup:
    """Engines of one job on one machine, and what they ring when there is something to poll."""

    engines: tuple[Engine, ...]
    bell: Bell


def create_engine(
    spec: EngineSpec,
    *,
    start_timeout_s: float = 900,
    silence_timeout_s: float = 600,
    log_path: Path | None = None,
    virtual_clock: VirtualClock | None = None,
) -> Engine:
    """The engine that `spec.kind` names, not started yet.

    A simulated engine with a virtual clock goes by `virtual_clock`, if it is given. A child process gets
    `start_timeout_s` seconds to load the model and `silence_timeout_s` seconds between two signs of life while it has
    work, and writes its log to `log_path`. Raises JobError for an unknown kind or wrong arguments.
    """
    match spec.kind:
        case "simulated" if not parse_simulated_arguments(spec.arguments).in_child:
            return _create_local_engine(spec, _create_clock(spec, virtual_clock))
        case "simulated" | "vllm":
            return ChildEngine(
                spec, start_timeout_s=start_timeout_s, silence_timeout_s=silence_timeout_s, log_path=log_path
            )
        case _:
            raise JobError(f"engine.kind: expected vllm or simulated, found {spec.kind!r}", "engine.kind")


def create_engines(
    spec: EngineSpec,
    num_replicas: int | None,
    *,
    start_timeout_s: float,
    silence_timeout_s: float,
    log_path_of: Callable[[int], Path | None],
) -> EngineGroup:
    """So many engines that share the machine, not started yet; None: as many as are good for it.

    Several simulated engines have child processes too, unless their clocks are virtual: one thread cannot wait for
    several at a time. Raises JobError as `create_engine` does, and for more engines than the machine has room for.
    """
    num_engines = decide_replicas(spec, num_replicas)
    specs = divide_machine(spec, num_engines, find_vllm())
    if num_engines == 1:
        engine = create_engine(
            specs[0], start_timeout_s=start_timeout_s, silence_timeout_s=silence_timeout_s, log_path=log_path_of(0)
        )
        return EngineGroup((engine,), RealBell(1))
    if spec.kind == "simulated" and parse_simulated_arguments(spec.arguments).has_virtual_clock:
        clocks = [VirtualClock() for _ in specs]
        virtual = VirtualBell(clocks)
        engines = [_create_local_engine(one, clocks[one.replica], Ringer(virtual, one.replica)) for one in specs]
        return EngineGroup(tuple(engines), virtual)
    bell = RealBell(num_engines)
    children = [
        ChildEngine(
            one,
            start_timeout_s=start_timeout_s,
            silence_timeout_s=silence_timeout_s,
            log_path=log_path_of(one.replica),
            ringer=Ringer(bell, one.replica),
        )
        for one in specs
    ]
    return EngineGroup(tuple(children), bell)


def decide_replicas(spec: EngineSpec, wanted: int | None) -> int:
    """How many engines a job gets here; `wanted` None is `auto`. Raises JobError for more than there is room for."""
    if spec.kind != "vllm":
        return wanted or 1
    install = find_vllm()
    if install is None:  # which the start of the first engine tells
        return wanted or 1
    if install.is_cpu:
        return decide_on_cores(wanted, count_cores())
    return decide_on_gpus(wanted, spec.arguments, os.environ)


def _create_clock(spec: EngineSpec, virtual_clock: VirtualClock | None) -> Clock:
    if not parse_simulated_arguments(spec.arguments).has_virtual_clock:
        return RealClock()
    return VirtualClock() if virtual_clock is None else virtual_clock


def _create_local_engine(spec: EngineSpec, clock: Clock, ringer: Ringer | None = None) -> LocalEngine:
    start_s = parse_simulated_arguments(spec.arguments).engine_start_s
    lives = itertools.count(1)
    return LocalEngine(
        lambda: fitting(SimulatedEngine(spec, clock, life=next(lives)), spec),
        clock=clock,
        start_s=start_s,
        priority=spec.priority,
        ringer=ringer,
    )
