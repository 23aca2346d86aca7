"""What is set before an engine's process starts."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bulkinfer import engines
from bulkinfer.engines import create_engines, decide_replicas, machine
from bulkinfer.engines import environment as environment_module
from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.environment import (
    VllmInstall,
    build_environment,
    choose_cores,
    count_cores,
    divide_machine,
    find_vllm,
    look_at_machine,
)
from bulkinfer.records import JsonValue
from tests.engine_support import MODEL_PATH, simulated_spec, vllm_spec

CPU = VllmInstall("0.32.0", is_cpu=True)
GPU = VllmInstall("0.32.0", is_cpu=False)


def test_on_a_cpu_vllm_is_one_process_with_all_cores() -> None:
    environment = build_environment(vllm_spec(), CPU, {"HOME": "/home/someone"})
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert environment["OMP_NUM_THREADS"] == str(count_cores())
    assert environment["HOME"] == "/home/someone"


def test_on_a_cpu_memory_that_one_step_frees_is_kept_for_the_next(tmp_path: Path) -> None:
    """Counted in page faults: 64 MiB taken and freed twenty times."""
    script = tmp_path / "take.py"
    script.write_text(
        "import resource\n"
        "taken = [bytearray(64 << 20)]\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(20):\n"
        "    taken.clear()\n"
        "    taken.append(bytearray(64 << 20))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )

    def count_faults(environment: dict[str, str]) -> int:
        done = subprocess.run([sys.executable, script], env=environment, capture_output=True, check=True, timeout=60)
        return int(done.stdout)

    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    pages = (64 << 20) // os.sysconf("SC_PAGE_SIZE")
    assert count_faults(inherited) > 5 * pages, "this C library keeps freed memory by itself: the test shows nothing"
    assert count_faults(build_environment(vllm_spec(), CPU, inherited)) < pages


def test_on_a_gpu_vllm_has_processes_of_its_own() -> None:
    environment = build_environment(vllm_spec(), GPU, {})
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"
    assert environment["VLLM_WORKER_MULTIPROCESSING_METHOD"] == "spawn"
    assert "OMP_NUM_THREADS" not in environment


def test_no_engine_reports_to_anyone_or_logs_prompts() -> None:
    environment = build_environment(vllm_spec(), CPU, {})
    assert (environment["VLLM_NO_USAGE_STATS"], environment["DO_NOT_TRACK"]) == ("1", "1")
    assert environment["VLLM_LOGGING_LEVEL"] == "INFO"


@pytest.mark.parametrize(
    "name", ["OMP_NUM_THREADS", "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_LOGGING_LEVEL", "MALLOC_TRIM_THRESHOLD_"]
)
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


def replica_spec(replica: int, num_replicas: int, **arguments: JsonValue) -> EngineSpec:
    """One of several engines."""
    return replace(vllm_spec(), replica=replica, num_replicas=num_replicas, arguments=arguments)


def test_engines_on_a_cpu_get_cores_of_their_own_and_threads_to_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(100, 107)))
    monkeypatch.setattr(machine, "_CGROUP_PATH", Path("/nowhere"))
    monkeypatch.setattr(machine, "_OWN_CGROUPS_PATH", Path("/nowhere"))
    monkeypatch.setattr(machine, "_CPU_PATH", Path("/nowhere"))
    cores = [choose_cores(replica_spec(replica, 3), CPU) for replica in range(3)]
    assert [list(own) for own in cores] == [[100, 101], [102, 103], [104, 105, 106]]
    threads = [build_environment(replica_spec(replica, 3), CPU, {})["OMP_NUM_THREADS"] for replica in range(3)]
    assert threads == ["2", "2", "3"]


@pytest.mark.parametrize(
    ("given", "expected"), [("1", "1"), ("2", "2"), ("64", "3"), ("2,4", "2"), ("0", "3"), ("many", "3")]
)
def test_threads_that_the_user_gives_are_for_each_engine_within_its_share(
    monkeypatch: pytest.MonkeyPatch, given: str, expected: str
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(100, 107)))
    monkeypatch.setattr(machine, "_CGROUP_PATH", Path("/nowhere"))
    monkeypatch.setattr(machine, "_OWN_CGROUPS_PATH", Path("/nowhere"))
    monkeypatch.setattr(machine, "_CPU_PATH", Path("/nowhere"))
    environment = build_environment(replica_spec(0, 2), CPU, {"OMP_NUM_THREADS": given, "HOME": "/h"})
    assert environment["OMP_NUM_THREADS"] == expected
    other = build_environment(replica_spec(0, 2), CPU, {"OMP_NUM_THREADS": expected, "HOME": "/h"})
    assert environment["VLLM_CACHE_ROOT"] == other["VLLM_CACHE_ROOT"], "compiled for the threads that there are"
    assert build_environment(vllm_spec(), CPU, {"OMP_NUM_THREADS": given})["OMP_NUM_THREADS"] == given


def test_all_engines_are_told_the_same_memory_however_often_they_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    monkeypatch.setattr(environment_module, "read_free_memory_bytes", lambda: 9_000)
    monkeypatch.setattr(environment_module, "share_memory", lambda free, cores: [free // 3, 2_000, 1_000 + len(cores)])
    specs = divide_machine(vllm_spec(), 3, CPU)
    assert [(spec.replica, spec.num_replicas, spec.free_memory_bytes) for spec in specs] == [
        (0, 3, 1_003),
        (1, 3, 1_003),
        (2, 3, 1_003),
    ]
    assert divide_machine(vllm_spec(), 1, GPU) == (vllm_spec(),)
    assert divide_machine(simulated_spec(), 1, CPU) == (simulated_spec(),)


@pytest.mark.parametrize(
    ("spec", "install"), [(vllm_spec(), CPU), (replica_spec(0, 2), GPU), (simulated_spec(), CPU), (vllm_spec(), None)]
)
def test_others_keep_all_cores(spec: EngineSpec, install: VllmInstall | None) -> None:
    assert choose_cores(spec, install) == ()


@pytest.mark.parametrize("num_engines", [1, 2])
def test_memory_is_measured_when_engines_are_made_and_not_when_they_start(
    monkeypatch: pytest.MonkeyPatch, num_engines: int
) -> None:
    measured = iter([8_000])
    told: list[EngineSpec] = []

    def note(spec: EngineSpec, **_: object) -> None:
        told.append(spec)

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(engines, "count_cores", lambda: 2)
    monkeypatch.setattr(engines, "find_vllm", lambda: CPU)
    monkeypatch.setattr(environment_module, "read_free_memory_bytes", lambda: next(measured))
    monkeypatch.setattr(engines, "ChildEngine", note)
    create_engines(vllm_spec(), num_engines, start_timeout_s=1, silence_timeout_s=1, log_path_of=lambda _: None)
    assert [(spec.replica, spec.free_memory_bytes) for spec in told] == [
        (replica, 8_000 // num_engines) for replica in range(num_engines)
    ]


def test_without_vllm_the_job_says_how_many_engines_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start says what is missing: a wrong number of GPUs would only mislead."""
    monkeypatch.setattr(engines, "find_vllm", lambda: None)
    assert [decide_replicas(vllm_spec(), wanted) for wanted in (None, 1, 7)] == [1, 1, 7]


