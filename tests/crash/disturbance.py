"""One run of the soak: what is done to it, chosen by dice, and how it is done."""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field

import psutil

from bulkinfer.errors import ExitCode
from tests.crash.evidence import Findings, find_living
from tests.crash.points import COMMIT, END, PLACES, START_UP, Act, Orders, Point
from tests.crash.trial import LIMIT_S, Killed, Trial

_VICTIMS = (Act.KILL_RUNNER, Act.KILL_ENGINE, Act.KILL_BOTH)
_KILLED = -signal.SIGKILL
_MAX_CALLS = 8
_LOOK_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class Pace:
    """How long an engine takes for what, in seconds at the most."""

    start_s: float
    """To the first answers."""
    work_s: float
    """What a run may work before it is killed."""
    restart_s: float
    """From the death of an engine to answers of the next."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What is done to one run. Whatever is left of it at the end is killed."""

    orders: Orders
    """With a point that the run kills itself at, or none."""
    victim: Act
    is_from_work: bool
    """The time counts from the first acknowledged commit, not from the start of the process."""
    after_s: float
    stopped: Act | None
    """Who is stopped by SIGSTOP for `stop_s` before the kill."""
    stop_s: float
    is_continued: bool
    """Whether it goes on before the kill."""
    drain_s: float | None
    """From a SIGTERM to the kill; None: no SIGTERM."""
    then_s: float
    """From the death of an engine alone to that of its runner."""


@dataclass(slots=True)
class Disturbed:
    """What was done, and what was found."""

    kills: Counter[Act] = field(default_factory=Counter)
    num_at_points: int = 0
    num_drains: int = 0
    num_stops: int = 0
    num_acknowledged: int = 0
    returncode: int = 0
    errors: str = ""
    findings: Findings = field(default_factory=Findings)
    num_orphans: int = 0

    @property
    def is_as_expected(self) -> bool:
        """Whether it was killed, or ended as it may: a SIGTERM before a run listens ends it without a word."""
        allowed: set[int] = {_KILLED, ExitCode.OK}
        if self.num_drains:
            allowed |= {ExitCode.SIGTERM, -signal.SIGTERM}
        return self.returncode in allowed


def choose_disturbance(dice: random.Random, pace: Pace) -> Disturbance:
    """Half of the runs are killed at a named point, if they come there in time, half at a time.

    Some drain before, some are stopped for a moment.
    """
    victim = dice.choice(_VICTIMS)
    is_at_point = dice.random() < 0.5
    is_from_work = dice.random() < 0.6
    return Disturbance(
        orders=Orders(
            points=_choose_points(dice, victim) if is_at_point else (),
            commit_size=dice.choice((8, 40, 200)),
            shard_size=dice.choice((30, 200, 65_536)),
            commit_wait_s=dice.choice((0.05, 0.2, 2.0)),
            autocheckpoint=dice.choice(("256MB", "256MB", "16KB", "64KB")),
        ),
        victim=victim,
        is_from_work=is_from_work or is_at_point,
        after_s=2 * pace.work_s if is_at_point else dice.uniform(0, pace.work_s if is_from_work else pace.start_s),
        stopped=dice.choice((None, None, None, Act.KILL_RUNNER, Act.KILL_ENGINE)),
        stop_s=dice.uniform(0.02, 0.3),
        is_continued=dice.random() < 0.6,
        drain_s=dice.uniform(0, 0.3) if dice.random() < 0.15 else None,
        then_s=dice.uniform(0, pace.restart_s),
    )


def disturb(trial: Trial, disturbance: Disturbance, pace: Pace, *, loses_log: bool) -> Disturbed:
    """Start a run, do all that, and look at what it left. `loses_log` breaks the database on purpose."""
    done = Disturbed()
    run = trial.start(disturbance.orders)
    try:
        _carry_out(run, disturbance, pace, done)
        done.returncode = run.process.wait(LIMIT_S)
        _count_own_kills(run, done)
        if loses_log:
            trial.folder.database.with_name(f"{trial.folder.database.name}.wal").unlink(missing_ok=True)
        done.findings, living = trial.check(run)
        done.num_orphans = len(living)
        done.errors = run.read_errors()
    finally:
        run.end()
    return done


