"""One point of a sweep from its settings: who sends, who gets in, and the loop."""

from collections.abc import Callable

from bulkinfer.engines.reserve import Reserve
from bulkinfer.sweep.admission import Admission, LowShare
from bulkinfer.sweep.clients import Clients, ClosedClients, PoissonClients
from bulkinfer.sweep.driver import PointRun
from bulkinfer.sweep.load import Load
from bulkinfer.sweep.options import SweepOptions
from bulkinfer.sweep.point import Point, PointSettings
from bulkinfer.sweep.rig import Rig


def measure_point(
    rig: Rig,
    load: Load,
    options: SweepOptions,
    settings: PointSettings,
    number: int,
    aborted_before: int,
    is_stopped: Callable[[], bool],
) -> Point:
    """Measure one point on an engine that is ready and empty. Raises EngineError."""
    engine = rig.engine
    now_s = engine.now()
    num_users = settings.num_users or 1
    requests = load.iter_requests(options.mix, options.cancel_share, num_users, options.seed, number)
    clients: Clients = (
        ClosedClients(requests, num_users, now_s)
        if settings.rate_per_s is None
        else PoissonClients(requests, settings.rate_per_s, options.seed, now_s)
    )
    admission = Admission(
        options.queue_size,
        settings.concurrency,
        per_user=options.per_user,
        is_rejecting=options.is_rejecting,
        now_s=now_s,
        low_share=_find_low_share(rig, settings),
    )
    return PointRun(
        engine,
        settings,
        admission,
        clients,
        warmup_s=options.warmup_s,
        duration_s=options.duration_s,
        aborted_before=aborted_before,
        is_stopped=is_stopped,
    ).run()


def describe_line(point: Point) -> str:
    """One line for people, as soon as a point is measured."""
    settings = point.settings
    load = "" if settings.rate_per_s is None else f" at {settings.rate_per_s:g}/s"
    p95_s = "-" if point.p95_s is None else f"{point.p95_s:.3g} s"
    refused = f", {point.num_refused:,} refused" if point.num_refused else ""
    return f"concurrency {settings.concurrency}{load}: {point.requests_per_s:.3g} requests/s, p95 {p95_s}{refused}"


def _find_low_share(rig: Rig, settings: PointSettings) -> LowShare | None:
    if not settings.reserve:
        return None
    return LowShare(Reserve(settings.reserve), settings.concurrency, rig.ready.num_kv_cache_tokens)
