"""`make soak`: kill runs hundreds of times, at seeded random times and points, and count what is wrong: nothing may be.

Each round is a job of some hundred or thousand documents, with duplicates and bad lines. It is killed again and again,
run to its end plainly, and compared with a run that nobody disturbed.
"""

import argparse
import random
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import orjson

from bulkinfer.errors import ExitCode
from tests.conftest import JobFolder
from tests.crash.disturbance import Disturbed, Pace, choose_disturbance, disturb
from tests.crash.evidence import Findings, count_differences
from tests.crash.points import Act
from tests.crash.trial import BAD_LINES, PlainRunFailedError, Trial, write_documents, write_simulated_job
from tests.engine_support import MODEL_PATH, ROOT

NUM_KILLS = {"simulated": 300, "vllm": 12}
_KILLS_PER_ROUND = 12
_INTERRUPTED = 130


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


class SimulatedJob:
    """Fast, and answers depend on the document alone: all rows must be those of an undisturbed run."""

    pace = Pace(start_s=1.0, work_s=0.8, restart_s=2.0)
    has_same_texts = True

    def __init__(self, dice: random.Random) -> None:
        self._num_documents = dice.choice((300, 600, 1200, 2000))
        self._max_tokens = dice.choice((16, 16, 400))

    def write_input(self, folder: JobFolder) -> None:
        write_documents(folder, self._num_documents)

    def write_job(self, folder: JobFolder, num_left: int, work_s: float) -> None:
        """So slow that the documents left are work for that long."""
        num_steps = max(1, num_left) * self._max_tokens / 2 / 8
        write_simulated_job(folder, seconds_per_token=work_s / num_steps, max_tokens=self._max_tokens)


class VllmJob:
    """The demo model. An answer's text may depend on what runs beside it; that each document has one may not."""

    pace = Pace(start_s=12.0, work_s=2.5, restart_s=14.0)
    has_same_texts = False

    def __init__(self, dice: random.Random) -> None:
        tickets = (ROOT / "sample_data" / "tickets.jsonl").read_bytes().splitlines()
        bodies = [str(orjson.loads(line)["body"])[:100] for line in tickets[:150]]
        documents = [{"id": f"{number}", "body": f"{number}. {body}"} for number, body in enumerate(bodies)]
        self._lines = [orjson.dumps(document) for document in documents + dice.sample(documents, 15)]
        for line in BAD_LINES:
            self._lines.insert(dice.randrange(len(self._lines)), line)

    def write_input(self, folder: JobFolder) -> None:
        folder.input.write_bytes(b"\n".join(self._lines) + b"\n")

    def write_job(self, folder: JobFolder, num_left: int, work_s: float) -> None:
        """As fast as it is."""
        folder.write_job(
            model={"path": str(MODEL_PATH)},
            sampling={"temperature": 0, "max_tokens": 8, "stop": [","]},
            limits={"max_concurrency": 8, "max_context_tokens": 2048, "max_failures": "99%"},
            engine={"kind": "vllm", "vllm": {"kv_cache_memory_bytes": 256 << 20}},
        )


Job = SimulatedJob | VllmJob


class Soak:
    """Rounds until there were enough kills."""

    def __init__(self, kind: str, dice: random.Random, num_kills: int, tally: Tally, *, loses_log: bool) -> None:
        self._kind = kind
        self._dice = dice
        self._num_kills = num_kills
        self._tally = tally
        self._loses_log = loses_log
        self._began_s = time.monotonic()

    def run(self, folder: Path) -> None:
        """Everything happens in that folder."""
        while (num_left := self._num_kills - self._tally.kills.total()) > 0:
            self._tally.num_rounds += 1
            with TemporaryDirectory(dir=folder) as round_folder:
                self._run_round(Path(round_folder), min(num_left, _KILLS_PER_ROUND))
            self._say()

    def _run_round(self, folder: Path, num_kills: int) -> None:
        job: Job = VllmJob(self._dice) if self._kind == "vllm" else SimulatedJob(self._dice)
        undisturbed = self._make_trial(job, folder / "undisturbed")
        undisturbed.complete()
        trial = self._make_trial(job, folder / "killed")
        num_different = len(undisturbed.snapshot.documents)
        self._kill(job, trial, num_different, num_kills)
        job.write_job(trial.folder, 1, 0)
        try:
            self._tally.note_findings(trial.complete())
        except PlainRunFailedError as error:
            self._tally.num_stuck += 1
            print(error, flush=True)
            return
        databases = trial.folder.database, undisturbed.folder.database
        self._tally.num_skipped += sum(count_differences(*databases, same_texts=job.has_same_texts).values())

    def _kill(self, job: Job, trial: Trial, num_different: int, num_kills: int) -> None:
        until = self._tally.kills.total() + num_kills
        while (num_left := until - self._tally.kills.total()) > 0:
            job.write_job(trial.folder, num_different - len(trial.snapshot.documents), (1 + num_left) * 0.4)
            chosen = choose_disturbance(self._dice, job.pace)
            done = disturb(trial, chosen, job.pace, loses_log=self._loses_log)
            self._tally.note(done, len(trial.snapshot.documents), num_different)
            if not done.is_as_expected:
                print(f"a run ended with {done.returncode}: {done.errors}", flush=True)
                return
            if self._kind == "vllm":
                self._say()
            if len(trial.snapshot.documents) == num_different and not done.kills:
                return

    @staticmethod
    def _make_trial(job: Job, path: Path) -> Trial:
        path.mkdir()
        folder = JobFolder(path)
        job.write_input(folder)
        job.write_job(folder, 1, 0)
        return Trial(folder)

    def _say(self) -> None:
        tally = self._tally
        print(
            f"{time.monotonic() - self._began_s:6.0f} s  {self._kind}: {tally.kills.total():,} of {self._num_kills:,} "
            f"kills, {tally.num_rounds:,} jobs, {tally.num_acknowledged:,} acknowledged, {tally.num_faults:,} faults",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 when anything was lost, doubled, changed, skipped, left running or did not go on; 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9))
    parser.add_argument("--kills", type=int, help="of each engine; default: 300 of the simulated one, 12 of vLLM")
    parser.add_argument("--engine", choices=("both", "simulated", "vllm"), default="both")
    parser.add_argument("--lose-log", action="store_true", help="delete the log after each kill: see that it is found")
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    print(f"SEED={asked.seed}", flush=True)
    kinds = ("simulated", "vllm") if asked.engine == "both" else (asked.engine,)
    exit_codes = []
    for kind in kinds:
        exit_codes.append(_soak(kind, asked.seed, asked.kills or NUM_KILLS[kind], loses_log=asked.lose_log))
        if exit_codes[-1] == _INTERRUPTED:
            break
    return max(exit_codes)


def _soak(kind: str, seed: int, num_kills: int, *, loses_log: bool) -> int:
    tally = Tally()
    exit_code = _INTERRUPTED
    try:
        with TemporaryDirectory(prefix="soak.") as folder:
            Soak(kind, random.Random(seed), num_kills, tally, loses_log=loses_log).run(Path(folder))
        exit_code = int(tally.num_faults > 0)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    print(f"\n{kind}, SEED={seed}\n{tally.describe()}\n", flush=True)
    return exit_code


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
