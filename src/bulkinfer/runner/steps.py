"""How busy the engine was: its steps, how many of them were full, and how long it waited for more."""

from dataclasses import dataclass

from bulkinfer.records import EngineStats, JsonValue


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Of one life of the engine, or of several."""

    num_steps: int = 0
    num_full_steps: int = 0
    num_fed_steps: int = 0
    """Steps before the tail; see `EngineStats`."""
    idle_s: float = 0.0

    def __add__(self, others: "StepCounts") -> "StepCounts":
        """These and others."""
        return StepCounts(
            self.num_steps + others.num_steps,
            self.num_full_steps + others.num_full_steps,
            self.num_fed_steps + others.num_fed_steps,
            self.idle_s + others.idle_s,
        )

    def plus(self, stats: EngineStats) -> "StepCounts":
        """These, and those of a life that goes on."""
        return self + StepCounts(stats.num_steps, stats.num_full_steps, stats.num_fed_steps, stats.idle_s)

    def describe(self) -> dict[str, JsonValue]:
        """For the summary and the status file. The share is None where no step could have been full."""
        share = round(self.num_full_steps / self.num_fed_steps, 4) if self.num_fed_steps else None
        return {
            "steps": self.num_steps,
            "full_steps": self.num_full_steps,
            "full_step_share": share,
            "idle_s": round(self.idle_s, 3),
        }


NO_STEPS = StepCounts()
