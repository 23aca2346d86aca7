"""What this machine gives an engine: cores, memory, a compiler, speed. Within the limits of its container."""

import math
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_CGROUP_PATH = Path("/sys/fs/cgroup")
_OWN_CGROUPS_PATH = Path("/proc/self/cgroup")
_TOPOLOGY_PATH = Path("/sys/devices/system/cpu")
_COMPILERS = ("g++", "clang++", "c++")
_GEMM_SIZES = (512, 1024, 1024)
_NUM_GEMMS = 5


def count_cores() -> int:
    """Cores that this process may use: its affinity, and the share of them that its container gets."""
    num_cores = len(os.sched_getaffinity(0))
    for folder in _iter_cgroups():
        with suppress(OSError, ValueError):  # not there, or "max": no limit
            quota, period = (int(word) for word in (folder / "cpu.max").read_text().split())
            num_cores = min(num_cores, math.ceil(quota / period))
    return max(1, num_cores)


def count_threads(num_replicas: int = 1) -> int:
    """Threads for one engine: one for each physical core that it may use, as vLLM itself does on x86.

    Two hyperthreads of one core share the units that multiply matrices.
    """
    siblings = set()
    for cpu in os.sched_getaffinity(0):
        try:
            siblings.add((_TOPOLOGY_PATH / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text())
        except OSError:
            siblings.add(str(cpu))
    return max(1, min(count_cores(), len(siblings)) // num_replicas)


def read_free_memory_bytes() -> int:
    """Memory that this process may still take: what the machine has free, within the limit of its container."""
    free = psutil.virtual_memory().available
    for folder in _iter_cgroups():
        with suppress(OSError, ValueError):  # not there, or "max": no limit
            limit = int((folder / "memory.max").read_text())
            free = min(free, limit - int((folder / "memory.current").read_text()) + _read_reclaimable_bytes(folder))
    with suppress(OSError, ValueError):  # version 1
        limit = int((_CGROUP_PATH / "memory/memory.limit_in_bytes").read_text())
        free = min(free, limit - int((_CGROUP_PATH / "memory/memory.usage_in_bytes").read_text()))
    return max(0, free)


def find_compiler() -> str | None:
    """A C++ compiler that torch would use; None without one."""
    names = (os.environ["CXX"],) if os.environ.get("CXX") else _COMPILERS
    return next((path for name in names if (path := shutil.which(name))), None)


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


def _iter_cgroups() -> Iterator[Path]:
    """The control group of this process and all above it: each may have a limit."""
    yield _CGROUP_PATH
    with suppress(OSError):
        for line in _OWN_CGROUPS_PATH.read_text().splitlines():
            if line.startswith("0::/"):
                parts = [part for part in line.removeprefix("0::/").split("/") if part not in {"", "..", "."}]
                for length in range(1, len(parts) + 1):
                    yield _CGROUP_PATH.joinpath(*parts[:length])


def _read_reclaimable_bytes(folder: Path) -> int:
    """File pages that the kernel gives back when memory is needed; they count as used."""
    with suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "inactive_file":
                return int(value)
    return 0
