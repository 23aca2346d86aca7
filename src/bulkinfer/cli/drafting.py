"""init: a first job file."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bulkinfer.cli.app import JsonOption, app, json_errors
from bulkinfer.streams import print_json


@app.command(epilog="Example: bulkinfer init sample_data/tickets.parquet --to tickets.yaml")
def init(
    input: Annotated[  # noqa: A002  # the argument's name
        str, typer.Argument(metavar="INPUT", help="The documents: a file, a folder or a glob.", show_default=False)
    ],
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="The job file; - prints it.")] = Path("job.yaml"),
    model: Annotated[str | None, typer.Option(help="A model folder, or a hub id.", show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    json: JsonOption = False,
) -> None:
    """Look at an input and write a job file for it, with comments, that runs as it is."""
    from bulkinfer.sources.urls import hide_secrets

    shown = hide_secrets(input)
    with json_errors(json, {"input": shown}):
        from bulkinfer.display import print_lines
        from bulkinfer.draft import draft_job, write_draft

        draft = draft_job(input, to, model)
        is_printed = str(to) == "-"
        if not is_printed:
            write_draft(draft, to, may_replace=force)
    if is_printed:
        sys.stdout.write(draft.text)
        return
    if json:
        columns = [{key: value for key, value in asdict(each).items() if key != "examples"} for each in draft.columns]
        print_json(
            {
                "job": str(to),
                "input": shown,
                "files": draft.num_files,
                "id": draft.id_field,
                "text": draft.text_field,
                "endpoint": draft.endpoint,
                "columns": columns,
            }
        )
        return
    named = f"named by {draft.id_field}" if draft.id_field else "named by file and row: no column is an id"
    what = f"the text is {draft.text_field}" if draft.endpoint is None else f"OpenAI requests for {draft.endpoint}"
    print_lines(
        [
            f"{to}: {what}, {named}; {len(draft.columns)} columns, {draft.num_files:,} file(s)",
            f"next: bulkinfer run {to} --limit 10",
        ]
    )
