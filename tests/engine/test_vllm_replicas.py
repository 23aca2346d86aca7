"""Two real engines side by side: each on cores of its own, and together they answer as one does."""

import json
import os
import subprocess
import sys

import psutil
import pytest

from bulkinfer.engines.environment import count_cores
from tests.cli_support import wait_until
from tests.conftest import JobFolder
from tests.engine.test_vllm_run import TEXTS, TICKETS, make_job, select

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(300),
    pytest.mark.skipif(count_cores() < 2, reason="needs a core for each engine"),
]


def start(folder: JobFolder, replicas: int, **variables: str) -> "subprocess.Popen[str]":
    """The job with so many engines, each of which runs one document at a time."""
    engine = {"kind": "vllm", "replicas": replicas, "vllm": {"kv_cache_memory_bytes": 256 << 20}}
    command = [sys.executable, "-m", "bulkinfer", "run", str(folder.job_path), "--json", "--set", f"engine={engine}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "BULKINFER_"))}
    return subprocess.Popen(
        command, env=environment | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_two_engines_have_cores_of_their_own_and_answer_as_one_does(tmp_path_factory: pytest.TempPathFactory) -> None:
    several = make_job(tmp_path_factory.mktemp("several"), TICKETS)
    run = start(several, 2)
    try:
        parent = psutil.Process(run.pid)
        wait_until(lambda: len(parent.children()) == 2 or run.poll() is not None, "both engines")
        wait_until(lambda: _are_apart(parent), "cores of their own")
        cores = [set(child.cpu_affinity() or ()) for child in parent.children()]
        assert set.union(*cores) == os.sched_getaffinity(0)
    finally:
        out, err = run.communicate(timeout=200)
    assert run.returncode == 0, err
    replicas = json.loads(out)["engine"]["replicas"]
    assert sorted(replica["documents"] > 0 for replica in replicas) == [True, True]

    alone = make_job(tmp_path_factory.mktemp("alone"), TICKETS)
    run = start(alone, 1, OMP_NUM_THREADS=str(len(cores[0])))
    out, err = run.communicate(timeout=200)
    assert run.returncode == 0, err
    assert "replicas" not in json.loads(out)["engine"]
    assert select(several, TEXTS) == select(alone, TEXTS)


def _are_apart(parent: psutil.Process) -> bool:
    cores = [set(child.cpu_affinity() or ()) for child in parent.children()]
    return len(cores) == 2 and not cores[0] & cores[1]
