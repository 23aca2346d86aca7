"""How a run stands: what its own display shows four times a second, and what `status` tells of it.

It looks at what ledger and fleet have, and costs the same however many documents there are. No text of a document
passes through here.
"""

import time
from dataclasses import asdict, dataclass, field, replace
from heapq import nlargest

from bulkinfer.events import ActiveDocument, EnginePhase, EngineProgress, Progress, RunPhase
from bulkinfer.records import JsonValue
from bulkinfer.runner.fleet import Fleet
from bulkinfer.runner.ledger import Ledger, sort_codes
from bulkinfer.runner.trend import Counts, TrendKeeper
from bulkinfer.runner.window import Window

NUM_SLOWEST = 5
MAX_ID_CHARS = 200


@dataclass(slots=True)
class _Silence:
    """Since when the count of an engine stands still although it has something in flight."""

    count: int = 0
    since_s: float = 0.0
    is_waiting: bool = False

    def note(self, now_s: float, count: int, num_in_flight: int) -> None:
        if count != self.count or num_in_flight == 0 or not self.is_waiting:
            self.count, self.since_s = count, now_s
        self.is_waiting = num_in_flight > 0

    def length_s(self) -> float | None:
        return max(0.0, time.monotonic() - self.since_s) if self.is_waiting else None


@dataclass(slots=True)
class Standing:
    """Of one run. `look` is for the loop's thread; any thread may ask for `describe`."""

    ledger: Ledger
    fleet: Fleet
    queue_capacity: int
    _trend: TrendKeeper = field(default_factory=TrendKeeper)
    _silences: dict[int, _Silence] = field(default_factory=dict)
    """By engine."""
    _last: Progress | None = None

    def look(self, *, is_stopping: bool = False) -> Progress:
        """Where the run stands now. Takes the reading that rates and trend are made of."""
        now_s = time.monotonic()
        ledger, num_in_flight = self.ledger, self.fleet.num_in_flight
        if ledger.first_submit_s is not None:
            self._trend.note(now_s, Counts(ledger.num_asked_outcomes, *ledger.tokens_spent()))
        # What was in flight when its engine died waits to be asked again: nothing comes of it meanwhile.
        ledger.listening.note_tick(is_idle=num_in_flight == self.fleet.num_waiting == 0)
        engines = tuple(self._look_at(window, now_s) for window in self.fleet.windows)
        self._last = replace(
            ledger.progress(num_queued=len(self.fleet.queue), num_in_flight=self.fleet.num_documents),
            phase=RunPhase.STOPPING if is_stopping else decide_phase({engine.phase for engine in engines}),
            queue_capacity=self.queue_capacity,
            window_capacity=sum(engine.window_capacity for engine in engines),
            since_result_s=ledger.listening.open_s(),
            slowest=self._find_slowest(),
            trend=self._trend.read(),
            engines=engines,
        )
        return self._last

    def describe(self) -> dict[str, JsonValue]:
        """For the status file and for who asks through the socket; what changes slowly is of the last look."""
        described = describe_counts(self.ledger, len(self.fleet.queue), self.fleet.num_documents)
        last = self._last
        if last is None:
            return described
        described |= describe_progress(last) | {"since_result_s": _round(self.ledger.listening.open_s())}
        engine = described["engine"]
        if isinstance(engine, dict) and len(last.engines) > 1:
            replicas = zip(engine["replicas"], last.engines, strict=True)
            engine["replicas"] = [{**counts, **describe_engine(seen)} for counts, seen in replicas]
        return described

    def _look_at(self, window: Window, now_s: float) -> EngineProgress:
        counts = self.ledger.replicas[window.replica]
        silence = self._silences.setdefault(window.replica, _Silence())
        silence.note(now_s, counts.num_documents, window.num_in_flight)
        return EngineProgress(
            replica=window.replica,
            phase=EnginePhase.GIVEN_UP if counts.is_retired else window.phase,
            num_documents=counts.num_documents,
            num_in_flight=window.num_documents,
            window_capacity=window.capacity,
            num_active=counts.num_active,
            kv_cache_usage=counts.stats.kv_cache_usage if counts.stats else 0.0,
            num_restarts=counts.num_restarts,
            since_result_s=silence.length_s(),
        )

    def _find_slowest(self) -> tuple[ActiveDocument, ...]:
        found = [
            ActiveDocument(
                document_id=flight.request.origin.document_id[:MAX_ID_CHARS],
                in_flight_s=max(0.0, window.engine.now() - flight.submitted_at_s),
                attempt=flight.request.attempt,
                num_chars=flight.request.num_chars,
                replica=window.replica,
            )
            for window in self.fleet.windows
            for flight in window.first_in_flight(NUM_SLOWEST)
        ]
        return tuple(nlargest(NUM_SLOWEST, found, key=lambda document: document.in_flight_s))


