"""Killed at each named point, a run leaves no process, has lost and doubled nothing, and a plain run goes on."""

import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from bulkinfer.errors import ExitCode
from bulkinfer.store import Reader
from bulkinfer.store.runs import TICK_NS
from tests.conftest import JobFolder
from tests.crash.evidence import Findings, count_differences
from tests.crash.points import PLACES, Act, Orders, Point, When
from tests.crash.trial import BAD_LINES, LIMIT_S, Trial, write_documents, write_simulated_job

NUM_DIFFERENT = 240
NUM_ROWS = NUM_DIFFERENT + NUM_DIFFERENT // 10 + len(BAD_LINES)
KILLED = -signal.SIGKILL
RUNNER, ENGINE, BOTH = Act.KILL_RUNNER, Act.KILL_ENGINE, Act.KILL_BOTH

# 1 to 8 tokens a document, 8 documents at a time: about half a second, in seven commits.
SLOW_S = 0.004
NOTHING = Findings()


@dataclass(frozen=True)
class Case:
    """Points that are reached in one run, and how it must end."""

    points: tuple[Point, ...]
    returncode: int = KILLED

    @property
    def name(self) -> str:
        names = {place: name for name, place in PLACES.items()}
        return ", ".join(
            f"{point.act}: {names[point.place]}"
            + f" {point.call}" * (point.call > 1)
            + f", change {point.num_changes}" * (point.place.when is When.DURING)
            for point in self.points
        )


def at(name: str, call: int = 1, act: Act = RUNNER, *, num_changes: int = 1) -> Point:
    return Point(PLACES[name], call, act, num_changes)


def kill(name: str, call: int = 1, act: Act = RUNNER, returncode: int = KILLED, *, num_changes: int = 1) -> Case:
    return Case((at(name, call, act, num_changes=num_changes),), returncode)


def drain(name: str, act: Act = RUNNER, returncode: int = KILLED, call: int = 1, *, num_changes: int = 1) -> Case:
    """A SIGTERM after the first commit, then the kill."""
    return Case(
        (at("acknowledged", act=Act.TERMINATE), at(name, call, act, num_changes=num_changes)),
        returncode,
    )


START_UP = (
    kill("before the lock"),
    kill("locked, holder not written"),
    kill("lock taken"),
    kill("database file made"),
    kill("tables made, not committed"),
    kill("schema before its commit"),
    kill("schema committed"),
    kill("in the schema's checkpoint", num_changes=1),
    kill("in the schema's checkpoint", num_changes=2),
    kill("schema checkpointed"),
    kill("run recorded"),
    kill("engine's process started"),
    kill("engine's process started", act=ENGINE, returncode=ExitCode.OK),
    kill("engine told to load", act=BOTH),
    kill("engine ready"),
    kill("engine ready", act=ENGINE, returncode=ExitCode.OK),
    kill("engine ready", act=BOTH),
)
# The first transaction records the run, the second is the first commit. Its inserts are rows, results, failures.
COMMIT = (
    kill("before begin", 3),
    kill("after begin", 2),
    kill("part of a commit inserted", 1),
    kill("part of a commit inserted", 5),
    kill("part of a commit inserted", 6),
    kill("end of a file inserted"),
    kill("commit record written", 2),
    kill("commit record written", 2, BOTH),
    kill("while it commits", 4),
    kill("committed", 3),
    kill("committed", 3, ENGINE, ExitCode.OK),
    kill("acknowledged", 2),
    kill("acknowledged", 2, BOTH),
    kill("status file not renamed", 2),
    kill("status file written", 2),
)
CHECKPOINT = (
    kill("before the checkpoint"),
    kill("in the checkpoint", num_changes=1),
    kill("in the checkpoint", num_changes=2),
    kill("in the checkpoint", num_changes=3),
    kill("after the checkpoint"),
)
# After a run that was killed with its commits still in the log.
REOPENING = (
    kill("database opened"),
    kill("run recorded"),
    kill("after begin", 1),
)
DRAIN = (
    drain("signal noted"),
    drain("signal noted", BOTH),
    drain("signal noted", ENGINE, ExitCode.SIGTERM),
    drain("an outcome noted"),
    drain("before the end is recorded"),
    drain("end written, not committed"),
    drain("end recorded"),
    drain("after the checkpoint"),
    drain("before the lock is released"),
    drain("lock released"),
)


