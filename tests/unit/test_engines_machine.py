"""Cores, memory and compiler, within the limits of a container."""

import os
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from bulkinfer.engines import machine
from bulkinfer.engines.machine import (
    count_cores,
    count_threads,
    describe_cpu,
    find_compiler,
    has_compiled_code,
    read_free_memory_bytes,
)

GIB = 1 << 30
Memory = namedtuple("Memory", "available")


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The control groups of a process in /jobs/one, none of them with a limit; 8 GiB and 8 cores are free."""
    (tmp_path / "jobs/one").mkdir(parents=True)
    (tmp_path / "own").write_text("0::/jobs/one\n")
    monkeypatch.setattr(machine, "_CGROUP_PATH", tmp_path)
    monkeypatch.setattr(machine, "_OWN_CGROUPS_PATH", tmp_path / "own")
    monkeypatch.setattr(machine, "_CPU_PATH", tmp_path / "cpu")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory(8 * GIB))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    return tmp_path


def limit_memory(folder: Path, limit: str, used: int, inactive: int = 0, active: int = 0) -> None:
    """Give a control group a limit and a use of memory."""
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\nactive_file {active}\n")


def test_without_a_limit_all_free_memory_counts(cgroups: Path) -> None:
    assert read_free_memory_bytes() == 8 * GIB
    limit_memory(cgroups, "max", GIB)
    assert read_free_memory_bytes() == 8 * GIB


@pytest.mark.parametrize("folder", ["", "jobs", "jobs/one"])
def test_the_limit_of_any_control_group_above_counts(cgroups: Path, folder: str) -> None:
    limit_memory(cgroups / folder, str(4 * GIB), GIB)
    assert read_free_memory_bytes() == 3 * GIB


def test_file_pages_that_the_kernel_gives_back_are_free(cgroups: Path) -> None:
    limit_memory(cgroups, str(4 * GIB), 3 * GIB, inactive=GIB, active=GIB // 2)
    assert read_free_memory_bytes() == 2.5 * GIB


def test_a_full_container_has_nothing_free(cgroups: Path) -> None:
    limit_memory(cgroups, str(GIB), 2 * GIB)
    assert read_free_memory_bytes() == 0


@pytest.fixture(params=["", "jobs/old"])
def old_folder(request: pytest.FixtureRequest, cgroups: Path) -> str:
    """The folder of a control group of version 1, below its controller's: the machine's, or that of the process."""
    lines = ("5:cpuset:/elsewhere", "4:cpu,cpuacct:/jobs/old", "3:memory:/jobs/old", "1:name=systemd:/", "0::/")
    (cgroups / "own").write_text("\n".join(lines) + "\n")
    for controller in ("cpu", "memory"):
        (cgroups / controller / "jobs/old").mkdir(parents=True)
    return str(request.param)


def test_memory_of_control_groups_of_version_1(cgroups: Path, old_folder: str) -> None:
    folder = cgroups / "memory" / old_folder
    (folder / "memory.limit_in_bytes").write_text(str(4 * GIB))
    (folder / "memory.usage_in_bytes").write_text(str(3 * GIB))
    assert read_free_memory_bytes() == GIB
    (folder / "memory.stat").write_text(
        f"inactive_file 7\nactive_file 7\ntotal_inactive_file {GIB}\ntotal_active_file {GIB // 2}\n"
    )
    assert read_free_memory_bytes() == 2.5 * GIB


@pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("200000", 2), ("150000", 2), ("5000", 1)])
def test_the_share_of_a_container_of_version_1_limits_the_cores(
    cgroups: Path, old_folder: str, quota: str, expected: int
) -> None:
    (cgroups / "cpu" / old_folder / "cpu.cfs_quota_us").write_text(quota)
    (cgroups / "cpu" / old_folder / "cpu.cfs_period_us").write_text("100000")
    assert count_cores() == expected


@pytest.mark.parametrize(
    ("quota", "expected"), [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("5000 100000", 1)]
)
@pytest.mark.parametrize("folder", ["", "jobs/one"])
def test_the_share_of_a_container_limits_the_cores(cgroups: Path, folder: str, quota: str, expected: int) -> None:
    (cgroups / folder / "cpu.max").write_text(quota)
    assert count_cores() == expected
    assert count_threads() == expected


def test_two_hyperthreads_of_a_core_get_one_thread(cgroups: Path) -> None:
    for cpu in range(8):
        folder = cgroups / f"cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    assert (count_cores(), count_threads()) == (8, 4)
    # An engine among others keeps to its cores: only what the container gets is still to be divided.
    assert [count_threads(3, cores) for cores in ([0, 4], [1, 5], [2, 6, 3, 7])] == [1, 1, 2]
    (cgroups / "cpu.max").write_text("300000 100000")
    assert [count_threads(2, cores) for cores in ([0, 4, 1, 5], [2, 6, 3, 7])] == [1, 1]
    assert (count_threads(), count_threads(9)) == (3, 1)


def test_a_compiler_is_the_one_that_the_user_names_or_one_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert find_compiler() is None
    for name in ("clang++", "mine"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert find_compiler() == str(tmp_path / "clang++")
    monkeypatch.setenv("CXX", "mine")
    assert find_compiler() == str(tmp_path / "mine")
    monkeypatch.setenv("CXX", "nowhere")
    assert find_compiler() is None


def test_a_cache_has_compiled_code_once_a_model_has_left_some(tmp_path: Path) -> None:
    assert not has_compiled_code(tmp_path)
    (tmp_path / "inductor" / "fxgraph" / "ab").mkdir(parents=True)
    assert not has_compiled_code(tmp_path)
    (tmp_path / "inductor" / "fxgraph" / "ab" / "hash").mkdir()
    assert has_compiled_code(tmp_path)


def test_a_cpu_is_described_once_not_for_each_core() -> None:
    lines = describe_cpu().splitlines()
    assert lines
    assert len(lines) == len(set(lines))