def _choose_points(dice: random.Random, victim: Act) -> tuple[Point, ...]:
    """A place at which the victim dies; one of the end of a run after a SIGTERM, for else it would not be reached."""
    name = dice.choice(list(dice.choice((START_UP, COMMIT, COMMIT, END))))
    num_calls = dice.randint(1, _MAX_CALLS) if name in COMMIT else 1
    kill = Point(PLACES[name], num_calls, victim, dice.randint(1, 5))
    if name in END or dice.random() < 0.1:
        return (Point(PLACES["acknowledged"], dice.randint(1, 3), Act.TERMINATE), kill)
    return (kill,)


def _carry_out(run: Killed, disturbance: Disturbance, pace: Pace, done: Disturbed) -> None:
    if disturbance.is_from_work:
        _wait_for_work(run, pace)
    _let_run(run, disturbance.after_s)
    if disturbance.stopped is not None:
        _stop(run, disturbance, done)
    if disturbance.drain_s is not None and _is_running(run):
        run.process.terminate()
        done.num_drains += 1
        _let_run(run, disturbance.drain_s)
    if not _is_running(run):
        return
    engines = _find_engines(run)
    if disturbance.victim is not Act.KILL_RUNNER and engines:
        for engine in engines:
            _send(engine, signal.SIGKILL)
        if disturbance.victim is Act.KILL_ENGINE:
            done.kills[Act.KILL_ENGINE] += 1
            _send(run.process.pid, signal.SIGCONT)
            _let_run(run, disturbance.then_s)
            engines = []
    if _is_running(run):
        run.process.kill()
        if run.process.wait(LIMIT_S) == _KILLED:
            is_both = disturbance.victim is Act.KILL_BOTH and engines
            done.kills[Act.KILL_BOTH if is_both else Act.KILL_RUNNER] += 1


def _count_own_kills(run: Killed, done: Disturbed) -> None:
    """Those at a named point, by the run itself."""
    journal = run.read_journal()
    done.num_acknowledged = len(journal.acknowledged)
    points = run.orders.points[: len(journal.reached)]
    done.num_drains += sum(point.act is Act.TERMINATE for point in points)
    for point in points:
        has_engine = bool(journal.killed)
        match point.act:
            case Act.KILL_ENGINE if has_engine:
                done.kills[Act.KILL_ENGINE] += 1
                done.num_at_points += 1
            case Act.KILL_RUNNER | Act.KILL_BOTH:
                done.kills[point.act if has_engine else Act.KILL_RUNNER] += 1
                done.num_at_points += 1


def _stop(run: Killed, disturbance: Disturbance, done: Disturbed) -> None:
    """Stop the runner or its engine for a moment."""
    pids = [run.process.pid] if disturbance.stopped is Act.KILL_RUNNER else _find_engines(run)
    if not _is_running(run) or not pids:
        return
    done.num_stops += 1
    for pid in pids:
        _send(pid, signal.SIGSTOP)
    _let_run(run, disturbance.stop_s)
    if disturbance.is_continued:
        for pid in pids:
            _send(pid, signal.SIGCONT)


def _wait_for_work(run: Killed, pace: Pace) -> None:
    """Until the first commit is acknowledged, or the run has ended; not for ever, for it may have nothing to do."""
    until_s = time.monotonic() + 10 * pace.start_s
    while _is_running(run) and not run.read_journal().acknowledged and time.monotonic() < until_s:
        _let_run(run, _LOOK_EVERY_S)


def _let_run(run: Killed, limit_s: float) -> None:
    """So long, or until it has ended."""
    try:
        run.process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return


def _is_running(run: Killed) -> bool:
    return run.process.poll() is None


def _find_engines(run: Killed) -> list[int]:
    """Its children, as far as they still live."""
    try:
        children = {child.pid for child in psutil.Process(run.process.pid).children()}
    except psutil.NoSuchProcess:
        return []
    return sorted(children & set(find_living(run.tag)))


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
