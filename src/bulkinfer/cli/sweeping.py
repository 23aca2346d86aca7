"""sweep: the capacity experiment."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from bulkinfer.cli.app import JobArgument, JsonOption, SetOption, app, json_errors, refuse_nan
from bulkinfer.errors import BulkinferError
from bulkinfer.streams import ReaderGone, print_json


@app.command(epilog="Example: bulkinfer sweep jobs/summarize.yaml --concurrency 1,4,8 --queue 32 --to sweep.png")
def sweep(
    job: JobArgument,
    concurrency: Annotated[
        str, typer.Option(metavar="N,N,...", help="Requests that the engine has at once: a point for each.")
    ] = "1,4,8",
    mix: Annotated[
        str, typer.Option(metavar="KIND:SHARE,...", help="Of short chat requests and long summaries.")
    ] = "short:0.7,long:0.3",
    arrivals: Annotated[
        str,
        typer.Option(
            metavar="closed|poisson:RATE,...",
            help="Users who wait for answers, or arrivals at random, so many each second.",
        ),
    ] = "closed",
    queue: Annotated[int, typer.Option(min=0, max=1_000_000, help="Requests that may wait for the engine.")] = 32,
    reject: Annotated[
        bool, typer.Option("--reject", help="A full queue refuses, as with limits.reject_when_queue_full.")
    ] = False,
    cancel: Annotated[str, typer.Option(metavar="N%", help="Share of the requests that is cancelled.")] = "0%",
    duration: Annotated[
        float,
        typer.Option(
            min=0, max=86_400, metavar="SECONDS", callback=refuse_nan, help="How long each point is measured."
        ),
    ] = 30,
    warmup: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=86_400,
            metavar="SECONDS",
            callback=refuse_nan,
            help="Before it, not counted. Default: a third of it, at most 10.",
        ),
    ] = None,
    users: Annotated[
        int | None,
        typer.Option(
            min=1, max=100_000, help="Users who send. Default with closed arrivals: as many as --concurrency."
        ),
    ] = None,
    per_user: Annotated[int | None, typer.Option(min=1, help="Requests that one user may have open.")] = None,
    max_tokens: Annotated[
        str | None,
        typer.Option(metavar="KIND:N,...", help="Of an answer. Default: the job's; short ones at most 32."),
    ] = None,
    low: Annotated[str | None, typer.Option(metavar="KIND", help="Kinds of request that come at low priority.")] = None,
    reserve: Annotated[
        str | None,
        typer.Option(metavar="N%,N%,...", help="Of the engine, what they must leave free. Default: limits.reserve."),
    ] = None,
    batched_tokens: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="vLLM's max_num_batched_tokens; the engine is started for each."),
    ] = None,
    headroom: Annotated[str, typer.Option(metavar="N%", help="What a recommendation leaves free.")] = "20%",
    target_p95: Annotated[
        float | None,
        typer.Option(min=0.001, max=86_400, metavar="SECONDS", callback=refuse_nan, help="p95 that is good enough."),
    ] = None,
    what_if: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Concurrencies to simulate, with costs fitted to what was measured; and how far off it is.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of everything that is drawn at random.")] = 0,
    overrides: SetOption = [],  # noqa: B006  # Typer reads the default, nobody changes it
    json: JsonOption = False,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the result as JSON.")] = None,
    compare: Annotated[Path | None, typer.Option(metavar="FILE", help="Lay an earlier result beside this one.")] = None,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it: PNG, SVG or HTML, by the ending.")] = None,
) -> None:
    """Measure latency against throughput under load, and recommend limits."""
    with json_errors(json, {"job": str(job)}):
        from bulkinfer import sweep as room
        from bulkinfer.display import print_lines
        from bulkinfer.job import load_job
        from bulkinfer.runner import plan_run
        from bulkinfer.runner.signals import end_on_signals, watch_signals
        from bulkinfer.sweep_view import check_comparable

        options = room.SweepOptions(
            concurrency=room.parse_counts("--concurrency", concurrency),
            mix=room.parse_mix(mix),
            arrivals=room.parse_arrivals(arrivals),
            queue_size=queue,
            is_rejecting=reject,
            cancel_share=room.parse_share("--cancel", cancel),
            duration_s=duration,
            warmup_s=min(10.0, duration / 3) if warmup is None else warmup,
            num_users=users,
            per_user=per_user,
            max_tokens={} if max_tokens is None else room.parse_max_tokens(max_tokens),
            low=frozenset() if low is None else room.parse_kinds("--low", low),
            reserves=() if reserve is None else room.parse_reserves(reserve),
            batched_tokens=() if batched_tokens is None else room.parse_counts("--batched-tokens", batched_tokens),
            headroom=room.parse_headroom(headroom),
            target_p95_s=target_p95,
            seed=seed,
            what_if=() if what_if is None else room.parse_counts("--what-if", what_if),
        )
        other = None if compare is None else check_comparable(room.load_result(compare), compare)
        if to is not None:
            room.check_ending(to)
        for option, path in (("--save", save), ("--to", to)):
            if path is not None:
                room.check_writable(path, option)
        with end_on_signals():
            plan = plan_run(load_job(job, overrides))
        with watch_signals(ends_process=False) as stop:
            report = room.run_sweep(plan, options, lambda line: print_lines([line]), lambda: stop.is_set)
        found = room.describe_end(report, stop.received)
    faults = [] if report.error is None else [report.error]
    try:
        _print_sweep(found, other, "" if compare is None else compare.name, is_json=json)
    except ReaderGone:
        pass
    except BulkinferError as fault:
        faults.append(fault)
    # What was measured is kept whether or not somebody reads it, and is out before a full disk or a picture that cannot
    # be drawn could take it away.
    faults += _write_files(found, other, save, to)
    if report.error is None and found["exit_code"]:
        print_lines([*map(str, faults), f"stopped; {len(found['points'])} points were measured"])
        raise typer.Exit(found["exit_code"])
    if faults:
        print_lines(map(str, faults[1:]))
        raise faults[0]


def _print_sweep(found: dict[str, Any], other: Mapping[str, Any] | None, name: str, *, is_json: bool) -> None:
    """To stdout. Raises ReaderGone, and JobError when it cannot be written."""
    from bulkinfer.display import print_lines
    from bulkinfer.sweep_view import describe_comparison, describe_sweep

    if is_json:
        print_json(found)
    else:
        print_lines(describe_sweep(found), stream=sys.stdout)
        if other is not None:
            print_lines(describe_comparison(found, other, ("this", name)), stream=sys.stdout)
    sys.stdout.flush()


def _write_files(
    found: dict[str, Any], other: Mapping[str, Any] | None, save: Path | None, to: Path | None
) -> Iterator[BulkinferError]:
    """Save and draw; what of it failed."""
    from bulkinfer import sweep as room

    try:
        if save is not None:
            room.save_result(found, save)
    except BulkinferError as fault:
        yield fault
    try:
        if to is not None:
            room.draw_sweep(found, other, to)
    except BulkinferError as fault:
        yield fault
