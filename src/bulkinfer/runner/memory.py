"""Memory of the run's own process."""

from pathlib import Path


def peak_memory_bytes() -> int:
    """The most resident memory that this process had.

    The kernel's high-water mark of this address space, in KiB: `ru_maxrss` would include what the parent had when it
    started this process.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
