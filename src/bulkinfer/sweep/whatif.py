"""What would be at sizes that are not here: the load on the simulated engine, with costs fitted to the measured one.

The simulated requests have the lengths that were measured, of prompts and answers. How far off the simulation is, is
said where both are known: at each measured point, and at the largest with the costs of the others alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, product
from typing import Any

from bulkinfer.engines import create_engine
from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.calibration import Calibration, calibrate
from bulkinfer.engines.clock import DrivenClock
from bulkinfer.records import EngineReady, Message
from bulkinfer.sweep.load import Load
from bulkinfer.sweep.measure import measure_point
from bulkinfer.sweep.options import Kind, SweepOptions
from bulkinfer.sweep.point import MAX_SHAPES, Point, PointSettings
from bulkinfer.sweep.result import describe_point
from bulkinfer.sweep.rig import Rig, wait_until_ready

MIN_DURATION_S = 600.0
"""Of a simulated point, on its clock: long enough for its p95 to be steady."""
_ANSWERS_END_AT_MAX = 1_000_000
_TOKENS_OF_A_MESSAGE = 4
_CHARS_PER_TOKEN = 4
"""Both as the simulated engine counts."""
_TOKENS_OF_NUMBERS = 1
"""At least: a prompt begins with those of its point and round, and what was measured has them too."""
_ROOM_TOKENS = 8
"""For longer numbers."""


@dataclass(frozen=True, slots=True)
class _Simulation:
    """What the simulated engine is made of, but for its costs."""

    load: Load
    options: SweepOptions
    spec: EngineSpec
    ready: EngineReady
    is_stopped: Callable[[], bool]


def ask_what_if(
    points: Sequence[Point],
    options: SweepOptions,
    spec: EngineSpec,
    ready: EngineReady,
    is_stopped: Callable[[], bool],
) -> dict[str, Any] | None:
    """Simulate points of one engine, and those that are only asked about; None where no costs can be fitted."""
    found = _fit(points)
    if found is None or not any(point.num_completed for point in points):
        return None
    simulation = _Simulation(_shape_load(points, options), options, spec, ready, is_stopped)
    measured = [point.settings for point in points]
    alike = dict.fromkeys(_resize(settings, 1, options) for settings in measured)
    more = [_resize(settings, concurrency, options) for concurrency, settings in product(options.what_if, alike)]
    asked = [*measured, *(settings for settings in more if settings not in measured)]
    real: list[Point | None] = [*points, *([None] * (len(asked) - len(points)))]
    simulated = _simulate(simulation, found, asked)
    return {
        "costs": asdict(found.cost),
        "num_readings": found.num_stretches,
        "step_error": round(found.mean_error, 4),
        "points": [
            {**describe_point(point), "error": _find_error(point, beside)}
            for point, beside in zip(simulated, real, strict=False)
        ],
        "unseen": _check_unseen(simulation, points),
    }


def _check_unseen(simulation: _Simulation, points: Sequence[Point]) -> dict[str, Any] | None:
    """The largest point by the costs of the others: how far off a size is that was not measured."""
    largest = max(points, key=lambda point: (point.settings.concurrency, point.settings.rate_per_s or 0))
    others = [point for point in points if point.settings.concurrency < largest.settings.concurrency]
    found = _fit(others)
    if found is None or simulation.is_stopped():
        return None
    simulated = _simulate(simulation, found, [largest.settings])
    errors = [_find_error(point, largest) for point in simulated]
    return {"concurrency": largest.settings.concurrency, "error": errors[0]} if errors else None


def _fit(points: Sequence[Point]) -> Calibration | None:
    return calibrate(list(chain.from_iterable(point.readings for point in points)))


def _resize(settings: PointSettings, concurrency: int, options: SweepOptions) -> PointSettings:
    users = settings.num_users
    if options.num_users is None and settings.rate_per_s is None:
        users = concurrency
    return replace(settings, concurrency=concurrency, num_users=users)


def _shape_load(points: Sequence[Point], options: SweepOptions) -> Load:
    """Requests as long as those that were measured; what they say is nothing."""
    shapes = {kind: [shape for point in points for shape in point.shapes[kind]] for kind in Kind}
    known = [shape for kind in Kind for shape in shapes[kind]]
    prompts, lengths = {}, {}
    for kind in Kind:
        of_kind = shapes[kind] or known  # none of it was answered
        of_kind = of_kind[:: -(-len(of_kind) // MAX_SHAPES)]
        prompts[kind] = tuple(_make_prompt(shape.prompt_tokens) for shape in of_kind)
        lengths[kind] = tuple(max(1, shape.output_tokens) for shape in of_kind)
    longest = {kind: max(lengths[kind]) for kind in Kind}
    return Load(prompts, longest, dict.fromkeys(Kind, 0), 0, options.low, lengths)


def _make_prompt(num_tokens: int) -> tuple[Message, ...]:
    return (Message("user", "x" * (_CHARS_PER_TOKEN * max(1, num_tokens - _TOKENS_OF_A_MESSAGE - _TOKENS_OF_NUMBERS))),)


def _simulate(simulation: _Simulation, found: Calibration, asked: Sequence[PointSettings]) -> list[Point]:
    load, options, spec = simulation.load, simulation.options, simulation.spec
    num_slots = max(settings.concurrency for settings in asked)
    longest = max(len(prompt[0].content) for prompts in load.prompts.values() for prompt in prompts)
    context = longest // _CHARS_PER_TOKEN + max(load.max_tokens.values()) + _TOKENS_OF_A_MESSAGE + _ROOM_TOKENS
    arguments = found.to_arguments(simulation.ready)
    # More than the measured engine had, where more is asked about.
    kv_tokens, step_tokens = arguments.get("kv_cache_tokens"), arguments.get("max_num_batched_tokens")
    if isinstance(kv_tokens, int):
        arguments["kv_cache_tokens"] = max(kv_tokens, context)
    if isinstance(step_tokens, int):
        arguments["max_num_batched_tokens"] = max(step_tokens, num_slots)
    simulated = replace(
        spec,
        kind="simulated",
        max_concurrency=num_slots,
        max_context_tokens=context,
        arguments={**arguments, "clock": "virtual", "output_tokens": _ANSWERS_END_AT_MAX},
        has_priorities=bool(options.low),
        reserve=0.0,
    )
    engine = create_engine(simulated, virtual_clock=DrivenClock())
    try:
        engine.start()
        rig = Rig(engine, wait_until_ready(engine, simulation.is_stopped))
        longer = replace(options, duration_s=max(MIN_DURATION_S, options.duration_s))
        points: list[Point] = []
        for number, settings in enumerate(asked):
            if simulation.is_stopped():
                break
            aborted = sum(point.engine_aborted for point in points)
            points.append(measure_point(rig, load, longer, settings, number, aborted, simulation.is_stopped))
        return points
    finally:
        engine.close()


def _find_error(simulated: Point, real: Point | None) -> dict[str, float | None] | None:
    """How much more the simulation says than was measured, as a share; None where nothing was."""
    if real is None:
        return None
    return {
        "requests_per_s": _compare(simulated.requests_per_s, real.requests_per_s),
        "p50": _compare(simulated.latency.total.p50, real.latency.total.p50),
        "p95": _compare(simulated.p95_s, real.p95_s),
        "first_token_p95": _compare(simulated.latency.first_token.p95, real.latency.first_token.p95),
    }


def _compare(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else round(one / other - 1, 4)
