"""The capacity experiment: a load of short and long requests at the engine, point by point, and the limits that follow.

options    what is asked, checked
load       the requests, made of the job's own documents
clients    who sends them, and when: users in a closed loop, or arrivals at random
admission  who gets in: the bounded queue, limits for users, refusals and when to come again
driver     the loop of one point, over any engine and on its clock
point      what a point found
rig        the engine that is measured
measure    one point, from its settings
run        all points, end to end
whatif     the same on the simulated engine, with costs fitted to what was measured
capacity   where latency leaves the line, where refusals begin, which limits to set
result     the sweep as JSON
plots      its charts
page       a file of them
"""

from bulkinfer.sweep.options import (
    SweepOptions,
    parse_arrivals,
    parse_counts,
    parse_headroom,
    parse_kinds,
    parse_max_tokens,
    parse_mix,
    parse_reserves,
    parse_share,
)
from bulkinfer.sweep.page import check_ending, draw_sweep
from bulkinfer.sweep.result import SweepReport, check_writable, describe_end, load_result, save_result
from bulkinfer.sweep.run import run_sweep

__all__ = [
    "SweepOptions",
    "SweepReport",
    "check_ending",
    "check_writable",
    "describe_end",
    "draw_sweep",
    "load_result",
    "parse_arrivals",
    "parse_counts",
    "parse_headroom",
    "parse_kinds",
    "parse_max_tokens",
    "parse_mix",
    "parse_reserves",
    "parse_share",
    "run_sweep",
    "save_result",
]
