"""How long a run takes from nothing to its first answer: `python -m benchmarks.start [--runs 5]`.

A job with one document, again and again, each time from nothing in a process of its own, with the model in the file
cache. Timed from before the process is made until the commit of the answer, as the database has it. Prints the least,
the median and the most. With `--simulated` the engine costs nothing: what is left is bulkinfer itself.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import yaml

from benchmarks.fake_model import write_fake_model
from benchmarks.peers.catalogue import MODEL_PATH

NUM_RUNS = 5


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds since before the process was made."""

    first_answer_s: float
    """Until the commit."""
    wall_s: float
    """Until the process was gone."""
    engine_start_s: float
    """As the run tells: from the start of the engine until it was ready."""


def write_job(folder: Path, *, kind: str) -> Path:
    """A job with one document. Only the database is to be removed between two runs."""
    (folder / "document.jsonl").write_text('{"id": "1", "text": "My parcel has not come."}\n', encoding="utf-8")
    model = MODEL_PATH
    if kind == "simulated":
        model = folder / "model"
        write_fake_model(model)
    job = {
        "name": "start",
        "input": {"path": "document.jsonl", "id": "id"},
        "model": {"path": str(model)},
        "prompt": {"user": "Say in one word what this is about: {{ text }}"},
        "sampling": {"temperature": 0, "max_tokens": 16},
        "limits": {"max_failures": "100%"},
        "engine": {"kind": kind},
        "output": {"database": "start.duckdb"},
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job), encoding="utf-8")
    return path


def measure(job: Path) -> Start:
    """One run from nothing."""
    database = job.with_name("start.duckdb")
    database.unlink(missing_ok=True)
    began_s, began_at_s = time.monotonic(), time.time()
    command = [sys.executable, "-m", "bulkinfer", "run", str(job), "--json", "--quiet"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    wall_s = time.monotonic() - began_s
    if found.returncode not in {0, 5}:  # 5: the answer was cut at max_tokens
        sys.exit(f"exit code {found.returncode}\n{found.stdout}{found.stderr}")
    with duckdb.connect(database, read_only=True) as connection:
        [(committed_at_s,)] = connection.execute(
            "select epoch(min(committed_at)) from commits where rows + failed > 0"
        ).fetchall()
    return Start(committed_at_s - began_at_s, wall_s, json.loads(found.stdout)["seconds"]["engine_start"])


def print_table(starts: Sequence[Start]) -> None:
    """Least, median and most of each."""
    print("| from the start of the process until | least, s | median, s | most, s |\n|---|---|---|---|")
    for name, seconds in (
        ("first answer on disk", [start.first_answer_s for start in starts]),
        ("process gone", [start.wall_s for start in starts]),
        ("of these: starting the engine", [start.engine_start_s for start in starts]),
    ):
        print(f"| {name} | {min(seconds):.2f} | {statistics.median(seconds):.2f} | {max(seconds):.2f} |")


def main() -> None:
    """Run again and again, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=NUM_RUNS)
    parser.add_argument("--simulated", action="store_true", help="an engine that costs nothing")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bulkinfer-start-") as folder:
        job = write_job(Path(folder), kind="simulated" if given.simulated else "vllm")
        print_table([measure(job) for _ in range(given.runs)])


if __name__ == "__main__":
    main()
