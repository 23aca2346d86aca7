"""How many engines a machine has room for, and what each gets of it."""

import os
from pathlib import Path
from typing import Any

import pytest

from bulkinfer.engines import machine
from bulkinfer.engines.machine import list_cores
from bulkinfer.engines.sharing import (
    choose_gpus,
    count_gpus_per_replica,
    decide_on_cores,
    decide_on_gpus,
    list_gpus,
    share_memory,
    split,
    split_cores,
)
from bulkinfer.errors import JobError


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight hardware threads on four cores on two nodes, numbered as Linux does: the second threads come last."""
    for cpu in range(8):
        core = cpu % 4
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{core},{core + 4}\n")
        (tmp_path / f"cpu{cpu}" / f"node{core // 2}").mkdir()
    monkeypatch.setattr(machine, "_CPU_PATH", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    return tmp_path


def test_neighbouring_cores_stand_together(two_nodes: Path) -> None:
    assert list_cores() == [0, 4, 1, 5, 2, 6, 3, 7]


def test_cores_of_an_unknown_machine_stand_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CPU_PATH", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 1, 2})
    assert list_cores() == [1, 2, 3]


def test_hardware_threads_of_one_core_go_to_one_engine(two_nodes: Path) -> None:
    assert split_cores(2) == [[0, 4, 1, 5], [2, 6, 3, 7]]
    assert split_cores(3) == [[0, 4], [1, 5], [2, 6, 3, 7]]
    assert split_cores(5) == [[0], [4, 1], [5], [2, 6], [3, 7]], "fewer cores than engines"


def write_node(folder: Path, node: int, free_kib: int) -> None:
    """What Linux says of the memory of a node: so much is free, 3 KiB are files or otherwise given back."""
    (folder / f"node{node}").mkdir(parents=True)
    names = {"MemTotal": 9 * 10**9, "MemFree": free_kib, "Active(file)": 1, "Inactive(file)": 1, "SReclaimable": 1}
    lines = [f"Node {node} {name}: {value:>12} kB" for name, value in names.items()]
    (folder / f"node{node}" / "meminfo").write_text("\n".join(lines) + "\n")


def test_an_engine_gets_no_more_memory_than_its_node_has(two_nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_NODE_PATH", two_nodes / "nodes")
    write_node(two_nodes / "nodes", 0, 997)
    write_node(two_nodes / "nodes", 1, 5_997)
    # One engine with all cores: vLLM binds its memory to the node of the first.
    assert share_memory(7_000 * 1024, [range(8)]) == [1_000 * 1024]
    assert share_memory(7_000 * 1024, split_cores(2)) == [1_000 * 1024, 3_500 * 1024]
    assert share_memory(7_000 * 1024, split_cores(4)) == [500 * 1024, 500 * 1024, 1_750 * 1024, 1_750 * 1024]
    assert share_memory(700 * 1024, split_cores(2)) == [350 * 1024] * 2, "a container has less than its nodes"


def test_memory_of_a_machine_without_nodes_is_shared_equally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CPU_PATH", tmp_path)
    monkeypatch.setattr(machine, "_NODE_PATH", tmp_path)
    assert share_memory(9_000, [[0], [1], [2]]) == [3_000] * 3


def test_auto_is_one_engine_for_each_node_with_cores_to_use(two_nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert decide_on_cores(None, 8) == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 4})
    assert decide_on_cores(None, 3) == 1


def test_a_container_with_one_core_of_two_nodes_gets_one_engine(two_nodes: Path) -> None:
    assert decide_on_cores(None, 1) == 1


@pytest.mark.parametrize("wanted", [1, 2, 4])
def test_as_many_engines_as_cores_are_allowed(wanted: int) -> None:
    assert decide_on_cores(wanted, 4) == wanted


def test_more_engines_than_cores_are_refused() -> None:
    with pytest.raises(JobError, match="expected at most 4, one for each core that can be used, found 5"):
        decide_on_cores(5, 4)


@pytest.mark.parametrize(
    ("num_parts", "num_shares", "lengths"),
    [(8, 2, [4, 4]), (7, 2, [3, 4]), (5, 5, [1] * 5), (9, 4, [2, 2, 2, 3]), (3, 1, [3])],
)
def test_shares_are_equal_or_differ_by_one_and_leave_nothing_out(
    num_parts: int, num_shares: int, lengths: list[int]
) -> None:
    shares = split(range(num_parts), num_shares)
    assert [len(share) for share in shares] == lengths
    assert [part for share in shares for part in share] == list(range(num_parts))


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("0,1,3", ["0", "1", "3"]), (" GPU-aa , GPU-bb", ["GPU-aa", "GPU-bb"]), ("", []), ("-1", [])],
)
def test_the_gpus_that_are_visible_are_used(visible: str, expected: list[str]) -> None:
    assert list_gpus({"CUDA_VISIBLE_DEVICES": visible}) == expected


def test_without_a_choice_all_gpus_of_the_machine_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA X (UUID: GPU-1)'\necho 'GPU 1: NVIDIA X (UUID: GPU-2)'\necho ''\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert list_gpus({}) == ["0", "1"]


@pytest.mark.parametrize("script", [None, "exit 9"])
def test_a_machine_without_nvidias_tool_or_with_a_failing_one_leaves_the_number_to_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None
) -> None:
    if script is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list_gpus({}) is None
    assert [decide_on_gpus(wanted, {}, {}) for wanted in (None, 1, 2)] == [1, 1, 2]
    assert choose_gpus(1, 2, {}) == {"CUDA_VISIBLE_DEVICES": "2,3"}


def test_cards_that_rocm_names_are_divided_for_both_names() -> None:
    environment = {"HIP_VISIBLE_DEVICES": "4,5,6,7"}
    assert list_gpus(environment) == ["4", "5", "6", "7"]
    assert choose_gpus(1, 2, environment) == {"CUDA_VISIBLE_DEVICES": "6,7", "HIP_VISIBLE_DEVICES": "6,7"}


FOUR = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({}, 4), ({"tensor_parallel_size": 2}, 2), ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, 1)],
)
def test_auto_is_as_many_engines_as_there_are_gpus_for(arguments: dict[str, Any], expected: int) -> None:
    assert decide_on_gpus(None, arguments, FOUR) == expected
    assert decide_on_gpus(expected, arguments, FOUR) == expected


def test_auto_without_a_gpu_leaves_it_to_vllm_to_say_so() -> None:
    assert decide_on_gpus(None, {}, {"CUDA_VISIBLE_DEVICES": ""}) == 1


def test_too_few_gpus_are_refused_with_the_number_that_fits() -> None:
    with pytest.raises(JobError, match="6 GPUs for 3 engines of 2, found 4; use at most 2, or auto"):
        decide_on_gpus(3, {"tensor_parallel_size": 2}, FOUR)


@pytest.mark.parametrize("size", ["two", 0, -1, None])
def test_a_size_that_is_none_is_left_for_vllm_to_refuse(size: object) -> None:
    arguments: dict[str, Any] = {"tensor_parallel_size": size}
    assert count_gpus_per_replica(arguments) == 1
