"""status, failures, query, export, report: what looks at a database, in a live run or after it."""

import csv
import itertools
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from bulkinfer.cli.app import (
    JobArgument,
    JsonOption,
    TargetArgument,
    TimeoutOption,
    app,
    json_errors,
    refuse_nan,
    resolve_target,
)
from bulkinfer.records import ExportFormat, FailureCode, RunStatus
from bulkinfer.streams import number_names, print_json, print_json_with


class QueryFormat(StrEnum):
    """How `query` prints."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


@app.command(epilog="Example: bulkinfer status jobs/summarize.yaml --watch")
def status(
    target: TargetArgument,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again and again, until the run ends; wait for one, too.")
    ] = False,
    every: Annotated[
        float, typer.Option(min=0.1, max=86_400, metavar="SECONDS", callback=refuse_nan, help="How often to watch.")
    ] = 2,
    json: JsonOption = False,
) -> None:
    """How the run that writes this database stands, or how the last one ended."""
    from bulkinfer.display import StandingDisplay
    from bulkinfer.store import read_standing, read_standing_if_any

    with json_errors(json):
        database, name = resolve_target(target)
        if watch:
            signal.signal(signal.SIGTERM, end_in_order)
        with StandingDisplay() as display:
            while True:
                found = read_standing_if_any(database, name) if watch else read_standing(database, name)
                is_last = not watch or found["status"] not in {RunStatus.RUNNING, "waiting"}
                if json:
                    print_json(found)
                    sys.stdout.flush()
                elif is_last:
                    display.end(found)
                else:
                    with undisturbed():
                        display.show(found)
                if is_last:
                    return
                time.sleep(every)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Signals wait for the end of the block: a view that is half begun could not be ended in order.

    By handlers that only note them. Blocked in this thread they would reach another one, of a library, and Python runs
    their handlers in this one all the same.
    """
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def end_in_order(signal_number: int, _frame: FrameType | None) -> NoReturn:
    """A signal handler: the terminal gets its cursor back."""
    sys.exit(128 + signal_number)


@app.command(epilog="Example: bulkinfer failures jobs/summarize.yaml --code truncated")
def failures(
    target: TargetArgument,
    code: Annotated[
        FailureCode | None, typer.Option(help="List the rows that failed with this code.", show_default=False)
    ] = None,
    all_rows: Annotated[bool, typer.Option("--all", help="List all rows that failed.")] = False,
    timeout: TimeoutOption = 30,
    json: JsonOption = False,
) -> None:
    """The input rows that have no answer, and why: by code, with the ids of the first ones."""
    from bulkinfer.display import print_lines, print_table
    from bulkinfer.store import open_reader

    with json_errors(json):
        database, name = resolve_target(target)
        with open_reader(database, timeout) as reader:
            groups = reader.failure_groups(name)
            counts = {group.code.value: group.rows for group in groups}
            found = reader.failures(name, code)
            if json:
                about = {"database": str(database), "counts": counts, "groups": [asdict(group) for group in groups]}
                print_json_with(about, "failures", map(asdict, found))
                return
            if all_rows or code:
                columns = "document", "where", "code", "message"
                rows = (
                    (each.document_id, f"{each.source}:{each.row}", each.code.value, each.message) for each in found
                )
                print_table(columns, rows)
    if not (all_rows or code):
        columns = "code", "rows", "first", "message of the first"
        print_table(
            columns, [(each.code.value, f"{each.rows:,}", ", ".join(each.examples), each.message) for each in groups]
        )
    total = sum(counts.values())
    print_lines([f"{total:,} failed: " + (", ".join(f"{n:,} {each}" for each, n in counts.items()) or "none")])


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
    to: Annotated[
        Path,
        typer.Option(
            "--to",
            metavar="FILE",
            help="The ending says the format; - for standard output, with --format jsonl or csv.",
        ),
    ],
    format: Annotated[  # noqa: A002  # the flag's name
        ExportFormat | None, typer.Option(help="The format, whatever the ending says.", show_default=False)
    ] = None,
    columns: Annotated[
        list[str],
        typer.Option("--columns", metavar="NAME,...", help="Only these columns, of the input and of the answers."),
    ] = [],  # noqa: B006  # Typer reads the default, nobody changes it
    only_answered: Annotated[bool, typer.Option("--only-answered", help="Leave out rows without an answer.")] = False,
    timeout: TimeoutOption = 30,
) -> None:
    """Write every input row, in input order, with all its columns and its answer, or with why it has none.

    FILE ends with .parquet, .arrow (or .feather), .csv, .jsonl (or .jsonl.gz), or with .openai.jsonl for the output and
    error files of OpenAI's batch API.
    """
    from bulkinfer.display import print_lines
    from bulkinfer.export import ExportOptions, export_job, parse_target
    from bulkinfer.job import load_job
    from bulkinfer.runner import end_on_signals
    from bulkinfer.store import open_reader

    target = parse_target(to, format)
    names = tuple(name for text in columns for name in text.split(",")) or None
    loaded = load_job(job)
    # An export that is stopped takes its temporary file away.
    with end_on_signals(), open_reader(loaded.database_path, timeout) as reader:
        exported = export_job(reader, loaded, target, ExportOptions(names, only_answered))
    print_lines([*exported.notes, exported.describe(target)])


@app.command(epilog="Example: bulkinfer report jobs/summarize.yaml --to report.html")
def report(
    target: TargetArgument,
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="HTML or PNG, by the ending.")],
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="RUN_ID", help="Which run, by the beginning of its id; else the newest."),
    ] = None,
    timeout: TimeoutOption = 30,
) -> None:
    """Draw how a run went: one page with charts, the numbers behind them, and the run before beside it."""
    from bulkinfer.display import print_lines
    from bulkinfer.report import check_ending, write_report
    from bulkinfer.store import open_reader

    check_ending(to)
    database, name = resolve_target(target)
    with open_reader(database, timeout) as reader:
        found = write_report(reader, name, to, run)
    print_lines([f"report of run {found.run_id} ({found.status}) written to {to}"])


def show_cells(row: Sequence[object]) -> list[str]:
    """A row's cells for a terminal, which must not be driven by them."""
    from bulkinfer.display import visible

    return ["" if cell is None else visible(str(cell)) for cell in row]