@dataclass(frozen=True)
class Job:
    """What is run, and where an undisturbed run of it stands."""

    max_tokens: int
    output_tokens: int | None
    undisturbed: Path

    def write(self, folder: JobFolder, seconds_per_token: float) -> None:
        write_simulated_job(
            folder, seconds_per_token=seconds_per_token, max_tokens=self.max_tokens, output_tokens=self.output_tokens
        )


def make_trial(path: Path, job: Job, seconds_per_token: float) -> Trial:
    path.mkdir()
    folder = JobFolder(path)
    write_documents(folder, NUM_DIFFERENT)
    job.write(folder, seconds_per_token)
    return Trial(folder)


def make_job(path: Path, max_tokens: int, output_tokens: int | None = None) -> Job:
    job = Job(max_tokens, output_tokens, path / "undisturbed" / "out.duckdb")
    undisturbed = make_trial(path / "undisturbed", job, 0)
    assert undisturbed.complete() == NOTHING
    assert len(undisturbed.snapshot.results) > NUM_DIFFERENT * 0.8
    assert len(undisturbed.snapshot.failures) == 5 + 2 * NUM_DIFFERENT // 20
    return job


@pytest.fixture(scope="module")
def short_answers(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return make_job(tmp_path_factory.mktemp("short"), 8)


@pytest.fixture(scope="module")
def long_answers(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """About 3 MB: a checkpoint takes long enough to be killed in."""
    return make_job(tmp_path_factory.mktemp("long"), 4000, 3000)


def by_name(cases: tuple[Case, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases])


@by_name(START_UP + COMMIT + DRAIN)
def test_killed_at_a_point_nothing_is_lost(case: Case, tmp_path: Path, short_answers: Job) -> None:
    trial = make_trial(tmp_path / "killed", short_answers, SLOW_S)
    run_killed(trial, case)
    if case.returncode == ExitCode.OK:
        check_same(trial, short_answers)
    else:
        assert len(trial.snapshot.documents) < NUM_DIFFERENT, "killed in the middle of the work"
    complete(trial, short_answers, in_process=True)


@by_name(REOPENING)
def test_killed_again_while_it_resumes_nothing_is_lost(case: Case, tmp_path: Path, short_answers: Job) -> None:
    trial = make_trial(tmp_path / "killed", short_answers, SLOW_S)
    run_killed(trial, kill("acknowledged", 3))
    assert 80 <= len(trial.snapshot.documents) < NUM_DIFFERENT
    run_killed(trial, case)
    complete(trial, short_answers, in_process=True)


def test_killed_between_two_commits_of_a_file_its_rows_are_known_and_its_end_is_not(
    tmp_path: Path, short_answers: Job
) -> None:
    """Killed again among rows that are known, and again where the end is written but not committed."""
    trial = make_trial(tmp_path / "killed", short_answers, SLOW_S)
    known = [0]
    for case in (kill("acknowledged"), kill("acknowledged"), kill("end of a file inserted")):
        run_killed(trial, case)
        num_rows, num_ended = read_scan(trial)
        known.append(num_rows)
        assert num_ended == 0
    assert known == sorted(known)
    assert 0 < known[1] < known[2] < NUM_ROWS
    complete(trial, short_answers, in_process=True)
    assert read_scan(trial) == (NUM_ROWS, 1)


def test_killed_among_known_rows_of_a_file_that_was_read_to_its_end_nothing_is_lost(
    tmp_path: Path, short_answers: Job
) -> None:
    trial = make_trial(tmp_path / "killed", short_answers, SLOW_S)
    ended = at("end of a file inserted", act=Act.TERMINATE)
    run_killed(trial, Case((ended, at("acknowledged"))), shard_size=1000)
    for _ in range(2):
        assert read_scan(trial) == (NUM_ROWS, 1)
        num_done = len(trial.snapshot.documents)
        assert 0 < num_done < NUM_DIFFERENT
        run_killed(trial, kill("acknowledged"))
        assert num_done < len(trial.snapshot.documents) < NUM_DIFFERENT
    complete(trial, short_answers, in_process=True)
    assert read_scan(trial) == (NUM_ROWS, 1)


def read_scan(trial: Trial) -> tuple[int, int]:
    """Of the only scan: rows, and whether it is at its end. Its file is known by its times."""
    with Reader.open(trial.folder.database) as reader:
        ((num_rows, num_ended, age_ns),) = reader.query(
            """
            select (select count(*) from document_rows), (select count(*) from scan_ends),
                epoch_ns(created_at) - greatest(mtime_ns, ctime_ns)
            from scans
            """
        ).rows
    assert isinstance(num_rows, int)
    assert isinstance(num_ended, int)
    assert isinstance(age_ns, int)
    assert age_ns > TICK_NS, "the scan would be read anew"
    return num_rows, num_ended


@by_name(CHECKPOINT)
def test_killed_around_the_last_checkpoint_nothing_is_lost(case: Case, tmp_path: Path, long_answers: Job) -> None:
    trial = make_trial(tmp_path / "killed", long_answers, 0)
    run_killed(trial, case)
    assert len(trial.snapshot.results) > NUM_DIFFERENT * 0.8
    complete(trial, long_answers)


def test_killed_while_it_opens_what_a_killed_checkpoint_left_nothing_is_lost(tmp_path: Path, long_answers: Job) -> None:
    """DuckDB marks a checkpoint's begin in the log, and takes the mark away when it opens a database with one."""
    trial = make_trial(tmp_path / "killed", long_answers, 0)
    run_killed(trial, kill("in the checkpoint", num_changes=2))
    run_killed(trial, kill("while the database is opened"))
    complete(trial, long_answers)


@pytest.mark.parametrize("num_changes", [1, 3, 5])
def test_killed_in_an_automatic_checkpoint_nothing_is_lost(num_changes: int, tmp_path: Path, long_answers: Job) -> None:
    """It comes with the commit that makes the log longer than its limit."""
    trial = make_trial(tmp_path / "killed", long_answers, 0.00001)
    case = kill("while it commits", 4, num_changes=num_changes)
    run_killed(trial, case, autocheckpoint="64KB")
    complete(trial, long_answers)


def run_killed(trial: Trial, case: Case, *, autocheckpoint: str = "256MB", shard_size: int = 64) -> None:
    killed = trial.start(Orders(case.points, autocheckpoint=autocheckpoint, shard_size=shard_size))
    try:
        assert killed.process.wait(LIMIT_S) == case.returncode, killed.read_errors()
        findings, living = trial.check(killed)
    finally:
        killed.end()
    journal = killed.read_journal()
    assert journal.reached == tuple(point.place.target for point in case.points)
    assert len(journal.killed) == (case.points[-1].act is not RUNNER)
    assert (findings, living) == (NOTHING, [])


def complete(trial: Trial, job: Job, *, in_process: bool = False) -> None:
    """The next run, plain and fast, goes on without more ado, and has at its end what an undisturbed one has.

    In this very process where there are many cases: a process of its own takes longer than all the rest.
    """
    job.write(trial.folder, 0)
    assert trial.complete(in_process=in_process) == NOTHING
    check_same(trial, job)


def check_same(trial: Trial, job: Job) -> None:
    differences = count_differences(trial.folder.database, job.undisturbed)
    assert differences == dict.fromkeys(("documents", "answers", "results", "failures"), 0)
