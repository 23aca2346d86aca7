"""Loads the engine that an engine's process runs. It imports vLLM only where that is wanted."""

import gc
import os
from collections.abc import Callable
from dataclasses import replace

from bulkinfer.engines.base import EngineSpec, MeasuringEngine, StepEngine
from bulkinfer.engines.clock import RealClock
from bulkinfer.engines.frames import Start
from bulkinfer.engines.overlong import fitting
from bulkinfer.engines.simulated import SimulatedEngine
from bulkinfer.engines.simulated_arguments import parse_simulated_arguments
from bulkinfer.errors import JobError
from bulkinfer.records import EngineReady


def create_step_engine(start: Start, on_count: Callable[[], None]) -> StepEngine:
    """The engine that the parent wants, loaded. Raises JobError, and whatever vLLM raises when it cannot load.

    `on_count`: see `fitting`.
    """
    match start.spec.kind:
        case "simulated":
            clock = RealClock()
            clock.sleep(parse_simulated_arguments(start.spec.arguments).engine_start_s)
            simulated = SimulatedEngine(start.spec, clock, life=start.life, owns_process=True)
            return fitting(simulated, start.spec, on_count)
        case "vllm":
            return fitting(_load_vllm(start), start.spec, on_count)
    raise JobError(f"engine.kind: expected vllm or simulated, found {start.spec.kind!r}")


def describe_ready(engine: StepEngine, spec: EngineSpec) -> EngineReady:
    """What the engine says, and how nice its process is where that was asked for."""
    ready = engine.ready()
    if not spec.nice:
        return ready
    return replace(ready, settings={**ready.settings, "nice": os.getpriority(os.PRIO_PROCESS, 0)})


def _load_vllm(start: Start) -> MeasuringEngine:
    """Import vLLM and load the model, without the garbage collector: nothing of it is garbage, and going through the
    millions of objects again and again is a third of the time that this takes."""
    gc.disable()
    from bulkinfer.engines.vllm import VllmEngine  # noqa: PLC0415 - importing vLLM takes seconds and much memory
    from bulkinfer.engines.vllm_pooling import PoolingEngine  # noqa: PLC0415

    gc.freeze()  # vLLM collects several times while it loads
    create = PoolingEngine if start.spec.is_pooling else VllmEngine
    engine = create(start.spec, start.workload)
    gc.freeze()
    gc.enable()
    return engine