def decide_phase(phases: set[EnginePhase]) -> RunPhase:
    """What a run is about that has engines in these phases: what the best of them is."""
    if EnginePhase.READY in phases:
        return RunPhase.RUNNING
    if EnginePhase.LOADING in phases:
        return RunPhase.LOADING
    if phases & {EnginePhase.RESTARTING, EnginePhase.GIVEN_UP}:
        return RunPhase.RESTARTING
    return RunPhase.READING


def describe_counts(ledger: Ledger, num_queued: int, num_in_flight: int) -> dict[str, JsonValue]:
    """What was counted until this moment."""
    stats = ledger.stats
    return {
        "elapsed_s": round(time.monotonic() - ledger.started_s, 3),
        "documents": {
            "read": ledger.num_read,
            "skipped": ledger.num_skipped,
            "to_do": ledger.num_to_do,
            "succeeded": ledger.num_succeeded,
            "failed": ledger.num_failed,
            "failed_by_code": sort_codes(ledger.failed_by_code),
            "is_read_to_end": ledger.is_read_to_end,
            "queued": num_queued,
            "in_flight": num_in_flight,
        },
        "tokens": {"prompt": ledger.prompt_tokens, "cached": ledger.cached_tokens, "output": ledger.output_tokens},
        "engine": {
            "active": stats.num_active if stats else 0,
            "kv_cache_usage": round(stats.kv_cache_usage, 4) if stats else 0.0,
            "preemptions": ledger.num_preemptions,
            "restarts": ledger.num_restarts,
            **ledger.describe_replicas(),
            **ledger.steps.describe(),
        },
    }


def describe_progress(progress: Progress) -> dict[str, JsonValue]:
    """What was seen at the last look, besides the counts."""
    return {
        "phase": progress.phase.value,
        "share_read": round(progress.share_read, 4),
        "tokens_left": _round(progress.tokens_left),
        "time_left_s": _round(progress.time_left_s),
        "throughput": {
            "documents_per_s": _round(progress.documents_per_s),
            "prompt_tokens_per_s": _round(progress.prompt_tokens_per_s),
            "output_tokens_per_s": _round(progress.output_tokens_per_s),
        },
        "queue": {"waiting": progress.num_queued, "capacity": progress.queue_capacity},
        "window": {"in_flight": progress.num_in_flight, "capacity": progress.window_capacity},
        "slowest": [
            asdict(document) | {"in_flight_s": round(document.in_flight_s, 3)} for document in progress.slowest
        ],
        "trend": {
            "stretch_s": progress.trend.stretch_s,
            "documents": progress.trend.num_documents,
            "prompt_tokens": progress.trend.num_prompt_tokens,
            "output_tokens": progress.trend.num_output_tokens,
        },
        "memory_bytes": {
            "runner": progress.runner_memory_bytes,
            "engine": progress.engine_memory_bytes,
            "gpu": progress.gpu_memory_bytes,
        },
    }


def describe_engine(engine: EngineProgress) -> dict[str, JsonValue]:
    """What was seen of one engine of several, besides its counts."""
    return {
        "phase": engine.phase.value,
        "in_flight": engine.num_in_flight,
        "window_capacity": engine.window_capacity,
        "kv_cache_usage": round(engine.kv_cache_usage, 4),
        "since_result_s": _round(engine.since_result_s),
    }


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
