"""What this machine gives an engine: cores, memory, a compiler, speed. Within the limits of its container."""

import math
import os
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

TORCH_CACHE = "inductor"
"""The folder of compiled code within that of vLLM."""
_CGROUP_PATH = Path("/sys/fs/cgroup")
_OWN_CGROUPS_PATH = Path("/proc/self/cgroup")
_CPU_PATH = Path("/sys/devices/system/cpu")
_NODE_PATH = Path("/sys/devices/system/node")
_COMPILERS = ("g++", "clang++", "c++")
_GEMM_SIZES = (512, 1024, 1024)
_NUM_GEMMS = 5


def count_cores() -> int:
    """Cores that this process may use: its affinity, and the share of them that its container gets."""
    return max(1, min(len(os.sched_getaffinity(0)), _read_quota()))


def count_threads(num_replicas: int = 1, cores: Collection[int] = ()) -> int:
    """Threads for one engine of `num_replicas` that keeps to `cores`, by default to those of this process.

    One for each physical core, as vLLM itself does on x86: two hyperthreads share the units that multiply matrices.
    What the container gets of the cores is for all engines.
    """
    return max(1, min(len(group_cores(cores or os.sched_getaffinity(0))), _read_quota() // num_replicas))


def list_cores() -> list[int]:
    """The cores that this process may use, neighbours first: by NUMA node, then by core, its hardware threads together.

    So a stretch of the list shares as little as possible with the rest.
    """
    return [core for threads in group_cores(os.sched_getaffinity(0)) for core in threads]


def group_cores(cores: Iterable[int]) -> list[list[int]]:
    """Hardware threads by the physical core that they share; neighbours first, as in `list_cores`."""
    groups: dict[tuple[int, int], list[int]] = {}
    for core in sorted(cores):
        groups.setdefault((find_node(core), _find_first_thread(core)), []).append(core)
    return [groups[key] for key in sorted(groups)]


def find_node(core: int) -> int:
    """The NUMA node of a core."""
    for path in (_CPU_PATH / f"cpu{core}").glob("node[0-9]*"):
        return int(path.name.removeprefix("node"))
    return 0


def read_node_memory_bytes(node: int) -> int | None:
    """What a NUMA node has free, as vLLM counts it; None where the system does not say."""
    num_kib = 0
    with suppress(OSError, ValueError, IndexError):
        for line in (_NODE_PATH / f"node{node}" / "meminfo").read_text().splitlines():
            name, value = line.split()[2:4]
            if name in {"MemFree:", "Active(file):", "Inactive(file):", "SReclaimable:"}:
                num_kib += int(value)
        return num_kib * 1024
    return None


def read_free_memory_bytes() -> int:
    """Memory that this process may still take: what the machine has free, within the limit of its container."""
    free: float = psutil.virtual_memory().available
    for folder in _iter_cgroups():
        free = min(free, _read_room_bytes(folder, "memory.max", "memory.current", ""))
    for folder in _iter_cgroups("memory"):
        free = min(free, _read_room_bytes(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"))
    return max(0, int(free))


def find_compiler() -> str | None:
    """A C++ compiler that torch would use; None without one."""
    names = (os.environ["CXX"],) if os.environ.get("CXX") else _COMPILERS
    return next((path for name in names if (path := shutil.which(name))), None)


def has_compiled_code(cache: Path) -> bool:
    """Whether an engine has left compiled code in its cache folder, of whatever model."""
    return any((cache / TORCH_CACHE / "fxgraph").glob("*/*"))


def measure_flops_per_s() -> float:
    """Floating point operations per second of a matrix product in bfloat16, with all threads: the best of five.

    Takes some milliseconds. Call it in a process that uses torch anyway.
    """
    import torch  # noqa: PLC0415 - the runner's process must not load it

    rows, inner, columns = _GEMM_SIZES
    left, right = (torch.ones(shape, dtype=torch.bfloat16) for shape in ((rows, inner), (inner, columns)))
    seconds = []
    for _ in range(_NUM_GEMMS):
        start_s = time.perf_counter()
        torch.mm(left, right)
        seconds.append(time.perf_counter() - start_s)
    return 2 * rows * inner * columns / max(min(seconds), 1e-9)


def describe_cpu() -> str:
    """Model and abilities of the CPU: code that was compiled for one may not run, or run slowly, on another."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    wanted = ("vendor_id", "cpu family", "model", "model name", "flags", "CPU implementer", "CPU part", "Features")
    return "\n".join(dict.fromkeys(line for line in lines if line.partition(":")[0].strip() in wanted))


def _find_first_thread(core: int) -> int:
    """The first of the hardware threads that share a core with this one."""
    with suppress(OSError, ValueError):
        siblings = (_CPU_PATH / f"cpu{core}" / "topology" / "thread_siblings_list").read_text()
        return int(siblings.strip().replace("-", ",").split(",")[0])
    return core


def _read_quota() -> int:
    """Cores' worth of time that the container gets; a very large number without a limit."""
    quota_cores = sys.maxsize
    for folder in _iter_cgroups():
        with suppress(OSError, ValueError):  # not there, or "max": no limit
            quota, period = (int(word) for word in (folder / "cpu.max").read_text().split())
            quota_cores = min(quota_cores, math.ceil(quota / period))
    for folder in _iter_cgroups("cpu"):
        with suppress(OSError, ValueError):
            quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            if quota > 0:  # -1: no limit
                quota_cores = min(quota_cores, math.ceil(quota / period))
    return quota_cores


def _iter_cgroups(controller: str = "") -> Iterator[Path]:
    """The control group of this process and all above it: each may have a limit. With a controller: of version 1."""
    base = _CGROUP_PATH / controller
    yield base
    with suppress(OSError):
        for line in _OWN_CGROUPS_PATH.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                parts = [part for part in path.split("/") if part not in {"", "..", "."}]
                for length in range(1, len(parts) + 1):
                    yield base.joinpath(*parts[:length])


def _read_room_bytes(folder: Path, limit_name: str, usage_name: str, prefix: str) -> float:
    """What a control group may still take; infinite without a limit.

    File pages, which the kernel gives back when memory is needed, count as used there, but not here.
    """
    try:
        room = int((folder / limit_name).read_text()) - int((folder / usage_name).read_text())
    except (OSError, ValueError):  # not there, or "max"
        return math.inf
    with suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in {f"{prefix}inactive_file", f"{prefix}active_file"}:
                room += int(value)
    return room
