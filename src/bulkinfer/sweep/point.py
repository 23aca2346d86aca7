"""What one point of a sweep found: settings, counts, latencies. A `Tally` counts; a `Point` is the result."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import quantiles

from bulkinfer.records import Completion, EngineStats, Latency, Percentiles
from bulkinfer.sweep.admission import Waiting
from bulkinfer.sweep.options import Kind

MAX_SHOWN_CANCELLATIONS = 5
FULL_SHARE = 0.9
"""Of its slots an engine that is overloaded has in use, on the average; else something else held it up for a while."""
MAX_SHAPES = 2000
"""Of each kind."""


@dataclass(frozen=True, slots=True)
class PointSettings:
    """What a point is measured with."""

    concurrency: int
    """Requests that the engine has at once."""
    rate_per_s: float | None
    """Of arrivals; None: a closed loop."""
    num_users: int | None
    queue_size: int
    batched_tokens: int | None = None
    """vLLM's max_num_batched_tokens; None: the engine does not tell."""
    reserve: float | None = None
    """What kinds at low priority leave free; None: there are none."""
    low: frozenset[Kind] = frozenset()
    """Kinds at low priority."""


@dataclass(frozen=True, slots=True)
class Counters:
    """The engine's own, at one moment."""

    num_active: int
    num_free_kv_blocks: int
    num_kv_blocks: int
    num_aborted: int

    @classmethod
    def of(cls, stats: EngineStats) -> "Counters":
        """Those of a reading."""
        return cls(stats.num_active, stats.num_free_kv_blocks, stats.num_kv_blocks, stats.num_aborted)


@dataclass(frozen=True, slots=True)
class Shape:
    """How long one request was, in tokens."""

    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Cancellation:
    """One abort, by the engine's own counters."""

    at_s: float
    """Since the begin of the point."""
    num_requests: int
    before: Counters
    """A reading from just before it, without a step in between."""
    after: Counters


@dataclass(frozen=True, slots=True)
class Point:
    """The figures are of what ended while it was measured: after the warm-up, before the end."""

    settings: PointSettings
    measured_s: float
    is_complete: bool
    """False: interrupted, or ended early because nobody could serve that."""
    is_overloaded: bool
    """More came than was answered while the engine was full: the backlog grew, or a tenth of it was refused."""
    num_arrived: int
    num_completed: int
    num_cut: int
    """Of the completed: answers that end at max_tokens."""
    num_cancelled_waiting: int
    num_cancelled_running: int
    num_late_cancels: int
    """They were answered before."""
    refused: Mapping[str, int]
    """By reason."""
    num_with_retry_after: int
    """Of the refusals, those that said when to come again."""
    num_retries: int
    """Requests that came again because they were told to."""
    num_retries_taken: int
    """Of these, those that were then taken."""
    errors: Mapping[str, int]
    num_unanswered: int
    """Open at the end, waiting or running."""
    max_queued: int
    max_outside: int
    """The longest line before a full queue."""
    requests_per_s: float
    output_tokens_per_s: float
    tokens_per_s: float
    """Prompt and output tokens of completed requests."""
    p95_s: float | None
    """Of the whole time of requests at normal priority: what points are judged by."""
    latency: Latency
    latency_by_kind: Mapping[str, Latency]
    completed_by_kind: Mapping[str, int]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    mean_active: float
    """Requests in the engine, on the average over the time."""
    kv_cache_usage_peak: float
    num_preemptions: int
    """From the last reading of the warm-up to the engine at rest."""
    engine_memory_bytes: int
    """The most that the engine's process had since it was started."""
    cancellations: Sequence[Cancellation]
    """The first few."""
    shapes: Mapping[Kind, Sequence[Shape]]
    """Of the completed requests, the first of them."""
    readings: Sequence[EngineStats]
    """Of the engine, while it was measured."""
    engine_aborted: int
    """What the engine counted, all of the point and its end."""
    at_rest: Counters | None
    """After the end, when all was dropped."""

    @property
    def num_refused(self) -> int:
        """For any reason."""
        return sum(self.refused.values())

    @property
    def num_cancelled(self) -> int:
        """Waiting or running."""
        return self.num_cancelled_waiting + self.num_cancelled_running


@dataclass(slots=True)
class Durations:
    """Of one kind, in seconds."""

    queue: list[float] = field(default_factory=list)
    first_token: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)

    def add(self, waited_s: float, completion: Completion) -> None:
        """One answer; `waited_s`: from its arrival until the engine was given it."""
        self.queue.append(waited_s + completion.queue_s)
        self.first_token.append(waited_s + completion.first_token_s)
        self.total.append(waited_s + completion.total_s)

    def latency(self) -> Latency:
        """Their percentiles."""
        return Latency(find_percentiles(self.queue), find_percentiles(self.first_token), find_percentiles(self.total))


