"""The command line: parse, load, call, render. One place maps errors to exit codes.

Heavy imports wait until a command needs them: `bulkinfer --help` answers at once.
"""

import csv
import io
import itertools
import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import orjson
import typer

from bulkinfer import __version__
from bulkinfer.bugs import told_without_text
from bulkinfer.errors import BulkinferError, ExitCode, StoreStalled
from bulkinfer.records import Only, RunStatus
from bulkinfer.streams import Output, number_names, print_data, print_json

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

UsageError: Any = typer.BadParameter.__mro__[1]
"""Of every wrong command line. Typer exports no name for it, and where it lives depends on Typer's version."""


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


class QueryFormat(StrEnum):
    """How `query` prints."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def main() -> None:
    """The console script: maps every error to the contract's exit code. What is unknown is a bug, with a traceback."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Output(sys.stdout, is_data=True), Output(sys.stderr, is_data=False)
    try:
        with told_without_text():
            sys.exit(_run_app())
    finally:
        sys.stdout, sys.stderr = streams


def _run_app() -> int:
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except UsageError as error:
        from bulkinfer.display import print_lines

        text = io.StringIO()
        error.show(text)
        print_lines(text.getvalue().splitlines())
        return ExitCode.USAGE
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.SIGINT
    except BulkinferError as error:
        from bulkinfer.display import print_error

        if str(error):
            print_error(str(error))
        if isinstance(error, StoreStalled):
            _leave_at_once(error.exit_code)
        return error.exit_code
    return code if isinstance(code, int) else ExitCode.OK


