"""Engines: vLLM in a supervised child process, and a simulated one. `base` is the port that both fit."""

import itertools
from pathlib import Path

from bulkinfer.engines.base import Engine, EngineSpec
from bulkinfer.engines.child import ChildEngine
from bulkinfer.engines.clock import Clock, RealClock, VirtualClock
from bulkinfer.engines.local import LocalEngine
from bulkinfer.engines.simulated import SimulatedEngine
from bulkinfer.engines.simulated_arguments import parse_simulated_arguments
from bulkinfer.errors import JobError


def create_engine(
    spec: EngineSpec, *, start_timeout_s: float = 900, silence_timeout_s: float = 600, log_path: Path | None = None
) -> Engine:
    """The engine that `spec.kind` names, not started yet.

    A child process gets `start_timeout_s` seconds to load the model and `silence_timeout_s` seconds between two signs
    of life while it has work, and writes its log to `log_path`. Raises JobError for an unknown kind or wrong arguments.
    """
    match spec.kind:
        case "simulated" if not parse_simulated_arguments(spec.arguments).in_child:
            return _create_local_engine(spec)
        case "simulated" | "vllm":
            return ChildEngine(
                spec, start_timeout_s=start_timeout_s, silence_timeout_s=silence_timeout_s, log_path=log_path
            )
        case _:
            raise JobError(f"engine.kind: expected vllm or simulated, found {spec.kind!r}")


def _create_local_engine(spec: EngineSpec) -> LocalEngine:
    arguments = parse_simulated_arguments(spec.arguments)
    clock: Clock = VirtualClock() if arguments.has_virtual_clock else RealClock()
    lives = itertools.count(1)
    return LocalEngine(
        lambda: SimulatedEngine(spec, clock, life=next(lives)), clock=clock, start_s=arguments.engine_start_s
    )
