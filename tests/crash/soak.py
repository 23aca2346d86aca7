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
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from tests.conftest import JobFolder
from tests.crash.disturbance import choose_disturbance, disturb
from tests.crash.evidence import count_differences
from tests.crash.jobs import Job, SimulatedJob, VllmJob
from tests.crash.tally import Tally
from tests.crash.trial import PlainRunFailedError, Trial

NUM_KILLS = {"simulated": 300, "vllm": 12}
_KILLS_PER_ROUND = 12
_INTERRUPTED = 130


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
            if self._loses_log and self._tally.num_faults:
                return

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
    parser.add_argument("--lose-log", action="store_true", help="delete the log after each kill, until it is found out")
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
