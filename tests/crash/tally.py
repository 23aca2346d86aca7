"""What a soak counts, and the table at its end."""

from collections import Counter
from dataclasses import dataclass, field

from bulkinfer.errors import ExitCode
from tests.crash.disturbance import Disturbed
from tests.crash.evidence import Findings
from tests.crash.points import Act


@dataclass(slots=True)
class Tally:
    """What was done, and what was found."""

    num_rounds: int = 0
    num_runs: int = 0
    num_at_points: int = 0
    num_drains: int = 0
    num_stops: int = 0
    num_unfinished: int = 0
    """Kills that left documents without an outcome."""
    num_between: int = 0
    """Those of them that left documents with an outcome too."""
    num_acknowledged: int = 0
    num_lost: int = 0
    num_doubled: int = 0
    num_changed: int = 0
    num_repeated: int = 0
    num_uncounted: int = 0
    num_skipped: int = 0
    num_orphans: int = 0
    num_stuck: int = 0
    kills: Counter[Act] = field(default_factory=Counter)

    @property
    def num_faults(self) -> int:
        """All that must be 0."""
        found = self.num_lost + self.num_doubled + self.num_changed + self.num_skipped
        return found + self.num_repeated + self.num_uncounted + self.num_orphans + self.num_stuck

    def note(self, done: Disturbed, num_with_outcome: int, num_different: int) -> None:
        """Count one disturbed run."""
        self.num_runs += 1
        self.kills += done.kills
        self.num_at_points += done.num_at_points
        self.num_drains += done.num_drains
        self.num_stops += done.num_stops
        self.num_acknowledged += done.num_acknowledged
        if num_with_outcome < num_different:
            self.num_unfinished += done.kills.total()
            self.num_between += done.kills.total() if num_with_outcome else 0
        if done.returncode == ExitCode.OK:
            self.num_skipped += num_different - num_with_outcome
        self.num_orphans += done.num_orphans
        self.num_stuck += not done.is_as_expected
        self.note_findings(done.findings)

    def note_findings(self, findings: Findings) -> None:
        """Count what is wrong in a database."""
        self.num_lost += len(findings.lost)
        self.num_doubled += len(findings.doubled)
        self.num_changed += len(findings.changed)
        self.num_repeated += len(findings.repeated)
        self.num_uncounted += findings.num_uncounted

    def describe(self) -> str:
        """A table."""
        num_kills = self.kills.total()
        lines = (
            ("killed: runner alone", self.kills[Act.KILL_RUNNER]),
            ("killed: engine alone", self.kills[Act.KILL_ENGINE]),
            ("killed: both", self.kills[Act.KILL_BOTH]),
            ("killed: all", num_kills),
            ("  of these at a named point", self.num_at_points),
            ("  of these with work unfinished", self.num_unfinished),
            ("  of these with some done, some not", self.num_between),
            ("jobs", self.num_rounds),
            ("runs started to be killed", self.num_runs),
            ("drains begun", self.num_drains),
            ("SIGSTOP", self.num_stops),
            ("acknowledged outcomes", self.num_acknowledged),
            ("runs that did not go on", self.num_stuck),
            ("asked again", self.num_repeated),
            ("parts of commits", self.num_uncounted),
            ("lost", self.num_lost),
            ("doubled", self.num_doubled),
            ("changed", self.num_changed),
            ("skipped or other rows than undisturbed", self.num_skipped),
            ("orphans", self.num_orphans),
        )
        return "\n".join(f"{name:<40} {count:>8,}" for name, count in lines)
