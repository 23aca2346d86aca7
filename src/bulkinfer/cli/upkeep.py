"""repair, schema, doctor: what mends, and what tells whether a run can work."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import orjson
import typer

from bulkinfer.cli.app import JsonOption, TargetArgument, app, json_errors, resolve_target
from bulkinfer.errors import ExitCode
from bulkinfer.streams import print_data, print_json


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
