"""What is chosen for the demo job: `doctor` says it before, the summary says what really ran."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bulkinfer.store import engine_log_path
from tests.conftest import JobFolder
from tests.engine_support import MODEL_PATH, ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

NUM_DOCUMENTS = 12
LOADS_WEIGHTS = "Starting to load model"
"""In vLLM's log."""
CHOSEN = {
    "block_size",
    "max_model_len",
    "max_num_seqs",
    "kv_cache_memory_bytes",
    "max_num_batched_tokens",
    "enforce_eager",
    "threads",
}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobFolder:
    """A few short documents for the demo model; nothing of the engine is given."""
    folder = JobFolder(tmp_path_factory.mktemp("settings"))
    folder.write_documents([{"id": f"d{number}", "body": f"Say {number}."} for number in range(NUM_DOCUMENTS)])
    folder.write_job(
        model={"path": str(MODEL_PATH)}, engine={"kind": "vllm", "simulated": {}}, limits={"max_failures": "100%"}
    )
    folder.job_path.write_text(folder.job_path.read_text().replace("max_concurrency: 4", "max_concurrency: auto"))
    return folder


def run_json(cache: Path, *arguments: str | Path) -> dict[str, Any]:
    """Run a command with `--json`, with a cache folder of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "BULKINFER_"))}
    environment["XDG_CACHE_HOME"] = str(cache)
    command = [sys.executable, "-m", "bulkinfer", *map(str, arguments), "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=140, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_doctor_says_what_the_run_then_chooses(job: JobFolder, tmp_path: Path) -> None:
    checks = run_json(tmp_path, "doctor", job.job_path)["checks"]
    told = dict(check["found"].split(": ", 1) for check in checks if check["name"] == "settings")
    assert {name.split()[0] for name in told} >= CHOSEN
    assert not engine_log_path(job.database).exists()

    summary = run_json(tmp_path, "run", job.job_path)
    assert summary["documents"]["succeeded"] + summary["documents"]["failed"] == NUM_DOCUMENTS
    settings = summary["engine"]["settings"]
    assert set(settings["reasons"]) >= CHOSEN
    # 8192 is the demo model's own context; so few documents are not worth compiling for.
    expected = {"max_model_len": 8192, "max_num_seqs": 256, "block_size": 32, "enforce_eager": True}
    assert {name: settings[name] for name in expected} == expected
    assert summary["engine"]["max_concurrency"] == 256
    assert LOADS_WEIGHTS in engine_log_path(job.database).read_text(encoding="utf-8", errors="replace")
    assert 256 << 20 <= settings["kv_cache_memory_bytes"] < 1 << 30
    assert {f"{name} {settings[name]}" for name in CHOSEN} <= set(told)
    # The cache folder is the one of this version, these threads, this CPU.
    (cache,) = (tmp_path / "bulkinfer" / "vllm").iterdir()
    assert len(cache.name) == 16


def test_a_job_whose_answers_fill_the_model_ends_before_the_weights_are_loaded(job: JobFolder, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bulkinfer", "run", str(job.job_path), "--json", "--set"]
    command += ["sampling.max_tokens=8192", "--set", f"output.database={tmp_path / 'out.duckdb'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=140, check=False)
    assert done.returncode == 2, done.stderr[-2000:]
    assert "sampling.max_tokens: expected less than 8,192, which is what the model can take" in done.stderr
    log = engine_log_path(tmp_path / "out.duckdb").read_text(encoding="utf-8", errors="replace")
    assert LOADS_WEIGHTS not in log
