"""What the points of a sweep say: where latency leaves the line, where refusals begin, and which limits to set.

The knee is the point with the most requests per second for each second of p95 (Kleinrock's power, 1979, with the p95 in
the place of the mean). Up to it, a step up brings at least as much throughput, in proportion, as it costs latency;
after it, latency grows faster: it leaves the line. It needs no threshold and works with three points, which methods
that look for a bend in a smooth curve do not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bulkinfer.engines.reserve import Reserve
from bulkinfer.sweep.point import Point

MIN_ANSWERS = 20
"""Of a point that limits may rest on: of fewer, the p95 is the slowest one."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Limits, and what they rest on."""

    max_concurrency: int
    max_queue_size: int
    max_num_batched_tokens: int | None
    reserve: float | None
    """What low priority left free; None: nothing came at low priority."""
    is_rejecting: bool
    requests_per_s: float
    """What to plan for: what was measured, less the head-room."""
    measured_requests_per_s: float
    p95_s: float
    """Of the whole time, as measured."""
    full_queue_wait_s: float
    """How long the last of a full queue waits, at what to plan for."""
    headroom: float
    kv_cache_usage_peak: float
    reasons: tuple[str, ...]
    """For people: one for each value."""

    def to_yaml(self) -> str:
        """Lines to paste into a job file."""
        below = f"{100 * self.headroom:g} % below what it did"
        lines = [
            "limits:",
            f"  max_concurrency: {self.max_concurrency}  # plan for {self.requests_per_s:.3g} requests/s, {below}",
            f"  max_queue_size: {self.max_queue_size}  # a full queue waits about {self.full_queue_wait_s:.2g} s",
        ]
        if self.is_rejecting:
            lines.append("  reject_when_queue_full: true")
        if self.reserve:
            lines.append(f"  reserve: {Reserve(self.reserve)}  # of both, for normal priority")
        if self.max_num_batched_tokens is not None:
            lines += ["engine:", "  vllm:", f"    max_num_batched_tokens: {self.max_num_batched_tokens}"]
        return "\n".join(lines) + "\n"


def find_power(point: Point) -> float:
    """Requests per second for each second of p95."""
    p95_s = point.p95_s
    return 0.0 if not p95_s else point.requests_per_s / p95_s


def find_knee(points: Sequence[Point]) -> int | None:
    """The place, in points ordered by load, of the last one before latency leaves the line; None of nothing."""
    powers = [find_power(point) for point in points]
    return None if not any(powers) else powers.index(max(powers))


def find_rejections(points: Sequence[Point]) -> int | None:
    """The place of the first point with a refusal for want of room; None where all were taken."""
    return next((place for place, point in enumerate(points) if has_refused(point)), None)


def has_refused(point: Point) -> bool:
    """Whether the queue or a user's limit refused somebody; what the engine refuses is no matter of capacity."""
    return any(count for reason, count in point.refused.items() if reason in {"queue_full", "user_limit"})


def group_series(points: Sequence[Point]) -> list[list[Point]]:
    """Points that differ in their load alone, ordered by it, the lightest first."""
    groups: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        settings = point.settings
        is_closed = settings.rate_per_s is None
        key = (settings.batched_tokens, settings.reserve, None if is_closed else settings.concurrency)
        groups.setdefault(key, []).append(point)
    return [
        sorted(group, key=lambda point: (point.settings.concurrency, point.settings.rate_per_s or 0))
        for group in groups.values()
    ]


def is_sound(point: Point, headroom: float) -> bool:
    """Whether limits may rest on a point: all were served, nothing failed, and the KV cache had room left."""
    return (
        point.is_complete
        and not point.is_overloaded
        and not has_refused(point)
        and not point.errors
        and point.num_preemptions == 0
        and point.p95_s is not None
        and point.num_completed >= MIN_ANSWERS
        and point.kv_cache_usage_peak <= 1 - headroom
    )


def recommend(
    points: Sequence[Point], *, headroom: float, target_p95_s: float | None, is_rejecting: bool
) -> tuple[Recommendation | None, str]:
    """Limits from the points, or None and why there are none."""
    sound = [point for point in points if is_sound(point, headroom)]
    if target_p95_s is not None:
        sound = [point for point in sound if (point.p95_s or math.inf) <= target_p95_s]
    if not sound:
        wanted = "" if target_p95_s is None else f" within a p95 of {target_p95_s:g} s"
        return None, (
            f"no point served all that came{wanted}, at least {MIN_ANSWERS} requests, with {100 * headroom:g} % of the"
            " KV cache left and without preemptions; measure a lighter load, or longer"
        )
    if target_p95_s is None:
        best = max(sound, key=find_power)
        why = "up to there latency stays on the line"
        if any(group[-1] is best for group in group_series(points) if len(group) > 1):
            why = "the heaviest load that was measured, and latency is still on the line; measure more"
    else:
        best = max(sound, key=lambda point: point.requests_per_s)
        why = f"the most requests within a p95 of {target_p95_s:g} s"
    return _recommend(best, why, headroom, target_p95_s, is_rejecting=is_rejecting), ""


def _recommend(
    best: Point, why: str, headroom: float, target_p95_s: float | None, *, is_rejecting: bool
) -> Recommendation:
    p95_s = best.p95_s
    assert p95_s is not None
    requests_per_s = (1 - headroom) * best.requests_per_s
    wait_s = p95_s if target_p95_s is None else target_p95_s - p95_s
    num_served = math.floor(requests_per_s * wait_s)
    # A run fills its window from the queue. Where somebody waits for answers, a longer queue would break what is asked.
    is_run = target_p95_s is None and not is_rejecting
    queue_size = max(num_served, best.settings.concurrency if is_run else 1)
    batched_tokens = best.settings.batched_tokens
    allowed = "one more p95" if target_p95_s is None else "what the target leaves"
    done = f"{best.requests_per_s:.3g} requests/s at a p95 of {p95_s:.3g} s"
    plan = f"plan for {requests_per_s:.3g}, {100 * headroom:g} % less"
    served = f"what is served in {allowed} ({wait_s:.3g} s) at that rate"
    if queue_size > num_served:
        served += ", and no less than the sequences" if is_run else ": none, and a queue has at least one place"
    reasons = [
        f"max_concurrency {best.settings.concurrency}: {why}, {done}; {plan}",
        f"max_queue_size {queue_size}: {served}",
    ]
    if best.settings.reserve:
        reasons.append(f"reserve {Reserve(best.settings.reserve)}: what that was measured with")
    if batched_tokens is not None:
        reasons.append(f"max_num_batched_tokens {batched_tokens}: what that was measured with")
    reasons.append(f"KV cache: at most {100 * best.kv_cache_usage_peak:.0f} % in use")
    return Recommendation(
        max_concurrency=best.settings.concurrency,
        max_queue_size=queue_size,
        max_num_batched_tokens=batched_tokens,
        reserve=best.settings.reserve,
        is_rejecting=is_rejecting,
        requests_per_s=requests_per_s,
        measured_requests_per_s=best.requests_per_s,
        p95_s=p95_s,
        full_queue_wait_s=queue_size / requests_per_s,
        headroom=headroom,
        kv_cache_usage_peak=best.kv_cache_usage_peak,
        reasons=tuple(reasons),
    )
