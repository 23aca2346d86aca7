"""run and plan: what goes through the input."""

import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from bulkinfer.cli.app import JobArgument, JsonOption, SetOption, app, json_errors, refuse_nan
from bulkinfer.logs import JsonLog, LogFormat
from bulkinfer.priority import Priority
from bulkinfer.records import Only
from bulkinfer.streams import print_json

_QUICK = "Without a job file"


@app.command(epilog="Example: bulkinfer run jobs/summarize.yaml --limit 10")
def run(
    job: Annotated[Path | None, typer.Argument(help="The job file (YAML).", show_default=False)] = None,
    input: Annotated[  # noqa: A002  # the flag's name
        list[str],
        typer.Option(
            "--input", metavar="FILE", help="Instead of a job file: the documents; repeatable.", rich_help_panel=_QUICK
        ),
    ] = [],  # noqa: B006  # Typer reads the default, nobody changes it
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="TEMPLATE", help="The user message, with {{ fields }}.", show_default=False, rich_help_panel=_QUICK
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A model folder, or a hub id.", show_default=False, rich_help_panel=_QUICK),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where the input goes with its answers: Parquet, CSV, ... by the ending.",
            show_default=False,
            rich_help_panel=_QUICK,
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option(help="The system message.", show_default=False, rich_help_panel=_QUICK)
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="The most tokens of one answer; 256.", show_default=False, rich_help_panel=_QUICK),
    ] = None,
    id: Annotated[  # noqa: A002  # the flag's name
        str | None,
        typer.Option("--id", metavar="FIELD", help="The field that names a document.", rich_help_panel=_QUICK),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Ask so many documents at the most.")] = None,
    only: Annotated[
        Only, typer.Option(help="Which documents: new ones, or those that failed before: all, or of one code.")
    ] = Only.NEW,
    overrides: SetOption = [],  # noqa: B006  # Typer reads the default, nobody changes it
    priority: Annotated[
        Priority, typer.Option(help="low: other work on this machine goes before the engine's.")
    ] = Priority.NORMAL,
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
    log_format: Annotated[
        LogFormat, typer.Option(help="What stderr gets: lines for people, or one JSON object a line.")
    ] = LogFormat.HUMAN,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Serve metrics for Prometheus here while it runs; 0: any free port."),
    ] = None,
    metrics_address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Where --metrics-port listens, instead of 127.0.0.1; 0.0.0.0: for other machines, too.",
            show_default=False,
        ),
    ] = None,
    metrics_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE.prom", help="Write metrics here now and then and at the end, for node_exporter."),
    ] = None,
) -> None:
    """Run a job, or resume it: what has an outcome already is not asked again.

    Without a job file, --input, --prompt, --model and --to say what is run; its database is FILE.duckdb.
    """
    shown = str(job or "command line")
    with ExitStack() as stack:
        log = stack.enter_context(JsonLog(shown, is_quiet=quiet)) if log_format is LogFormat.JSON else None
        with json_errors(json, {"job": shown}):
            from bulkinfer.cli.flags import JobFlags, load_given
            from bulkinfer.display import RunDisplay, print_lines
            from bulkinfer.job import parse_failure_limit
            from bulkinfer.metrics import MetricsOptions, RunLabels, open_metrics
            from bulkinfer.runner import RunOptions, end_on_signals, run_job

            metrics = MetricsOptions(metrics_port, metrics_address, metrics_file)
            failure_limit = None if max_failures is None else parse_failure_limit(max_failures)
            options = RunOptions(
                only, limit, failure_limit, grace, tells_documents=metrics.tells_documents, priority=priority
            )
            with end_on_signals():
                given = load_given(job, JobFlags(input, prompt, model, to, system, max_tokens, id), overrides)
                loaded = given.job
                model_name = Path(loaded.model).name if loaded.is_local_model else loaded.model
                labels = RunLabels(model_name, loaded.spec.name, loaded.spec.task.kind, loaded.spec.engine.kind)
                with (
                    nullcontext(log) if log else RunDisplay(is_quiet=quiet) as display,
                    open_metrics(metrics, labels, display) as sink,
                ):
                    is_last = given.target is None  # else the export comes after it, and may be stopped, too
                    report = run_job(given.plan(only), options, sink, ends_process=is_last)
                exported = given.export(report)
                if exported is not None and not quiet and log is None:
                    print_lines([*exported.notes, exported.describe()])
        try:
            if json:
                print_json(report.summary if exported is None else {**report.summary, "export": exported.summary})
                sys.stdout.flush()
        finally:
            if report.error is not None:
                raise given.explain(report.error)


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
