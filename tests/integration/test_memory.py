"""Memory does not grow with the queue."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.conftest import JobFolder


def run_documents(path: Path, count: int) -> int:
    """Run so many documents of 500 characters in a process of its own; its peak memory in bytes."""
    path.mkdir()
    folder = JobFolder(path)
    bodies = [f"{number} " + "x" * 490 for number in range(count)]
    pq.write_table(pa.table({"id": [f"d{number}" for number in range(count)], "body": bodies}), path / "in.parquet")
    job = folder.write_job(input={"path": "in.parquet"}, limits={"max_concurrency": 256})
    command = [sys.executable, "-m", "bulkinfer", "run", str(job), "--json", "--quiet"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    summary = json.loads(found.stdout)
    assert summary["documents"]["succeeded"] == count
    return int(summary["peak_memory_bytes"]["runner"])


def test_a_hundred_thousand_documents_need_little_more_memory_than_ten_thousand(tmp_path: Path) -> None:
    small = run_documents(tmp_path / "small", 10_000)
    large = run_documents(tmp_path / "large", 100_000)
    assert large - small < 150_000_000
