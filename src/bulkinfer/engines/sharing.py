"""How many engines share a machine, and what each gets of it: cores, or GPUs."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from bulkinfer.engines.machine import find_node, group_cores, list_cores, read_node_memory_bytes
from bulkinfer.errors import JobError
from bulkinfer.records import JsonValue

_T = TypeVar("_T")
_LIST_TIMEOUT_S = 20.0
_KEY = "engine.replicas"
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def decide_on_cores(wanted: int | None, num_cores: int) -> int:
    """Engines on a CPU with so many cores to use; `wanted` None is `auto`: one for each NUMA node that has some.

    Several within a node would each have their own weights and prefix cache; one across nodes takes memory of one node
    only. Raises JobError for more than cores.
    """
    if wanted is None:
        return max(1, min(num_cores, len({find_node(core) for core in list_cores()})))
    if wanted > num_cores:
        raise JobError(
            f"{_KEY}: expected at most {num_cores}, one for each core that can be used, found {wanted}", _KEY
        )
    return wanted


def decide_on_gpus(wanted: int | None, arguments: Mapping[str, JsonValue], environment: Mapping[str, str]) -> int:
    """Engines on GPUs; `wanted` None is `auto`: as many as there are GPUs for, or one if nobody can tell.

    Raises JobError for more than there are GPUs for.
    """
    if wanted == 1:
        return 1
    per_replica = count_gpus_per_replica(arguments)
    gpus = list_gpus(environment)
    if gpus is None:  # the job knows; vLLM itself says if not
        return wanted or 1
    if wanted is None:
        return max(1, len(gpus) // per_replica)
    if wanted * per_replica > len(gpus):
        needed = f"{wanted * per_replica} GPUs for {wanted} engines of {per_replica}"
        raise JobError(
            f"{_KEY}: {needed}, found {len(gpus)}; use at most {max(1, len(gpus) // per_replica)}, or auto", _KEY
        )
    return wanted


def count_gpus_per_replica(arguments: Mapping[str, JsonValue]) -> int:
    """GPUs that one engine takes, by its arguments."""
    num_gpus = 1
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        size = arguments.get(name, 1)
        num_gpus *= size if isinstance(size, int) and size > 0 else 1  # vLLM itself refuses what is no size
    return num_gpus


def choose_gpus(replica: int, num_gpus: int, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that give an engine its own GPUs, after those of the engines before it."""
    gpus, first = list_gpus(environment), replica * num_gpus
    own = map(str, range(first, first + num_gpus)) if gpus is None else gpus[first : first + num_gpus]
    value = ",".join(own)
    # On ROCm both must say the same.
    names = [_VISIBLE[0], *(name for name in _VISIBLE[1:] if name in environment)]
    return dict.fromkeys(names, value)


def list_gpus(environment: Mapping[str, str]) -> list[str] | None:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them: those in it, else all of the machine.

    None where they cannot be counted: a container without NVIDIA's tool, or other cards.
    """
    for name in _VISIBLE:
        if name in environment:
            return [gpu.strip() for gpu in environment[name].split(",") if gpu.strip() not in {"", "-1"}]
    num_gpus = _count_gpus()
    return None if num_gpus is None else [str(index) for index in range(num_gpus)]


def split_cores(num_shares: int) -> list[list[int]]:
    """The cores that this process may use, in shares; hardware threads of one core stay together if there are enough.

    Neighbours are in one share.
    """
    cores = list_cores()
    physical = group_cores(cores)
    groups = physical if len(physical) >= num_shares else [[core] for core in cores]
    return [[core for group in share for core in group] for share in split(groups, num_shares)]


def share_memory(free_bytes: int, cores_of: Sequence[Sequence[int]]) -> list[int]:
    """What each engine on a CPU may take of the free memory, by the cores of each.

    vLLM takes memory of one NUMA node only, that of the first core.
    """
    nodes = [find_node(min(cores)) for cores in cores_of]
    shares = []
    for node in nodes:
        of_node = read_node_memory_bytes(node)
        share = free_bytes // len(nodes)
        shares.append(share if of_node is None else min(share, of_node // nodes.count(node)))
    return shares


def split(parts: Sequence[_T], num_shares: int) -> list[Sequence[_T]]:
    """Stretches of equal length, or one more; none is empty while there are parts for all."""
    bounds = [index * len(parts) // num_shares for index in range(num_shares + 1)]
    return [parts[start:end] for start, end in pairwise(bounds)]


def _count_gpus() -> int | None:
    """By NVIDIA's own tool, which comes with the driver: asking CUDA would load it into this process."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        found = subprocess.run(
            [tool, "--list-gpus"], capture_output=True, text=True, timeout=_LIST_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return sum(line.startswith("GPU ") for line in found.stdout.splitlines())
