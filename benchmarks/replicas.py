"""How far one runner goes: 1,000 simulated engines on virtual clocks, and where its one reader and one writer saturate.

    python -m benchmarks.replicas                # simulated; a few minutes
    python -m benchmarks.replicas --vllm         # two engines on one core each against one, and one on two cores

The cost model of an engine (`engine.simulated`) is that of one large GPU with a model of 8 billion parameters: 20,000
prompt tokens/s while it reads prompts, 20 ms for a step of all its sequences. What is printed as virtual documents/s is
what so many such engines would do; real documents/s are those of a second of this machine's processor time, all threads
of the runner together.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.fake_model import write_fake_model
from bulkinfer.events import Event
from bulkinfer.job import load_job
from bulkinfer.outcome import decide_outcome
from bulkinfer.records import Commit, Completion, Outcome, Request
from bulkinfer.runner import RunOptions, plan_run
from bulkinfer.runner.fleet import Fleet
from bulkinfer.runner.ledger import Ledger
from bulkinfer.runner.loop import Run
from bulkinfer.runner.parts import create_engines_of, open_store
from bulkinfer.runner.plan import RunPlan
from bulkinfer.runner.signals import watch_signals
from bulkinfer.shards import MAX_SHARD_CHARS, MAX_SHARD_DOCUMENTS, Shard, ShardPlanner
from bulkinfer.store import RunRecord, RunSelection, Store, TaskRecord

SECONDS_PER_PROMPT_TOKEN = 1 / 20_000
SECONDS_PER_STEP = 0.020
MAX_CONCURRENCY = 64
_MIN_S = 1e-6
MODEL_PATH = Path(__file__).resolve().parents[1] / ".models" / "smollm2-135m-instruct"


def write_documents(path: Path, count: int, num_chars: int) -> None:
    """Different documents of one length, as Parquet."""
    words = "".join(chr(97 + number % 26) + " " * (number % 5 == 4) for number in range(num_chars))
    with pq.ParquetWriter(path, pa.schema([("id", pa.string()), ("body", pa.string())])) as writer:
        for start in range(0, count, 50_000):
            numbers = range(start, min(count, start + 50_000))
            bodies = [f"document {number} {words}"[:num_chars] for number in numbers]
            writer.write_table(pa.table({"id": [f"d{number}" for number in numbers], "body": bodies}))


def write_job(folder: Path, name: str, num_replicas: int, **costs: float) -> Path:
    """A job over the folder's documents."""
    write_fake_model(folder / "model")
    spec = {
        "name": "replicas",
        "input": {"path": "in.parquet", "id": "id"},
        "model": {"path": "model"},
        "prompt": {"system": "You say what a document is about.", "user": "{{ body }}"},
        "sampling": {"max_tokens": 64},
        # A turn of the loop lets 50 virtual ms pass, so the queue holds what all engines take in that time.
        "limits": {"max_concurrency": MAX_CONCURRENCY, "max_queue_size": 2 * MAX_CONCURRENCY * max(8, num_replicas)},
        "engine": {"kind": "simulated", "replicas": num_replicas, "simulated": {"clock": "virtual", **costs}},
        "output": {"database": f"{name}.duckdb"},
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def read_shards(plan: RunPlan, store: Store) -> tuple[list[Shard], float]:
    """The reader alone: rows read, hashed, looked up, rendered, ordered. All shards, and how long they took."""
    record = RunRecord(uuid4(), "replicas", "", datetime.now(UTC))
    scans = store.begin_run(record, TaskRecord(plan.task_fingerprint, "{}"), plan.files, plan.layout)
    planner = ShardPlanner(
        scans=scans,
        template=plan.template,
        id_field="id",
        find_done=lambda hashes: store.find_done(hashes, RunSelection()),
        limit=None,
        max_documents=MAX_SHARD_DOCUMENTS,
        max_chars=MAX_SHARD_CHARS,
    )
    started_s = time.process_time()
    return list(planner.iter_shards()), time.process_time() - started_s


def run_engines(plan: RunPlan, requests: Sequence[Request]) -> float:
    """The simulation of the engines alone, which real engines do elsewhere: seconds for all requests."""
    group = create_engines_of(plan)
    engines = group.engines
    for engine in engines:
        engine.start()
        engine.poll(0.0)
    started_s = time.process_time()
    for number, engine in enumerate(engines):
        engine.submit(requests[number :: len(engines)])
    num_left = len(requests)
    while num_left:
        for replica in group.bell.wait(0.0):
            num_left -= sum(isinstance(event, Completion) for event in engines[replica].poll(group.bell.poll_s))
    return time.process_time() - started_s


def run_loop(plan: RunPlan, shards: Sequence[Shard]) -> tuple[list[Outcome], float]:
    """The loop's own part and the engines: queue, windows, outcomes, counts, but no store. All outcomes; seconds."""
    group, max_concurrency = create_engines_of(plan), plan.engine_spec.expected_concurrency
    ledger = Ledger(0, max_concurrency, len(group.engines))
    fleet = Fleet(
        group,
        "model",
        max_concurrency=max_concurrency,
        max_restarts=0,
        ledger=ledger,
        emit=_ignore,
    )
    pending = deque(request for shard in shards for request in shard.requests)
    outcomes: list[Outcome] = []
    started_s = time.process_time()
    while pending or fleet.num_waiting or fleet.num_in_flight:
        now_s = fleet.now()
        while pending and len(fleet.queue) < plan.job.spec.limits.max_queue_size:
            fleet.queue.append(replace(pending.popleft(), queued_at_s=now_s))
        fleet.feed(may_grow=False, num_behind=len(pending))
        for returned in fleet.poll(0.0):
            flight, event = returned.flight, returned.event
            if isinstance(event, Completion):
                ledger.note_completion(flight.request, event, returned.replica)
            outcome = decide_outcome(flight.request, event, submitted_at_s=flight.submitted_at_s, now=datetime.now(UTC))
            ledger.note_outcome(outcome, flight.request.num_chars)
            outcomes.append(outcome)
    return outcomes, time.process_time() - started_s


def write_outcomes(store: Store, shards: Sequence[Shard], outcomes: Sequence[Outcome]) -> float:
    """The writer alone: seconds until all rows and outcomes are on disk."""
    started_s = time.process_time()
    for shard in shards:
        store.add_rows(shard.rows)
    for start in range(0, len(outcomes), 500):
        store.add(outcomes[start : start + 500])
    store.flush()
    return time.process_time() - started_s


def run_all(plan: RunPlan) -> tuple[float, float, int]:
    """A whole run: seconds of this machine, virtual seconds, documents answered."""
    engines = create_engines_of(plan)
    committed: SimpleQueue[Commit] = SimpleQueue()
    with ExitStack() as stack:
        stop = stack.enter_context(watch_signals(ends_process=False))
        store = open_store(plan, stop, committed.put)
        stack.callback(store.close)
        started_s = time.process_time()
        run = Run(plan, RunSelection(), RunOptions(), _ignore, store, engines, stop, committed)
        stack.callback(run.close)
        report = run.report(run.work())
        took_s = time.process_time() - started_s
    assert report.error is None, report.error
    documents = report.summary["documents"]
    assert isinstance(documents, dict)
    virtual_s = max(engine.now() for engine in engines.engines)
    return took_s, virtual_s, documents["succeeded"]


def simulate(num_documents: int, num_chars: int, num_replicas: int) -> None:
    """Print the table of one size of documents."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_documents(folder / "in.parquet", num_documents, num_chars)
        costs = {"seconds_per_prompt_token": SECONDS_PER_PROMPT_TOKEN, "seconds_per_output_token": SECONDS_PER_STEP}
        plan = plan_run(load_job(write_job(folder, "run", num_replicas, **costs)))
        took_s, virtual_s, num_answered = run_all(plan)
        assert num_answered == num_documents
        with closing(Store.open(folder / "parts.duckdb")) as store:
            shards, reader_s = read_shards(plan, store)
            requests = [request for shard in shards for request in shard.requests]
            engines_s = run_engines(plan, requests)
            outcomes, loop_s = run_loop(plan, shards)
            assert len(outcomes) == num_documents
            writer_s = write_outcomes(store, shards, outcomes)
    print(f"\n{num_documents:,} documents of {num_chars} characters, {num_replicas:,} engines of {MAX_CONCURRENCY}")
    per_engine = num_documents / virtual_s / num_replicas
    print(f"  virtual: {virtual_s:,.1f} s, {num_documents / virtual_s:,.0f} documents/s, {per_engine:.1f} an engine")
    _print_rate("real: whole run", num_documents, took_s)
    _print_rate("reader alone (plan shards)", num_documents, reader_s)
    _print_rate("writer alone (Store.add)", num_documents, writer_s)
    _print_rate(f"loop alone, {num_replicas:,} engines", num_documents, loop_s - engines_s)
    _print_rate("simulation of the engines", num_documents, engines_s)
    own_s = max(_MIN_S, took_s - engines_s)
    print(f"  without the simulation this core feeds {num_documents / own_s / per_engine:,.0f} such engines")


def compare_vllm(num_documents: int, num_rounds: int) -> None:
    """Print what two engines on a core each are worth against one on one core, and against one on two, in rounds."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    cases = {"one on one core": (1, cores[:1]), "two on a core each": (2, cores), "one on two cores": (1, cores)}
    rates: dict[str, list[float]] = {name: [] for name in cases}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_documents(folder / "in.parquet", num_documents, 240)
        for number in range(num_rounds):
            for case, (num_replicas, own) in cases.items():
                rates[case].append(_run_vllm(folder, f"r{number}-{case.replace(' ', '-')}", num_replicas, own))
                print(f"  {case:<20} {rates[case][-1]:>8.3f} documents/s", flush=True)
    medians = {case: statistics.median(found) for case, found in rates.items()}
    for case in ("one on one core", "one on two cores"):
        print(f"two on a core each / {case}: {medians['two on a core each'] / medians[case]:.2f}")


def _run_vllm(folder: Path, name: str, num_replicas: int, cores: Sequence[int]) -> float:
    """Documents per second of one run with the demo model, from the first request to the last answer."""
    path = write_job(folder, name, num_replicas)
    spec = yaml.safe_load(path.read_text())
    spec["model"] = {"path": str(MODEL_PATH)}
    spec["sampling"] = {"max_tokens": 32}
    spec["limits"] = {"max_concurrency": 32, "max_queue_size": 512, "max_context_tokens": 1024, "max_failures": "100%"}
    spec["engine"] = {"kind": "vllm", "replicas": num_replicas}
    path.write_text(yaml.safe_dump(spec))
    command = [sys.executable, "-m", "bulkinfer", "run", str(path), "--json", "--quiet"]
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    # 5: the model's answers are cut at max_tokens, which is as much work.
    assert ended.returncode in {0, 5}, ended.stderr[-2000:]
    rate: float = json.loads(ended.stdout)["throughput"]["documents_per_s"]
    return rate


def _print_rate(label: str, count: int, seconds: float) -> None:
    print(f"  {label:<32} {count / max(_MIN_S, seconds):>10,.0f} documents/s {1e6 * seconds / count:>8.1f} us each")


def _ignore(event: Event) -> None:
    """Nobody watches."""


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int)
    parser.add_argument("--replicas", type=int, default=1_000)
    parser.add_argument("--chars", type=int, nargs="+", default=[500, 4_000])
    parser.add_argument("--vllm", action="store_true", help="real engines and the demo model, instead")
    options = parser.parse_args()
    if options.vllm:
        compare_vllm(num_documents=options.documents or 128, num_rounds=2)
        return
    for num_chars in options.chars:
        simulate(options.documents or 600_000, num_chars, options.replicas)


if __name__ == "__main__":
    main()