@dataclass(slots=True)
class Demand:
    """What came at one level of priority, and what of it found no room."""

    arrived: int = 0
    retries: int = 0
    turned_away: int = 0
    """For want of a place in the queue, each time that it came."""
    backlog_before: int | None = None
    """Requests that waited when the warm-up was over."""

    def is_too_much(self, num_waiting: int) -> bool:
        """Whether the backlog grew by a tenth of what came, or a tenth was sent away for good."""
        growth = num_waiting - (self.backlog_before or 0)
        return max(growth, self.turned_away - self.retries) > max(5, self.arrived // 10)


@dataclass(slots=True)
class Tally:
    """Counts while a point goes on; what comes before `from_s` is the warm-up and counts for nothing."""

    from_s: float
    demand: tuple[Demand, Demand] = field(default_factory=lambda: (Demand(), Demand()))
    """At normal and at low priority."""
    cut: int = 0
    cancelled_waiting: int = 0
    cancelled_running: int = 0
    late_cancels: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    with_retry_after: int = 0
    retries_taken: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    max_queued: int = 0
    max_outside: int = 0
    active_s: float = 0.0
    """Seconds that requests were in the engine, added up."""
    used_s: float = 0.0
    """Likewise, with the slots that the reserve keeps from requests that wait for them."""
    preemptions_before: int | None = None
    """By the engine's counter, at the last reading of the warm-up."""
    durations: dict[Kind, Durations] = field(default_factory=lambda: {kind: Durations() for kind in Kind})
    shapes: dict[Kind, list[Shape]] = field(default_factory=lambda: {kind: [] for kind in Kind})
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    readings: list[EngineStats] = field(default_factory=list)
    cancellations: list[Cancellation] = field(default_factory=list)

    def note_completion(self, waiting: Waiting, waited_s: float, completion: Completion) -> None:
        """An answer."""
        kind = waiting.load.kind
        self.durations[kind].add(waited_s, completion)
        if len(self.shapes[kind]) < MAX_SHAPES:
            self.shapes[kind].append(Shape(completion.prompt_tokens, completion.output_tokens))
        self.cut += completion.finish_reason == "length"
        self.prompt_tokens += completion.prompt_tokens
        self.cached_tokens += completion.cached_tokens
        self.output_tokens += completion.output_tokens

    def note_waiting(self, num_queued: int, num_outside: int, by_level: tuple[int, int]) -> None:
        """How many wait, now."""
        for demand, num_waiting in zip(self.demand, by_level, strict=True):
            if demand.backlog_before is None:
                demand.backlog_before = num_waiting
        self.max_queued = max(self.max_queued, num_queued)
        self.max_outside = max(self.max_outside, num_outside)

    def count_preemptions(self, rest: EngineStats) -> int:
        """Since the warm-up; without one since the first reading."""
        before = self.preemptions_before
        if before is None:
            before = self.readings[0].num_preemptions if self.readings else rest.num_preemptions
        return rest.num_preemptions - before

    @property
    def num_completed(self) -> int:
        """Answers."""
        return sum(len(one.total) for one in self.durations.values())

    def finish(
        self, settings: PointSettings, end_s: float, *, is_complete: bool, waiting: tuple[int, int], num_running: int
    ) -> Point:
        """The result; rest and the engine's own count of aborts are added later."""
        measured_s = max(0.0, end_s - self.from_s)
        per_s = 1 / measured_s if measured_s > 0 else 0.0
        everything = Durations()
        for one in self.durations.values():
            everything.queue += one.queue
            everything.first_token += one.first_token
            everything.total += one.total
        is_full = self.used_s * per_s >= FULL_SHARE * settings.concurrency
        return Point(
            settings=settings,
            measured_s=measured_s,
            is_complete=is_complete,
            is_overloaded=is_full
            and settings.rate_per_s is not None
            and any(demand.is_too_much(num) for demand, num in zip(self.demand, waiting, strict=True)),
            num_arrived=sum(demand.arrived for demand in self.demand),
            num_completed=self.num_completed,
            num_cut=self.cut,
            num_cancelled_waiting=self.cancelled_waiting,
            num_cancelled_running=self.cancelled_running,
            num_late_cancels=self.late_cancels,
            refused=dict(self.refused),
            num_with_retry_after=self.with_retry_after,
            num_retries=sum(demand.retries for demand in self.demand),
            num_retries_taken=self.retries_taken,
            errors=dict(self.errors),
            num_unanswered=sum(waiting) + num_running,
            max_queued=self.max_queued,
            max_outside=self.max_outside,
            requests_per_s=self.num_completed * per_s,
            output_tokens_per_s=self.output_tokens * per_s,
            tokens_per_s=(self.prompt_tokens + self.output_tokens) * per_s,
            p95_s=find_percentiles(
                [total_s for kind, one in self.durations.items() if kind not in settings.low for total_s in one.total]
            ).p95,
            latency=everything.latency(),
            latency_by_kind={kind.value: one.latency() for kind, one in self.durations.items() if one.total},
            completed_by_kind={kind.value: len(one.total) for kind, one in self.durations.items() if one.total},
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            mean_active=self.active_s * per_s,
            kv_cache_usage_peak=max(
                (max(one.kv_cache_usage, one.peak_kv_cache_usage) for one in self.readings), default=0.0
            ),
            num_preemptions=0,
            engine_memory_bytes=max((one.memory_bytes for one in self.readings), default=0),
            cancellations=tuple(self.cancellations),
            shapes=self.shapes,
            readings=tuple(self.readings),
            engine_aborted=0,
            at_rest=None,
        )


def find_percentiles(values: Sequence[float]) -> Percentiles:
    """Between the two nearest values, in proportion; None of nothing."""
    if len(values) < 2:
        only = values[0] if values else None
        return Percentiles(only, only, only)
    cuts = quantiles(values, n=100, method="inclusive")
    return Percentiles(cuts[49], cuts[94], cuts[98])
