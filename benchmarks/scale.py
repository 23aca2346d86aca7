"""How a run behaves as its input grows: memory, commits and file over time, with an engine that costs nothing.

    python -m benchmarks.scale --documents 10000000 --to out/scale

Three runs over the same Parquet file, each a process of its own: `fresh` from nothing, where one document in a thousand
fails for a reason that may pass; `resume`, which asks those again; `nothing`, with nothing left to do. `bulkinfer plan`
is measured before the first and after the last. Writes scale.json and scale.png and prints two tables.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb
import yaml

from benchmarks.fake_model import write_fake_model
from benchmarks.make_documents import RARE, make_tables, write_documents

SAMPLE_EVERY_S = 0.5
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Sample:
    """A look at a run from outside."""

    elapsed_s: float
    rss_bytes: int
    database_bytes: int
    wal_bytes: int
    spill_bytes: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One run, from the start of its process to its end."""

    phase: str
    wall_s: float
    summary: Mapping[str, Any]
    first_commit_s: float | None
    """From the start of the process until its first answers were on disk."""
    commits: Sequence[tuple[float, int, float]]
    """Seconds since the start of the process, outcomes, seconds that the commit took."""
    samples: Sequence[Sample]

    def row(self) -> list[str]:
        """A line of the table."""
        documents = self.summary["documents"]
        num_done = documents["succeeded"] + documents["failed"]
        commit_ms = sorted(1000 * commit_s for _, _, commit_s in self.commits)
        peak = self.summary["peak_memory_bytes"]["runner"] / MB
        return [
            self.phase,
            f"{documents['read']:,}",
            f"{num_done:,}",
            f"{self.wall_s:.1f}",
            "-" if self.first_commit_s is None else f"{self.first_commit_s:.1f}",
            f"{num_done / self.wall_s:,.0f}",
            f"{1e6 * self.wall_s / max(documents['read'], 1):.1f}",
            f"{peak:,.0f}",
            f"{len(commit_ms)}",
            f"{commit_ms[len(commit_ms) // 2]:.0f} / {commit_ms[-1]:.0f}" if commit_ms else "-",
            f"{self.samples[-1].database_bytes / MB:,.0f}",
        ]


HEAD = [
    "run",
    "rows",
    "asked",
    "wall s",
    "first answers s",
    "documents/s",
    "us per row",
    "peak MB",
    "commits",
    "commit ms p50 / max",
    "database MB",
]


@dataclass(frozen=True, slots=True)
class Plan:
    """One `bulkinfer plan`, from the start of its process to its end."""

    phase: str
    wall_s: float
    documents: Mapping[str, int]
    reading_s: float
    peak_memory_bytes: int

    def row(self) -> list[str]:
        """A line of the table."""
        return [
            self.phase,
            f"{self.documents['read']:,}",
            f"{self.documents['to_do']:,}",
            f"{self.wall_s:.1f}",
            f"{self.reading_s:.1f}",
            f"{self.peak_memory_bytes / MB:,.0f}",
        ]


PLAN_HEAD = ["plan", "rows", "to do", "wall s", "reading s", "peak MB"]


def write_job(folder: Path, documents: Path) -> Path:
    """A job over the documents on the simulated engine, which answers at once."""
    write_fake_model(folder / "model")
    job = {
        "name": "scale",
        "input": {"path": str(documents.resolve()), "id": "id"},
        "model": {"path": "model"},
        "prompt": {"system": "Summarise.", "user": "{{ body }}"},
        "sampling": {"max_tokens": 16},
        "limits": {"max_concurrency": 256},
        "engine": {
            "kind": "simulated",
            "simulated": {
                "seconds_per_prompt_token": 0,
                "seconds_per_output_token": 0,
                "faults": [{"match": RARE, "kind": "error"}],
            },
        },
        "output": {"database": "scale.duckdb"},
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job), encoding="utf-8")
    return path


def measure(phase: str, job: Path, *arguments: str) -> Measured:
    """Run the job in a process of its own and look at it twice a second."""
    database = job.with_name("scale.duckdb")
    command = [sys.executable, "-m", "bulkinfer", "run", str(job), "--json", "--quiet", *arguments]
    began_s, began_at = time.monotonic(), time.time()
    samples = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        while run.poll() is None:
            samples.append(_look(run.pid, database, time.monotonic() - began_s))
            time.sleep(SAMPLE_EVERY_S if samples[-1].elapsed_s > 5 else 0.05)
        wall_s = time.monotonic() - began_s
        assert run.stdout is not None
        output = run.stdout.read()
    if run.returncode:
        sys.exit(f"{phase}: exit code {run.returncode}\n{output}")
    samples.append(_look(0, database, wall_s))
    summary = json.loads(output)
    commits = _read_commits(database, summary["run_id"], began_at)
    first_s = next((at_s for at_s, num_outcomes, _ in commits if num_outcomes), None)
    return Measured(phase, wall_s, summary, first_s, commits, samples)


