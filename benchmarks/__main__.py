"""The suite: `python -m benchmarks`. See docs/performance.md.

Each run is printed as it ends and kept in benchmarks/results/. A run that fails is told and left out; the others go on,
and the suite ends with exit code 1.
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.figures import find_gaps, measure_noise, share_different, summarise
from benchmarks.machine import describe_machine
from benchmarks.measure import Step, find_missing, make_run, plan_noise, plan_queue
from benchmarks.peers.base import RunFailed
from benchmarks.peers.catalogue import PEERS, ROOT, find_peer
from benchmarks.queues import create_queue, queue_names
from benchmarks.results import Results, Run, Series
from benchmarks.table import render_differences, render_gaps, render_goals, render_noise, render_rows, write_between

OURS, TUNED = "bulkinfer", "llm-chat"
QUICK_SCALE = 0.125
QUICK_PEERS = (OURS, TUNED)
SLOW_PEER = "run-batch"
FULL_PEERS = (OURS, TUNED, "llm-chat-64", SLOW_PEER)
NOISE_QUEUE = "reference"
PAGE = ROOT / "docs" / "performance.md"
PICTURES = {"figures": PAGE.with_suffix(".png"), "peers": PAGE.with_name("performance-peers.png")}


def main() -> int:
    """Measure, then write the figures. Returns the exit code."""
    args = _parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the run that is being made is ended, too
    results = Results(args.results)
    num_failed = 0 if args.report_only else _measure(args, results)
    is_written = _report(results, args)
    return 1 if num_failed or not is_written else 0


def _measure(args: argparse.Namespace, results: Results) -> int:
    steps = list(_plan(args))
    kept = results.load() if args.resume else []
    suite = kept[-1].suite if kept else datetime.now(UTC).isoformat(timespec="seconds")
    if args.resume:
        steps = find_missing(steps, kept)
        results.drop_runs({(step.series, step.queue.name, step.peer.name, step.round) for step in steps})
    else:
        results.drop({(step.series, step.queue.name, step.peer.name) for step in steps})
    print(f"{describe_machine()}\n{len(steps)} runs", flush=True)
    num_failed, start_s = 0, time.monotonic()
    for number, step in enumerate(steps, 1):
        said = f"[{number}/{len(steps)} {time.monotonic() - start_s:4.0f} s] {_name(step)}"
        try:
            print(f"{said}: {_tell(make_run(step, results, suite))}", flush=True)
        except RunFailed as error:
            num_failed += 1
            print(f"{said}: FAILED: {error}", flush=True)
    return num_failed


def _plan(args: argparse.Namespace) -> Iterator[Step]:
    peers = [find_peer(name) for name in args.peers]
    num_rounds = _decide_rounds(args.rounds, is_quick=args.quick)
    if args.noise_pairs:
        yield from plan_noise(create_queue(NOISE_QUEUE, args.scale), find_peer(TUNED), args.noise_pairs)
    for name in args.only:
        yield from plan_queue(create_queue(name, args.scale), peers, num_rounds)


def _decide_rounds(given: int | None, *, is_quick: bool) -> Callable[[str, str], int]:
    """How often a peer goes through a queue: most often where the goals are; who takes minutes, there alone."""

    def decide(queue: str, peer: str) -> int:
        if given is not None or is_quick:
            return given or 1
        is_main = peer in QUICK_PEERS
        if queue == NOISE_QUEUE:
            return 3 if is_main else 2
        if peer == SLOW_PEER:
            return 0
        return 2 if is_main else 1

    return decide


def _plan_page(args: argparse.Namespace) -> dict[tuple[str, str], int]:
    """Runs of a whole suite by queue and peer, whatever part of it was asked for now."""
    queues = queue_names() if args.place == "figures" and args.page is not None else args.only
    num_rounds = _decide_rounds(args.rounds, is_quick=args.quick)
    return {(queue, peer): num_rounds(queue, peer) for queue in queues for peer in args.peers}


def _report(results: Results, args: argparse.Namespace) -> bool:
    """Print the figures, draw them and write them into the page. False where the page would lose a queue that way."""
    runs = results.load()
    if not runs:
        print("nothing was measured yet")
        return True
    titles = {peer.name: peer.title for peer in PEERS}
    planned = _plan_page(args)
    rows = summarise(runs, OURS, planned)
    parts = [render_noise(measure_noise(runs)), render_goals(rows), render_rows(rows, titles)]
    parts.append(render_gaps(find_gaps(rows, planned), titles, len({run.suite for run in runs})))
    parts.append(render_differences(_compare_answers(results, runs)))
    text = "\n\n".join([describe_machine(), *(part for part in parts if part)])
    print(f"\n{text}")
    missing = sorted({queue for queue, _ in planned} - {row.queue for row in rows})
    if args.page is not None and missing:
        print(f"\n{args.page} is left as it is: there are no runs of {', '.join(missing)}; leave out --only")
        return False
    if rows:
        from benchmarks.plot import draw_walls

        draw_walls(rows, titles, OURS, args.picture)
        print(f"\n{args.picture}")
    if args.page is not None:
        write_between(args.page, args.place, f"{text}\n\n![Wall times]({args.picture.name})")
    return True


def _compare_answers(results: Results, runs: Sequence[Run]) -> dict[str, float]:
    """By queue: the share of documents that bulkinfer and `LLM.chat` answered differently in their last runs."""
    last = {(run.queue, run.peer): run for run in runs if run.series is Series.MAIN}
    pairs = {queue: (run, last.get((queue, TUNED))) for (queue, peer), run in last.items() if peer == OURS}
    return {
        queue: share_different(results.load_answers(ours), results.load_answers(theirs))
        for queue, (ours, theirs) in pairs.items()
        if theirs is not None and theirs.num_documents == ours.num_documents
    }


def _name(step: Step) -> str:
    series = "noise " if step.series is Series.NOISE else ""
    return f"{series}{step.queue.name} ({len(step.queue.entries)}), {step.peer.title}, round {step.round + 1}"


def _tell(run: Run) -> str:
    parts = [f"{run.wall_s:.1f} s"]
    if run.generate_s is not None:
        parts.append(f"generating {run.generate_s:.1f} s")
    if run.output_tokens_per_s is not None:
        parts.append(f"{run.output_tokens_per_s:.0f} output tokens/s")
    return ", ".join([*parts, f"{run.peak_memory_bytes / (1 << 30):.1f} GiB"])


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0])
    names = [peer.name for peer in PEERS]
    parser.add_argument(
        "--quick", action="store_true", help="an eighth of the documents, one round, two peers, no page"
    )
    parser.add_argument("--only", nargs="+", choices=queue_names(), default=list(queue_names()), metavar="QUEUE")
    parser.add_argument("--peers", nargs="+", choices=names, default=None, metavar="PEER", help=", ".join(names))
    parser.add_argument("--rounds", type=int, default=None, help="of each peer on each queue; default: 1 to 3")
    parser.add_argument("--noise-pairs", type=int, default=None, help="A/A pairs before all else; default: 2, quick: 1")
    parser.add_argument("--scale", type=float, default=None, help="times the number of documents")
    parser.add_argument("--resume", action="store_true", help="make only the runs that are missing")
    parser.add_argument("--place", choices=("figures", "peers"), default="figures", help="in docs/performance.md")
    parser.add_argument("--report-only", action="store_true", help="measure nothing; write the figures again")
    parser.add_argument(
        "--results", type=Path, default=None, help="a folder; default: benchmarks/results/full or quick"
    )
    args = parser.parse_args()
    args.scale = args.scale or (QUICK_SCALE if args.quick else 1.0)
    args.peers = args.peers or list(QUICK_PEERS if args.quick else FULL_PEERS)
    args.noise_pairs = (1 if args.quick else 2) if args.noise_pairs is None else args.noise_pairs
    folder = "quick" if args.quick else {"figures": "full"}.get(args.place, args.place)
    if args.scale != (QUICK_SCALE if args.quick else 1.0):
        folder += f"-{args.scale:g}"
    args.results = args.results or ROOT / "benchmarks" / "results" / folder
    # Only the full suite writes into docs/; a quick one leaves its picture beside its runs.
    is_shown = not args.quick and args.scale == 1.0
    args.page = PAGE if is_shown else None
    args.picture = PICTURES[args.place] if is_shown else args.results / "performance.png"
    return args


if __name__ == "__main__":
    sys.exit(main())
