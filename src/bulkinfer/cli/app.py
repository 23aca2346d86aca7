"""The program itself, and what its commands share: options, targets, errors as JSON."""

import math
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from bulkinfer import __version__
from bulkinfer.errors import BulkinferError
from bulkinfer.streams import print_data, print_json

EXIT_CODES = """Exit codes

0: every document has an outcome, failures are within the limit

1: a bug in bulkinfer

2: wrong command line, job file or input

3: the engine does not start or keeps dying

4: the store cannot be written

5: more failures than the limit allows

75: another run holds this database; try again later

130, 143: stopped by SIGINT, SIGTERM after a clean drain; run again to resume
"""

app = typer.Typer(
    name="bulkinfer",
    help="Run a prompt over a very large queue of documents with vLLM, each document exactly once, from one YAML file.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def refuse_nan(seconds: float | None) -> float | None:
    """A number of seconds as it was given; `nan` passes every bound."""
    if seconds is not None and math.isnan(seconds):
        raise typer.BadParameter("is not a number of seconds")
    return seconds


JobArgument = Annotated[Path, typer.Argument(help="The job file (YAML).", show_default=False)]
TargetArgument = Annotated[
    Path, typer.Argument(metavar="JOB|DATABASE", help="A job file, or a database.", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object to stdout.")]
TimeoutOption = Annotated[
    float,
    typer.Option(
        min=2,
        max=86_400,
        metavar="SECONDS",
        callback=refuse_nan,
        help="How long a live run may give no sign of life.",
    ),
]
SetOption = Annotated[
    list[str], typer.Option("--set", metavar="KEY.PATH=VALUE", help="Change a value of the job file; repeatable.")
]


def print_version(is_wanted: bool) -> None:
    """`bulkinfer --version`."""
    if is_wanted:
        print_data(f"bulkinfer {__version__}")
        raise typer.Exit


@app.callback()
def callback(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=print_version)
    ] = False,
) -> None:
    """Options of the program itself."""
    if context.invoked_subcommand != "run":  # a run has handlers of its own, once it has something to lose
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def resolve_target(target: Path) -> tuple[Path, str | None]:
    """The database of a JOB|DATABASE argument, told apart by content, and the job's name if it was a job file."""
    from bulkinfer.job import load_job
    from bulkinfer.store import is_database

    if is_database(target):
        return target, None
    job = load_job(target)
    return job.database_path, job.spec.name


@contextmanager
def json_errors(is_json: bool, about: Mapping[str, str] | None = None) -> Iterator[None]:
    """With --json, an error is the one object that is printed."""
    try:
        yield
    except BulkinferError as error:
        if is_json:
            from bulkinfer.runner.report import status_of

            exit_code = int(error.exit_code)
            print_json({**(about or {}), "status": status_of(error), "exit_code": exit_code, "error": str(error)})
        raise