def measure_plan(phase: str, job: Path, *arguments: str) -> Plan:
    """`bulkinfer plan` in a process of its own."""
    command = [sys.executable, "-m", "bulkinfer", "plan", str(job), "--json", *arguments]
    began_s = time.monotonic()
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    wall_s = time.monotonic() - began_s
    if found.returncode:
        sys.exit(f"plan {phase}: exit code {found.returncode}\n{found.stdout}{found.stderr}")
    told = json.loads(found.stdout)
    return Plan(phase, wall_s, told["documents"], told["seconds"]["reading"], told["peak_memory_bytes"])


def plot(measured: Sequence[Measured], path: Path) -> None:
    """Memory, commit times and file sizes over time, one column for each run."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(3, len(measured), figsize=(5 * len(measured), 9), squeeze=False)
    for column, run in enumerate(measured):
        times = [sample.elapsed_s for sample in run.samples[:-1]]
        memory, commits, sizes = (axes[row][column] for row in range(3))
        memory.plot(times, [sample.rss_bytes / MB for sample in run.samples[:-1]])
        memory.set(title=f"{run.phase}: {run.summary['documents']['read']:,} rows", ylabel="runner RSS, MB", ylim=0)
        commits.plot([at_s for at_s, _, _ in run.commits], [1000 * s for _, _, s in run.commits], ".", markersize=2)
        commits.set(ylabel="one commit, ms", ylim=0)
        for name in ("database", "wal", "spill"):
            sizes.plot(times, [getattr(sample, f"{name}_bytes") / MB for sample in run.samples[:-1]], label=name)
        sizes.set(ylabel="on disk, MB", xlabel="seconds", ylim=0)
        sizes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def print_table(lines: Sequence[Sequence[str]]) -> None:
    """A Markdown table, its head first."""
    head, *rows = lines
    for line in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(line) + " |")


def remove_database(database: Path) -> None:
    """With all that lies beside it; the folder of what did not fit into memory is one."""
    for old in database.parent.glob(f"{database.name}*"):
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink()


def _look(pid: int, database: Path, elapsed_s: float) -> Sample:
    return Sample(
        elapsed_s,
        _read_rss(pid),
        _size(database),
        _size(Path(f"{database}.wal")),
        sum(_size(file) for file in Path(f"{database}.tmp").glob("*")),
    )


def _read_rss(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024 if "VmRSS:" in status else 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_commits(database: Path, run_id: str, began_at: float) -> list[tuple[float, int, float]]:
    with duckdb.connect(database, read_only=True) as connection:
        lines = connection.execute(
            "select epoch(committed_at), rows + failed, commit_s from commits where run_id = $run::uuid order by seq",
            {"run": run_id},
        ).fetchall()
    return [(committed_at - began_at, num_outcomes, commit_s) for committed_at, num_outcomes, commit_s in lines]


def main() -> None:
    """Make the documents if they are not there, run, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--input", type=Path, help="a file that make_documents.py wrote, instead of a new one")
    parser.add_argument("--to", type=Path, default=Path("out/scale"))
    parser.add_argument("--no-picture", action="store_true", help="needs no matplotlib")
    given = parser.parse_args()
    given.to.mkdir(parents=True, exist_ok=True)
    documents = given.input or given.to / f"documents-{given.documents}.parquet"
    if not documents.exists():
        write_documents(make_tables(given.documents, seed=1, equal_share=0.0), documents)
        time.sleep(3)  # a file that is being written when a run begins is not known by its times alone
    remove_database(given.to / "scale.duckdb")
    job = write_job(given.to, documents)
    plans = [measure_plan("before", job)]
    no_faults = ("--set", "engine.simulated.faults=[]")
    measured = [
        measure("fresh", job),
        measure("resume", job, *no_faults),
        measure("nothing", job, *no_faults),
    ]
    plans.append(measure_plan("after", job, *no_faults))
    about = {
        "documents": given.documents,
        "cores": os.cpu_count(),
        "runs": [asdict(run) for run in measured],
        "plans": [asdict(plan) for plan in plans],
    }
    (given.to / "scale.json").write_text(json.dumps(about), encoding="utf-8")
    if not given.no_picture:
        plot(measured, given.to / "scale.png")
    print_table([HEAD, *(run.row() for run in measured)])
    print()
    print_table([PLAN_HEAD, *(plan.row() for plan in plans)])


if __name__ == "__main__":
    main()
