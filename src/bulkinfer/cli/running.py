"""run and plan: what goes through the input."""

import sys
from typing import Annotated

import typer

from bulkinfer.cli.app import JobArgument, JsonOption, SetOption, app, json_errors, refuse_nan
from bulkinfer.records import Only
from bulkinfer.streams import print_json


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
