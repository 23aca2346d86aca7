"""An engine's process as it sees itself: how it ends with its parent, who goes first, and what memory it takes."""

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import psutil

_PR_SET_PDEATHSIG = 1
_AUTOGROUP_PATH = Path("/proc/self/autogroup")
_AUTOGROUP_ATTEMPTS = 10
_AUTOGROUP_EVERY_S = 0.1


def end_with_parent(parent_pid: int) -> None:
    """Have the kernel end this process when its parent ends, and end now if it has ended already.

    Where vLLM has processes of its own they must end too, so there it is a signal that this process handles.
    """
    death_signal = signal.SIGKILL
    if has_child_processes():
        death_signal = signal.SIGTERM
        signal.signal(signal.SIGTERM, lambda *_: end_group())
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def lower_priority(nice: int) -> None:
    """Let other processes go first. Call it before there is a second thread, and as the leader of a session.

    Linux with autogroups shares processor time between sessions first, and looks at `nice` only within one: there it is
    the group's own that counts, and this process has a group of its own.
    """
    os.nice(nice)
    if os.getsid(0) != os.getpid():  # the group is not ours alone
        return
    for _ in range(_AUTOGROUP_ATTEMPTS):
        try:
            _AUTOGROUP_PATH.write_text(str(os.getpriority(os.PRIO_PROCESS, 0)), encoding="ascii")
        except BlockingIOError:  # the kernel takes one every tenth of a second, of all processes together
            time.sleep(_AUTOGROUP_EVERY_S)
        except OSError:  # no autogroups here, or a container that may not
            return
        else:
            return


def end_group() -> NoReturn:
    """End this process and all that it started. The parent made it the leader of a group of its own."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def read_memory_bytes() -> int:
    """Peak resident memory of this process, and what its children have now.

    From /proc, because getrusage also counts what the parent had before it exec'd this process.
    """
    own_kib = next(
        int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    return own_kib * 1024 + (_read_children_bytes() if has_child_processes() else 0)


def has_child_processes() -> bool:
    return os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "1"


def _read_children_bytes() -> int:
    num_bytes = 0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            num_bytes += child.memory_info().rss
    return num_bytes