def test_engines_on_gpus_get_gpus_of_their_own_of_those_that_are_visible() -> None:
    inherited = {"CUDA_VISIBLE_DEVICES": "2,3,5,7", "HOME": "/home/someone"}
    seen = [
        build_environment(replica_spec(replica, 2, tensor_parallel_size=2), GPU, inherited)["CUDA_VISIBLE_DEVICES"]
        for replica in range(2)
    ]
    assert seen == ["2,3", "5,7"]
    assert build_environment(vllm_spec(), GPU, inherited)["CUDA_VISIBLE_DEVICES"] == "2,3,5,7", "one engine has all"


def test_an_engine_among_others_sees_its_own_share_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its process keeps to its cores: they are not divided again."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {103, 104, 105})
    for name in ("_CGROUP_PATH", "_OWN_CGROUPS_PATH", "_CPU_PATH"):
        monkeypatch.setattr(machine, name, Path("/nowhere"))
    monkeypatch.setattr(environment_module, "measure_flops_per_s", lambda: 1e11)
    monkeypatch.setattr(environment_module, "find_vllm", lambda: CPU)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    environment = build_environment(replace(vllm_spec(), num_replicas=1), CPU, os.environ)
    monkeypatch.setenv("VLLM_CACHE_ROOT", environment["VLLM_CACHE_ROOT"])
    found = look_at_machine(replace(replica_spec(1, 2), free_memory_bytes=77), is_cpu=True, num_threads=3)
    assert (found.num_threads, found.num_cores, found.num_replicas) == (3, 3, 2)
    assert (found.free_memory_bytes, found.is_own_cache, found.has_compiled_code) == (77, True, False)
    (tmp_path / "inductor" / "fxgraph" / "a" / "b").mkdir(parents=True)
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    theirs = look_at_machine(vllm_spec(), is_cpu=True, num_threads=3)
    assert (theirs.is_own_cache, theirs.has_compiled_code) == (False, True)


def cache_of(environment: dict[str, str], install: VllmInstall = CPU) -> str | None:
    """Where compiled code would be kept."""
    return build_environment(vllm_spec(), install, environment).get("VLLM_CACHE_ROOT")


def test_compiled_code_is_kept_in_the_users_cache_folder() -> None:
    home = cache_of({"HOME": "/home/someone"})
    assert home is not None
    assert home.startswith("/home/someone/.cache/bulkinfer/vllm/")
    assert cache_of({"HOME": "/home/someone", "XDG_CACHE_HOME": "/caches"}) == f"/caches/bulkinfer/{home[-21:]}"
    assert cache_of({"HOME": "/home/someone", "XDG_CACHE_HOME": "relative"}) == home
    assert cache_of({}) is None
    assert cache_of({"HOME": "/home/someone", "VLLM_CACHE_ROOT": "/theirs"}) == "/theirs"
    assert cache_of({"HOME": "/home/someone"}, GPU) is None


@pytest.mark.parametrize("given", [{}, {"VLLM_CACHE_ROOT": "/theirs"}])
def test_torch_keeps_its_code_in_the_same_folder_as_vllm(given: dict[str, str]) -> None:
    environment = build_environment(vllm_spec(), CPU, {"HOME": "/home/someone", **given})
    assert environment["TORCHINDUCTOR_CACHE_DIR"] == environment["VLLM_CACHE_ROOT"] + "/inductor"
    assert environment["VLLM_USE_AOT_COMPILE"] == "0"


def test_code_that_was_compiled_for_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = {cache_of({"HOME": "/h"}), cache_of({"HOME": "/h", "OMP_NUM_THREADS": "77"})}
    caches.add(cache_of({"HOME": "/h"}, VllmInstall("0.33.0", is_cpu=True)))
    monkeypatch.setattr(environment_module, "describe_cpu", lambda: "another CPU")
    caches.add(cache_of({"HOME": "/h"}))
    assert len(caches) == 4
