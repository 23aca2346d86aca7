"""What an export of many rows costs: time and memory of each format, over an input that is as the run saw it and not.

    python -m benchmarks.exports --documents 1000000 --to out/exports

Runs the job of `benchmarks.scale` over Parquet and over JSONL, exports it in each format, each in a process of its own,
then touches the input and exports again: rows are matched by content then. Prints a table.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.make_documents import make_tables, write_documents
from benchmarks.scale import print_table, write_job

MB = 1_000_000
FORMATS = ("parquet", "arrow", "csv", "jsonl", "openai.jsonl")
HEAD = ("input", "matched by", "format", "rows", "wall s", "CPU s", "peak MB", "file MB")


@dataclass(frozen=True, slots=True)
class Measured:
    """One export."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    file_bytes: int


def measure(job: Path, target: Path) -> Measured:
    """Export in a process of its own."""
    began_s = time.monotonic()
    command = [sys.executable, "-m", "bulkinfer", "export", str(job), "--to", str(target)]
    child = os.posix_spawn(sys.executable, command, os.environ)
    _, status, usage = os.wait4(child, 0)
    if status:
        sys.exit(f"{target}: status {status}")
    wall_s, cpu_s = time.monotonic() - began_s, usage.ru_utime + usage.ru_stime
    return Measured(wall_s, cpu_s, usage.ru_maxrss * 1024, target.stat().st_size)


def prepare(folder: Path, documents: Path) -> Path:
    """The job over the documents, run to its end: it knows the file as it is now."""
    folder.mkdir(parents=True, exist_ok=True)
    job = folder / "job.yaml"
    if not job.exists():
        job = write_job(folder, documents)
        spec = yaml.safe_load(job.read_text(encoding="utf-8"))
        del spec["engine"]["simulated"]["faults"]
        job.write_text(yaml.safe_dump(spec), encoding="utf-8")
    command = [sys.executable, "-m", "bulkinfer", "run", str(job), "--quiet"]
    subprocess.run(command, check=True)
    return job


def write_lines(source: Path, target: Path) -> None:
    """The same documents as JSONL."""
    with pq.ParquetFile(source) as documents, target.open("wb") as stream:
        for batch in documents.iter_batches(20_000):
            table = pa.Table.from_batches([batch])
            stream.write(b"".join(_encode(table)))


def _encode(table: pa.Table) -> Sequence[bytes]:
    import orjson

    return [orjson.dumps(row, default=str) + b"\n" for row in table.to_pylist()]


def main() -> None:
    """Make, run, export, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--to", type=Path, default=Path("out/exports"))
    given = parser.parse_args()
    given.to.mkdir(parents=True, exist_ok=True)
    parquet = given.to / f"documents-{given.documents}.parquet"
    jsonl = parquet.with_suffix(".jsonl")
    if not parquet.exists():
        write_documents(make_tables(given.documents, seed=1, equal_share=0.0), parquet)
    if not jsonl.exists():
        write_lines(parquet, jsonl)
    lines: list[Sequence[str]] = [HEAD]
    for documents in (parquet, jsonl):
        job = prepare(given.to / f"{documents.suffix[1:]}-{given.documents}", documents)
        for is_touched in (False, True):
            if is_touched:
                documents.touch()
            for ending in FORMATS:
                found = measure(job, given.to / f"answers.{ending}")
                match = "content" if is_touched else "row"
                sizes = (
                    f"{found.wall_s:.1f}",
                    f"{found.cpu_s:.1f}",
                    f"{found.peak_bytes / MB:,.0f}",
                    f"{found.file_bytes / MB:,.0f}",
                )
                lines.append((documents.suffix[1:], match, ending, f"{given.documents:,}", *sizes))
                print(" ".join(lines[-1]), file=sys.stderr)
    print_table(lines)


if __name__ == "__main__":
    main()
