"""An engine's process that lets others go first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import os
from pathlib import Path
from bulkinfer.engines.own_process import lower_priority
lower_priority(7)
group = Path("/proc/self/autogroup")
print(os.getpriority(os.PRIO_PROCESS, 0), group.read_text() if group.exists() else "")
"""


@pytest.mark.parametrize("is_leader", [True, False])
def test_its_own_group_is_as_nice_as_it_is_and_that_of_others_is_left_alone(is_leader: bool) -> None:
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, start_new_session=is_leader, capture_output=True, text=True, timeout=20, check=True)
    nice, *group = done.stdout.split()
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert int(nice) == own + 7
    path = Path("/proc/self/autogroup")
    if is_leader:
        assert bool(group) == path.exists()
        assert group[-1:] in ([], [nice])
    else:  # a process that was there before the first session has a group without a name
        assert group == (path.read_text().split() if path.exists() else [])
