"""What the ledger counts of engines: each by itself, and all together."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from bulkinfer.records import Completion, EngineReady, EngineStats, JsonValue
from bulkinfer.runner.steps import NO_STEPS, StepCounts


@dataclass(slots=True)
class ReplicaCounts:
    """One engine, over all its lives. An engine's own counters begin anew with each."""

    num_documents: int = 0
    """That it answered, whatever became of the answer."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    num_restarts: int = 0
    start_s: float = 0.0
    is_ready: bool = False
    is_retired: bool = False
    max_concurrency: int = 0
    """Sequences that it runs at once, as it said last; 0 before it was ready."""
    peak_active: int = 0
    peak_memory_bytes: int = 0
    stats: EngineStats | None = None
    """The last reading of the engine that lives now."""
    _steps_before: StepCounts = NO_STEPS
    _preemptions_before: int = 0
    _prompt_tokens_before: int = 0
    _output_tokens_before: int = 0

    @property
    def num_active(self) -> int:
        """Sequences that it ran at the last reading."""
        stats = self.stats  # read once, here and below: the store's thread asks while the loop's notes a death
        return stats.num_active if stats else 0

    @property
    def num_preemptions(self) -> int:
        """In all its lives."""
        stats = self.stats
        return self._preemptions_before + (stats.num_preemptions if stats else 0)

    @property
    def steps(self) -> StepCounts:
        """In all its lives."""
        stats = self.stats
        return self._steps_before.plus(stats) if stats else self._steps_before

    def note_death(self) -> None:
        """The engine died; the next one counts from zero."""
        self._preemptions_before, self._steps_before = self.num_preemptions, self.steps
        # What ran in the dead engine is lost, and computed again.
        self._prompt_tokens_before, self._output_tokens_before = self.prompt_tokens, self.output_tokens
        self.stats = None
        self.is_ready = False

    def note_stats(self, stats: EngineStats) -> None:
        """A reading of the engine."""
        self.stats = stats
        self.peak_active = max(self.peak_active, stats.num_active, stats.peak_active)
        self.peak_memory_bytes = max(self.peak_memory_bytes, stats.memory_bytes)

    def note_completion(self, completion: Completion) -> None:
        """It answered."""
        self.num_documents += 1
        self.prompt_tokens += completion.prompt_tokens
        self.output_tokens += completion.output_tokens

    def tokens_spent(self) -> tuple[int, int]:
        """Prompt and output tokens that it has computed: for answers, and for sequences that still run.

        The engine's reading is up to half a second old, and starts anew with an engine: answers may be ahead of it.
        """
        stats = self.stats
        if stats is None:
            return self.prompt_tokens, self.output_tokens
        return (
            max(self.prompt_tokens, self._prompt_tokens_before + stats.num_prompt_tokens),
            max(self.output_tokens, self._output_tokens_before + stats.num_output_tokens),
        )

    def describe(self) -> dict[str, JsonValue]:
        """For the status file and the summary."""
        return {
            "documents": self.num_documents,
            "active": self.num_active,
            "peak_active": self.peak_active,
            "max_concurrency": self.max_concurrency,
            "preemptions": self.num_preemptions,
            "restarts": self.num_restarts,
            "is_retired": self.is_retired,
        }


@dataclass(slots=True)
class EngineCounts:
    """All engines of a run."""

    replicas: tuple[ReplicaCounts, ...] = field(init=False, default=())
    peak_active: int = field(init=False, default=0)
    peak_kv_cache_usage: float = field(init=False, default=0.0)
    """Of any of them."""
    peak_engine_memory_bytes: int = field(init=False, default=0)
    _num_active: int = field(init=False, default=0)

    @property
    def stats(self) -> EngineStats | None:
        """The last readings of all engines together; None when there is none."""
        readings = [replica.stats for replica in self.replicas]
        return combine_stats([stats for stats in readings if stats is not None])

    @property
    def num_restarts(self) -> int:
        """Starts of engines that had died."""
        return sum(replica.num_restarts for replica in self.replicas)

    @property
    def num_preemptions(self) -> int:
        """Of all engines in all their lives."""
        return sum(replica.num_preemptions for replica in self.replicas)

    @property
    def steps(self) -> StepCounts:
        """Of all engines in all their lives."""
        return sum((replica.steps for replica in self.replicas), NO_STEPS)

    @property
    def engine_start_s(self) -> float:
        """How long loading took, restarts included; of engines that load side by side, the slowest."""
        return max(replica.start_s for replica in self.replicas)

    def note_start(self, *, is_again: bool, replica: int = 0) -> None:
        """An engine is being started."""
        self.replicas[replica].num_restarts += is_again

    def note_ready(self, ready: EngineReady, replica: int = 0) -> None:
        """An engine is loaded, for the first time or again."""
        self.replicas[replica].start_s += ready.start_s
        self.replicas[replica].is_ready = True

    def note_death(self, replica: int = 0) -> None:
        """An engine died; the next one counts from zero."""
        self._num_active -= self.replicas[replica].num_active
        self.replicas[replica].note_death()

    def note_retired(self, replica: int) -> None:
        """An engine is closed, and not started any more."""
        self.note_death(replica)
        self.replicas[replica].is_retired = True

    def note_stats(self, stats: EngineStats, replica: int = 0) -> None:
        """A reading of an engine."""
        counts = self.replicas[replica]
        self._num_active += stats.num_active - counts.num_active
        self.peak_engine_memory_bytes += max(0, stats.memory_bytes - counts.peak_memory_bytes)
        counts.note_stats(stats)
        # Those of the others are from about the same time.
        own_peak = max(stats.num_active, stats.peak_active)
        self.peak_active = max(self.peak_active, self._num_active - stats.num_active + own_peak)
        self.peak_kv_cache_usage = max(self.peak_kv_cache_usage, stats.kv_cache_usage, stats.peak_kv_cache_usage)

    def tokens_spent(self) -> tuple[int, int]:
        """Prompt and output tokens that the engines have computed."""
        spent = [replica.tokens_spent() for replica in self.replicas]
        return sum(prompt for prompt, _ in spent), sum(output for _, output in spent)

    def describe_replicas(self) -> dict[str, JsonValue]:
        """Each engine by itself, where there are several."""
        if len(self.replicas) == 1:
            return {}
        return {"replicas": [replica.describe() for replica in self.replicas]}


def combine_stats(readings: Sequence[EngineStats]) -> EngineStats | None:
    """One reading of several engines: sums, the mean use of their KV caches, the highest peak of it; None of none."""
    if len(readings) < 2:
        return readings[0] if readings else None
    summed = {one.name: sum(getattr(stats, one.name) for stats in readings) for one in fields(EngineStats)}
    summed["kv_cache_usage"] /= len(readings)
    summed["peak_kv_cache_usage"] = max(stats.peak_kv_cache_usage for stats in readings)
    return EngineStats(**summed)
