"""Sampling with a seed, on more prompt tokens than one step takes: it used to end the engine on a CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).parents[2] / "jobs/answer.yaml"


@pytest.mark.engine
def test_a_seeded_job_does_not_end_the_engine(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bulkinfer", "run", str(JOB), "--limit", "40", "--json", "--quiet"]
    command += ["--set", f"output.database={tmp_path / 'out.duckdb'}", "--set", "engine.max_restarts=0"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    summary = json.loads(found.stdout)
    assert (summary["exit_code"], summary["engine"]["restarts"]) == (0, 0), found.stderr
    assert summary["documents"]["succeeded"] + summary["documents"]["failed"] == 40
