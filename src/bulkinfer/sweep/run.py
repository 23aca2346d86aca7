"""A whole sweep: the load is read, the engine started, each point measured, and the points judged."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from typing import Any

from bulkinfer import __version__
from bulkinfer.engines.reserve import Reserve
from bulkinfer.errors import BulkinferError, EngineError, JobError
from bulkinfer.records import EngineReady
from bulkinfer.runner.plan import RunPlan
from bulkinfer.sources import open_source
from bulkinfer.sweep.capacity import MIN_ANSWERS, recommend
from bulkinfer.sweep.load import Load, read_load
from bulkinfer.sweep.measure import describe_line, measure_point
from bulkinfer.sweep.options import SweepOptions, check_options
from bulkinfer.sweep.point import Point, PointSettings
from bulkinfer.sweep.result import (
    FORMAT,
    SweepReport,
    describe_options,
    describe_point,
    describe_recommendation,
    describe_series,
)
from bulkinfer.sweep.rig import Rig, Stopped, describe_rig, running_engine
from bulkinfer.sweep.whatif import ask_what_if

_OVERLOAD_NOTE = "{where}: {done:.3g}/s were answered, {what}; this rate can never be served"


def run_sweep(
    plan: RunPlan, options: SweepOptions, tell: Callable[[str], None], is_stopped: Callable[[], bool] = lambda: False
) -> SweepReport:
    """Measure all points; `tell` gets a line for each. Raises JobError and InputError for what cannot be measured.

    An engine that does not start or dies ends the sweep with what was measured before.
    """
    if not plan.job.spec.writes_answers:
        raise JobError(
            f"{plan.job.path}: task.kind: expected a task that writes answers, found {plan.job.spec.task.kind}: a "
            "sweep measures how long users wait for the tokens of an answer"
        )
    if plan.job.spec.limits.reject_when_queue_full:
        options = replace(options, is_rejecting=True)
    check_options(options)
    choices: list[int | None] = [*options.batched_tokens] or [None]
    specs = [describe_rig(plan.engine_spec, options, choice) for choice in choices]
    job = plan.job
    own_reserve = job.spec.limits.reserve
    files = [replace(file, images=None) for file in plan.files]  # its load is of texts
    sources = [open_source(file, plan.template.fields, job.spec.input.id) for file in files]
    load = read_load(job, plan.template, sources, options.max_tokens, options.low)
    points: list[Point] = []
    engines: list[dict[str, Any]] = []
    error: BulkinferError | None = None
    first: tuple[EngineReady, int] | None = None
    try:
        for spec in specs:
            with running_engine(job, spec, load, is_stopped) as rig:
                engines.append(_describe_engine(rig))
                for point in _iter_points(rig, load, options, own_reserve, len(points), is_stopped):
                    points.append(point)
                    tell(describe_line(point))
                first = first or (rig.ready, len(points))
    except Stopped:
        pass
    except (EngineError, JobError) as fault:
        if isinstance(fault, JobError) and not points:
            raise
        error = fault
    found = describe_sweep(plan, options, load, engines, points)
    if options.what_if and first is not None and error is None and not is_stopped():
        ready, num_points = first
        found["what_if"] = None
        try:
            found["what_if"] = ask_what_if(points[:num_points], options, plan.engine_spec, ready, is_stopped)
        except Stopped:
            pass
        except BulkinferError as fault:  # the measured points are worth more than the simulated ones
            found["notes"].append(f"--what-if: {fault}")
        else:
            if found["what_if"] is None:
                found["notes"].append("too few readings of the engine to fit its costs for --what-if; measure longer")
    return SweepReport(found, error, is_stopped())


def describe_sweep(
    plan: RunPlan, options: SweepOptions, load: Load, engines: list[dict[str, Any]], points: list[Point]
) -> dict[str, Any]:
    """The object, without how it ended."""
    recommendation, reason = recommend(
        points, headroom=options.headroom, target_p95_s=options.target_p95_s, is_rejecting=options.is_rejecting
    )
    return {
        "sweep": FORMAT,
        "bulkinfer": __version__,
        "job": plan.job.spec.name,
        "model": plan.job.spec.model.path,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "options": describe_options(options),
        "load": {"documents_read": load.num_documents, "kinds": load.describe()},
        "engines": engines,
        "points": [describe_point(point) for point in points],
        "series": describe_series(points),
        "recommendation": describe_recommendation(recommendation, reason),
        "notes": [*_note_job(plan, options), *_iter_notes(points, options, load)],
    }


def _iter_points(
    rig: Rig,
    load: Load,
    options: SweepOptions,
    own_reserve: float,
    num_before: int,
    is_stopped: Callable[[], bool],
) -> Iterator[Point]:
    rates: list[float | None] = [*options.arrivals.rates_per_s] or [None]
    reserves = options.reserves or (own_reserve,)
    aborted_before = 0
    points = product(options.concurrency, rates, reserves if options.low else (None,))
    for number, (concurrency, rate_per_s, reserve) in enumerate(points, num_before):
        if is_stopped():
            return
        num_users = options.num_users
        if num_users is None and rate_per_s is None:
            num_users = concurrency
        settings = PointSettings(
            concurrency, rate_per_s, num_users, options.queue_size, rig.batched_tokens, reserve, options.low
        )
        point = measure_point(rig, load, options, settings, number, aborted_before, is_stopped)
        aborted_before += point.engine_aborted
        yield point


def _describe_engine(rig: Rig) -> dict[str, Any]:
    return {
        "start_s": round(rig.ready.start_s, 2),
        "num_kv_cache_tokens": rig.ready.num_kv_cache_tokens,
        "settings": dict(rig.ready.settings),
    }


def _note_job(plan: RunPlan, options: SweepOptions) -> Iterator[str]:
    replicas = plan.job.spec.engine.replicas
    if replicas != 1:
        yield f"engine.replicas {replicas}: one engine was measured, with the whole machine to itself"
    reserve = Reserve(plan.job.spec.limits.reserve)
    if reserve.share and not options.low:
        left = f"a run has {100 - 100 * reserve.share:g} % of it"
        yield f"limits.reserve {reserve}: the engine was measured whole, and {left}; --low shows both side by side"


def _iter_notes(points: list[Point], options: SweepOptions, load: Load) -> Iterator[str]:
    for kind, num_made in load.made.items():
        if num_made and options.mix.get(kind, 0) > 0:
            made = f"{num_made} {kind} prompts were made of several documents each"
            yield f"the input has too few {kind} documents: {made}"
    for point in points:
        settings = point.settings
        where = f"concurrency {settings.concurrency}"
        if settings.rate_per_s is not None:
            where += f" at {settings.rate_per_s:g} requests/s"
        if settings.reserve and Reserve(settings.reserve).max_sequences(settings.concurrency) == settings.concurrency:
            yield f"{where}: a reserve of {Reserve(settings.reserve)} keeps no sequence free of so few"
        what = f"the line grew to {point.num_unanswered:,}"
        if point.num_refused:
            share = point.num_refused / max(1, point.num_arrived + point.num_retries)
            what = f"{100 * share:.0f} % were refused"
        if point.is_overloaded:
            yield _OVERLOAD_NOTE.format(where=where, done=point.requests_per_s, what=what)
        elif point.num_refused:
            yield f"{where}: {what}"
        if point.num_completed < MIN_ANSWERS:
            few = f"{point.num_completed} requests were answered in {point.measured_s:.3g} s"
            yield f"{where}: only {few}, too few to judge by; give a longer --duration"
        if not point.is_complete:
            yield f"{where}: ended after {point.measured_s:.3g} s of {options.duration_s:g} s"
