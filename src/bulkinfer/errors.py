"""What ends a run, drawn as a tree. What is wrong with one document is a value instead: `records.Failure`.

BulkinferError
├── JobError            2  the command line or the job file is wrong; the user can mend it
├── InputError          2  the input as a whole cannot be read: missing, empty, not the format it claims
├── EngineError         3  the engine does not start, or keeps dying
│   └── EngineDied      3  one death of an engine that was running; the runner restarts it (retryable)
├── StoreError          4  the database cannot be read or written: disk full, permissions, damaged
│   ├── StoreStalled    4  the disk does not answer: a thread hangs in a write, and nothing can be waited for
│   └── StoreLocked    75  another run holds this database; try again later (retryable)
├── TooManyFailures     5  more documents failed than the job's `max_failures` allows
└── Interrupted  130/143  SIGINT or SIGTERM after a clean drain; run again to resume

Anything else that reaches `main` is a bug in bulkinfer: exit code 1, the only case with a traceback.
"""

from enum import IntEnum
from signal import Signals


class ExitCode(IntEnum):
    """The exit codes of the public contract; a scheduler relies on them."""

    OK = 0
    BUG = 1
    USAGE = 2
    ENGINE = 3
    STORE = 4
    TOO_MANY_FAILURES = 5
    LOCKED = 75
    SIGINT = 130
    SIGTERM = 143


class BulkinferError(Exception):
    """Root of everything that a user can be told in one message: what happened, where, and what to do next."""

    code = "error"
    exit_code = ExitCode.BUG
    retryable = False

    def __init__(self, message: str = "", key: str | None = None) -> None:
        super().__init__(message)
        self.key = key
        """Of the job file, such as `prompt.user`, where the message begins with it and its place is not said yet."""


class JobError(BulkinferError):
    """The command line or the job file is wrong."""

    code = "job_error"
    exit_code = ExitCode.USAGE


class InputError(BulkinferError):
    """The input as a whole cannot be read. One bad row is never this: it is a failure of that row."""

    code = "input_error"
    exit_code = ExitCode.USAGE


class EngineError(BulkinferError):
    """The engine does not start or cannot be kept alive. Everything finished so far is committed."""

    code = "engine_error"
    exit_code = ExitCode.ENGINE


class EngineDied(EngineError):
    """The engine's process ended or fell silent while requests were in flight. No document is at fault yet."""

    code = "engine_died"
    retryable = True


class StoreError(BulkinferError):
    """The database cannot be read or written."""

    code = "store_error"
    exit_code = ExitCode.STORE


class StoreStalled(StoreError):
    """The disk does not answer: a thread hangs in the database, and will hold up whoever waits for it."""

    code = "store_stalled"


class StoreLocked(StoreError):
    """Another run holds this database; the message says which: pid, host, start."""

    code = "store_locked"
    exit_code = ExitCode.LOCKED
    retryable = True


class TooManyFailures(BulkinferError):
    """More documents failed than the limit allows."""

    code = "too_many_failures"
    exit_code = ExitCode.TOO_MANY_FAILURES


class Interrupted(BulkinferError):
    """The run was asked to stop by a signal, and did, cleanly."""

    code = "interrupted"
    exit_code = ExitCode.SIGINT

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {Signals(signal_number).name}; run again to resume")
        self.exit_code = ExitCode(128 + signal_number)