def _leave_at_once(code: int) -> NoReturn:
    """A thread hangs in the database: to end in order would mean to wait for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


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


@app.command(epilog="Example: bulkinfer run jobs/summarize.yaml --limit 10")
def run(
    job: JobArgument,
    limit: Annotated[int | None, typer.Option(min=1, help="Ask so many documents at the most.")] = None,
    only: Annotated[Only, typer.Option(help="Which documents: new ones, or those that failed before.")] = Only.NEW,
    overrides: SetOption = [],  # noqa: B006  # Typer reads the default, nobody changes it
    max_failures: Annotated[
        str | None, typer.Option(metavar="N|N%", help="Instead of limits.max_failures.", show_default=False)
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=86_400,
            metavar="SECONDS",
            callback=refuse_nan,
            help="How long a stopping run lets documents finish.",
        ),
    ] = None,
    json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")] = False,
) -> None:
    """Run a job, or resume it: what has an outcome already is not asked again."""
    with json_errors(json, {"job": str(job)}):
        from bulkinfer.display import RunDisplay
        from bulkinfer.job import load_job, parse_failure_limit
        from bulkinfer.runner import RunOptions, end_on_signals, plan_run, run_job

        failure_limit = None if max_failures is None else parse_failure_limit(max_failures)
        options = RunOptions(only=only, limit=limit, failure_limit=failure_limit, grace_s=grace)
        with end_on_signals():
            planned = plan_run(load_job(job, overrides))
            with RunDisplay(is_quiet=quiet) as display:
                report = run_job(planned, options, display, ends_process=True)
    try:
        if json:
            print_json(report.summary)
            sys.stdout.flush()
    finally:
        if report.error is not None:
            raise report.error


@app.command(epilog="Example: bulkinfer plan jobs/summarize.yaml")
def plan(job: JobArgument, overrides: SetOption = [], json: JsonOption = False) -> None:  # noqa: B006  # as above
    """What a run would find and do, and how long it would take. Loads no model, changes nothing."""
    with json_errors(json, {"job": str(job)}):
        from bulkinfer.display import RunDisplay, print_lines
        from bulkinfer.job import load_job
        from bulkinfer.plan_view import describe_plan
        from bulkinfer.runner import forecast_run, plan_run

        with RunDisplay() as display:
            found = forecast_run(plan_run(load_job(job, overrides)), display)
    print_json(found) if json else print_lines(describe_plan(found), stream=sys.stdout)


@app.command(epilog="Example: bulkinfer status jobs/summarize.yaml --watch")
def status(
    target: TargetArgument,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds while a run lives.")] = False,
    json: JsonOption = False,
) -> None:
    """How the run that writes this database stands, or how the last one ended."""
    from bulkinfer.display import describe_status, print_lines
    from bulkinfer.store import read_standing

    with json_errors(json):
        database, name = resolve_target(target)
        while True:
            found = read_standing(database, name)
            if json:
                print_json(found)
            else:
                print_lines(describe_status(found), stream=sys.stdout)
            if not watch or found["status"] != RunStatus.RUNNING:
                return
            time.sleep(2)


@app.command(epilog="Example: bulkinfer failures jobs/summarize.yaml")
def failures(target: TargetArgument, timeout: TimeoutOption = 30, json: JsonOption = False) -> None:
    """The input rows that have no answer, and why."""
    from bulkinfer.display import print_lines, print_table
    from bulkinfer.store import open_reader

    with json_errors(json):
        database, name = resolve_target(target)
        with open_reader(database, timeout) as reader:
            found = list(reader.failures(name))
    counts: dict[str, int] = {}
    for failure in found:
        counts[failure.code] = counts.get(failure.code, 0) + 1
    if json:
        print_json({"database": str(database), "counts": counts, "failures": [asdict(failure) for failure in found]})
        return
    print_table(
        ("document", "where", "code", "message"),
        [(failure.document_id, f"{failure.source}:{failure.row}", failure.code, failure.message) for failure in found],
    )
    print_lines([f"{len(found):,} failed: " + (", ".join(f"{n:,} {code}" for code, n in counts.items()) or "none")])


@app.command(epilog='Example: bulkinfer query jobs/summarize.yaml "select document_id, output from answers limit 5"')
def query(
    target: TargetArgument,
    sql: Annotated[
        str, typer.Argument(help="One statement that reads. Tables: answers, documents, failures, runs, ...")
    ],
    format: Annotated[QueryFormat, typer.Option(help="How to print.")] = QueryFormat.TABLE,  # noqa: A002  # the flag's name
    timeout: TimeoutOption = 30,
) -> None:
    """Ask the database in SQL. Read-only: it can change nothing and read no other file."""
    from bulkinfer.display import print_table
    from bulkinfer.store import open_reader

    database, _ = resolve_target(target)
    with open_reader(database, timeout) as reader:
        result = reader.query(sql)
        match format:
            case QueryFormat.TABLE:
                print_table(result.columns, result.rows)
            case QueryFormat.JSON:
                names = [name if index == 0 else f"{name}:{index}" for name, index in number_names(result.columns)]
                print_json([dict(zip(names, row, strict=True)) for row in result.rows])
            case QueryFormat.CSV:
                writer = csv.writer(sys.stdout, lineterminator="\n")
                rows = itertools.chain([result.columns], result.rows)
                writer.writerows(map(show_cells, rows) if sys.stdout.isatty() else rows)


@app.command(epilog="Example: bulkinfer export jobs/summarize.yaml --to answers.parquet")
def export(
    job: JobArgument,
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="Parquet, JSONL or CSV, by the ending.")],
    timeout: TimeoutOption = 30,
) -> None:
    """Write every input row, in input order, with its answer or with why it has none."""
    from bulkinfer.display import print_lines
    from bulkinfer.job import load_job
    from bulkinfer.store import export_answers, open_reader

    loaded = load_job(job)
    with open_reader(loaded.database_path, timeout) as reader:
        num_rows = export_answers(reader, loaded.spec.name, to)
    print_lines([f"{num_rows:,} rows written to {to}"])


@app.command(epilog="Example: bulkinfer repair jobs/summarize.yaml")
def repair(target: TargetArgument, json: JsonOption = False) -> None:
    """Mend a database whose write-ahead log is damaged or lost: keep what is good, set aside what is not."""
    from bulkinfer.display import print_lines
    from bulkinfer.store import has_remains, repair_database

    with json_errors(json):
        found = repair_database(target if has_remains(target) else resolve_target(target)[0])
    if json:
        print_json(asdict(found))
    else:
        print_lines(found.describe(), stream=sys.stdout)


@app.command(epilog="Example: bulkinfer schema > job.schema.json")
def schema() -> None:
    """The JSON Schema of the job file, for editors."""
    from bulkinfer.job import json_schema

    print_data(orjson.dumps(json_schema(), option=orjson.OPT_INDENT_2).decode())


@app.command(epilog="Example: bulkinfer doctor jobs/summarize.yaml")
def doctor(
    job: Annotated[Path | None, typer.Argument(help="Check what this job needs too.", show_default=False)] = None,
    json: JsonOption = False,
) -> None:
    """Is everything there that a run needs? Each thing is ok, or what to do is said."""
    from bulkinfer.display import print_lines
    from bulkinfer.doctor import examine
    from bulkinfer.job import load_job

    with json_errors(json):
        checks = examine(None if job is None else load_job(job))
    if json:
        print_json({"is_ok": all(check.is_ok for check in checks), "checks": [asdict(check) for check in checks]})
    else:
        print_lines((check.describe() for check in checks), stream=sys.stdout)
    if not all(check.is_ok for check in checks):
        raise typer.Exit(ExitCode.USAGE)


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


def show_cells(row: Sequence[object]) -> list[str]:
    """A row's cells for a terminal, which must not be driven by them."""
    from bulkinfer.display import visible

    return ["" if cell is None else visible(str(cell)) for cell in row]
