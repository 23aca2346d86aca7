"""Events and answers to people: a live view on a terminal, plain lines without one. Everything goes to stderr.

What comes from outside (ids, field values, paths) is text here, never Rich markup, and its control characters are
shown, not sent to the terminal.

console   the one place that writes: lines, tables, errors
figures   bytes and seconds as people say them
live      one run while it goes on, in its own process
watching  the same from another process: `status`, `status --watch`
progress  where a run stands, as a view or in a line, for both; with sparkline
told      what a run tells other processes, read
summary   what a run did
standing  what `status` says
"""

from bulkinfer.display.console import print_error, print_lines, print_table, visible
from bulkinfer.display.figures import format_bytes, format_s
from bulkinfer.display.live import PLAIN_LINE_EVERY_S, RunDisplay
from bulkinfer.display.progress import describe_progress, render_progress
from bulkinfer.display.standing import describe_in_one_line, describe_run, describe_running, describe_status
from bulkinfer.display.summary import render_summary
from bulkinfer.display.told import read_progress
from bulkinfer.display.watching import StandingDisplay

__all__ = [
    "PLAIN_LINE_EVERY_S",
    "RunDisplay",
    "StandingDisplay",
    "describe_in_one_line",
    "describe_progress",
    "describe_run",
    "describe_running",
    "describe_status",
    "format_bytes",
    "format_s",
    "print_error",
    "print_lines",
    "print_table",
    "read_progress",
    "render_progress",
    "render_summary",
    "visible",
]
