"""A job of flags alone, for a quick try: `bulkinfer run --input ... --prompt ... --model ... --to ...`.

Its database lies beside the output, so that the same command goes on where it was.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path

from bulkinfer.errors import BulkinferError, InputError, JobError, TooManyFailures
from bulkinfer.export import Exported, ExportOptions, Target, check_target, export_job, parse_target
from bulkinfer.job import Job, create_job, load_job
from bulkinfer.records import JsonValue, Only
from bulkinfer.runner import RunPlan, RunReport, plan_run
from bulkinfer.store import open_reader

MAX_TOKENS = 256
"""Of one answer, unless `--max-tokens` says otherwise."""
NAME = "the command line"
_FLAGS = {
    "input.path": "--input",
    "input.id": "--id",
    "model.path": "--model",
    "prompt.system": "--system",
    "prompt.user": "--prompt",
    "sampling.max_tokens": "--max-tokens",
    "output.database": "--to",
}
_KEYS = re.compile("|".join(map(re.escape, _FLAGS)))
_NEEDED = ("input", "prompt", "model", "to")


@dataclass(frozen=True, slots=True)
class JobFlags:
    """What the flags say; None and an empty list: not given."""

    input: Sequence[str]
    prompt: str | None
    model: str | None
    to: Path | None
    system: str | None
    max_tokens: int | None
    id: str | None

    @property
    def given(self) -> tuple[str, ...]:
        """The names of those that are given."""
        names = (field.name for field in fields(self))
        return tuple(f"--{name.replace('_', '-')}" for name in names if getattr(self, name) not in (None, [], ()))


@dataclass(frozen=True, slots=True)
class WrittenExport:
    """What the end of such a run has written."""

    target: Target
    exported: Exported

    @property
    def notes(self) -> Sequence[str]:
        """What people should know of it."""
        return self.exported.notes

    @property
    def summary(self) -> dict[str, JsonValue]:
        """What `run --json` tells."""
        return {"file": str(self.target.path), "rows": self.exported.num_rows, **self.exported.by_status}

    def describe(self) -> str:
        """One line."""
        return self.exported.describe(self.target)


@dataclass(frozen=True, slots=True)
class GivenJob:
    """A job, and where its answers are exported at the end; None for one of a job file."""

    job: Job
    target: Target | None

    def plan(self, only: Only) -> RunPlan:
        """What is to be run. Raises as `plan_run` does."""
        with flags_named() if self.target else nullcontext():
            plan = plan_run(self.job, only)
            if self.target:  # before anything is asked, and not only when its answers are written
                check_target(self.target, self.job)
        return plan

    def export(self, report: RunReport) -> WrittenExport | None:
        """Write the input with its answers, if the run went to its end. Raises as `export_job` does."""
        if self.target is None or not isinstance(report.error, TooManyFailures | None):
            return None
        with open_reader(self.job.database_path) as reader:
            return WrittenExport(self.target, export_job(reader, self.job, self.target, ExportOptions()))

    def explain(self, error: BulkinferError) -> BulkinferError:
        """What ended the run, in words of the command line."""
        placed = self.job.place(error)
        return name_flags(placed) if self.target and isinstance(placed, JobError | InputError) else placed


def load_given(path: Path | None, flags: JobFlags, overrides: Sequence[str]) -> GivenJob:
    """The job of the command line: of a file, or of flags. Raises JobError for both, for neither, and for a half."""
    given = flags.given
    if path is not None:
        if given:
            raise JobError(
                f"{path}: a job file says all of a job; leave out {', '.join(given)}, or change the file for one run "
                "with --set, and get its answers with `bulkinfer export`"
            )
        return GivenJob(load_job(path, overrides), None)
    missing = [f"--{name}" for name in _NEEDED if f"--{name}" not in given]
    if missing:
        what = f"{', '.join(missing)} is missing" if given else "nothing says what to run"
        raise JobError(f"{what}: give a job file, or --input, --prompt, --model and --to")
    assert flags.to is not None
    if str(flags.to) == "-":
        raise JobError("--to -: a run without a job file keeps its database beside the output; name a file")
    target = parse_target(flags.to, may_be_told=False)
    assert target.path is not None
    with flags_named():
        return GivenJob(create_job(_list_values(flags, target.path), NAME, overrides), target)


@contextmanager
def flags_named() -> Iterator[None]:
    """Errors about keys of the job name the flags that gave them."""
    try:
        yield
    except (JobError, InputError) as error:
        raise name_flags(error) from None


def name_flags(error: JobError | InputError) -> JobError | InputError:
    """The same error, with flags in place of keys."""
    return type(error)(_KEYS.sub(lambda match: _FLAGS[match[0]], str(error)))


def _list_values(flags: JobFlags, output: Path) -> dict[str, object]:
    """A job file's values."""
    prompt = {"user": flags.prompt} if flags.system is None else {"system": flags.system, "user": flags.prompt}
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", output.name)[:100].strip("-") or "job"
    return {
        "name": name,
        "input": {"path": list(flags.input)} | ({} if flags.id is None else {"id": flags.id}),
        "model": {"path": flags.model},
        "prompt": prompt,
        "sampling": {"temperature": 0, "max_tokens": MAX_TOKENS if flags.max_tokens is None else flags.max_tokens},
        "output": {"database": f"{output}.duckdb"},
    }
