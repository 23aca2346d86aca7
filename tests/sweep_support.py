"""What the tests of the sweep share: loads, points measured on the simulated engine's virtual clock."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from bulkinfer.engines import create_engine
from bulkinfer.engines.base import Engine, EngineSpec
from bulkinfer.engines.clock import DrivenClock
from bulkinfer.engines.reserve import Reserve
from bulkinfer.records import JsonValue, Message
from bulkinfer.sweep.admission import Admission, LowShare, Waiting
from bulkinfer.sweep.clients import Clients, ClosedClients, PoissonClients
from bulkinfer.sweep.driver import PointRun
from bulkinfer.sweep.load import Load, LoadRequest
from bulkinfer.sweep.options import Kind
from bulkinfer.sweep.point import Point, PointSettings, Tally
from tests.engine_support import make_request, simulated_spec, start_and_wait

SHORT_ONLY = {Kind.SHORT: 1.0, Kind.LONG: 0.0}


def make_load(short_chars: int = 8, long_chars: int = 80, max_tokens: int = 8) -> Load:
    """A prompt of each kind."""
    prompts = {
        Kind.SHORT: ((Message("user", "s" * short_chars),),),
        Kind.LONG: ((Message("user", "l" * long_chars),),),
    }
    return Load(prompts, dict.fromkeys(Kind, max_tokens), dict.fromkeys(Kind, 0), 2)


def make_waiting(name: str, *, user: int = 0, priority: int = 0, at_s: float = 0.0, attempt: int = 1) -> Waiting:
    """A request at the door."""
    request = replace(make_request(name), priority=priority, sampling={"max_tokens": 1})
    return Waiting(LoadRequest(0, Kind.SHORT, user, request, None), at_s, attempt)


@dataclass(frozen=True)
class Measured:
    """A point, and what was counted for it."""

    point: Point
    tally: Tally


def start_simulated(spec: EngineSpec) -> Engine:
    """An engine on a clock that the load drives."""
    engine = create_engine(spec, virtual_clock=DrivenClock())
    start_and_wait(engine)
    return engine


def measure(
    *,
    num_slots: int,
    seconds_per_token: float,
    output_tokens: int,
    duration_s: float,
    rate_per_s: float | None = None,
    num_users: int | None = None,
    queue_size: int = 1_000_000,
    per_user: int | None = None,
    is_rejecting: bool = False,
    cancel_share: float = 0.0,
    warmup_s: float = 0.0,
    mix: dict[Kind, float] | None = None,
    load: Load | None = None,
    max_context_tokens: int = 512,
    reserve: float | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Measured:
    """Measure one point: a request takes `output_tokens` steps, and prompts cost nothing."""
    arguments: dict[str, JsonValue] = {
        "clock": "virtual",
        "seconds_per_output_token": seconds_per_token,
        "output_tokens": output_tokens,
    }
    spec = simulated_spec(
        max_concurrency=num_slots, max_tokens=output_tokens, max_context_tokens=max_context_tokens, **arguments
    )
    engine = start_simulated(spec)
    try:
        now_s = engine.now()
        source = load or make_load(max_tokens=output_tokens)
        requests = source.iter_requests(mix or SHORT_ONLY, cancel_share, num_users or 1, seed=1, point=0)
        clients: Clients = (
            ClosedClients(requests, num_users or num_slots, now_s)
            if rate_per_s is None
            else PoissonClients(requests, rate_per_s, 1, now_s)
        )
        share = None if reserve is None else LowShare(Reserve(reserve), num_slots, num_kv_tokens=1_000_000)
        admission = Admission(
            queue_size, num_slots, per_user=per_user, is_rejecting=is_rejecting, now_s=now_s, low_share=share
        )
        settings = PointSettings(num_slots, rate_per_s, num_users, queue_size)
        run = PointRun(
            engine,
            settings,
            admission,
            clients,
            warmup_s=warmup_s,
            duration_s=duration_s,
            is_stopped=is_stopped,
        )
        return Measured(run.run(), run._tally)
    finally:
        engine.close()
