"""What is set before an engine's process starts."""

import os

import pytest

from bulkinfer.engines.environment import VllmInstall, build_environment, count_cores, find_vllm
from tests.engine_support import MODEL_PATH, simulated_spec, vllm_spec

CPU = VllmInstall("0.32.0", is_cpu=True)
GPU = VllmInstall("0.32.0", is_cpu=False)


def test_on_a_cpu_vllm_is_one_process_with_all_cores() -> None:
    environment = build_environment(vllm_spec(), CPU, {"HOME": "/home/someone"})
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert environment["OMP_NUM_THREADS"] == str(count_cores())
    assert environment["HOME"] == "/home/someone"


def test_on_a_gpu_vllm_has_processes_of_its_own() -> None:
    environment = build_environment(vllm_spec(), GPU, {})
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"
    assert environment["VLLM_WORKER_MULTIPROCESSING_METHOD"] == "spawn"
    assert "OMP_NUM_THREADS" not in environment


def test_no_engine_reports_to_anyone_or_logs_prompts() -> None:
    environment = build_environment(vllm_spec(), CPU, {})
    assert (environment["VLLM_NO_USAGE_STATS"], environment["DO_NOT_TRACK"]) == ("1", "1")
    assert environment["VLLM_LOGGING_LEVEL"] == "INFO"


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_LOGGING_LEVEL"])
def test_what_the_user_has_set_wins(name: str) -> None:
    assert build_environment(vllm_spec(), CPU, {name: "theirs"})[name] == "theirs"


def test_a_simulated_engine_needs_nothing_of_vllm() -> None:
    assert build_environment(simulated_spec(), CPU, {}) == {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}


def test_the_model_hub_is_asked_only_for_a_model_that_is_no_folder() -> None:
    hub = vllm_spec()
    environment = build_environment(hub, CPU, {})
    assert environment.get("HF_HUB_OFFLINE") == ("1" if MODEL_PATH.is_dir() else None)


def test_cores_are_counted_within_the_affinity() -> None:
    assert 1 <= count_cores() <= len(os.sched_getaffinity(0))


@pytest.mark.engine
def test_the_installed_vllm_is_found_without_importing_it() -> None:
    install = find_vllm()
    assert install is not None
    assert install.version.startswith("0.")
