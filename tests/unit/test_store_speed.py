"""What the store remembers of a model's speed."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest

from bulkinfer.records import JsonValue, RunStatus
from bulkinfer.store import Store, TaskRecord
from tests.unit.store_support import make_file, make_run


def record_run(
    database: Path, *, model: str = "m", kind: str = "vllm", generate_s: float = 100.0, prompt_rate: float = 70.0
) -> None:
    """A run of a task of its own that ended with this speed."""
    spec: dict[str, Any] = {"model": {"path": model}, "engine": {"kind": kind}}
    store = Store.open(database)
    run = make_run()
    store.begin_run(run, TaskRecord(uuid4(), orjson.dumps(spec).decode()), [make_file()], "body")
    summary: dict[str, JsonValue] = {
        "tokens": {"prompt": round(prompt_rate * generate_s), "output": round(30.0 * generate_s)},
        "seconds": {"generate": generate_s, "engine_start": 5.0},
        "throughput": {"documents_per_s": 2.0},
    }
    store.end_run(RunStatus.COMPLETED, 0, summary)
    store.close()


def find_speed(database: Path, model: str = "m") -> float | None:
    """What a run of the model would be told."""
    store = Store.open(database)
    try:
        return store.find_speed(model)
    finally:
        store.close()


def test_the_last_long_run_of_the_model_tells_its_speed(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    record_run(database, prompt_rate=10.0)
    record_run(database)
    record_run(database, generate_s=2.0, prompt_rate=1.0)
    record_run(database, model="another", prompt_rate=2.0)
    record_run(database, kind="simulated", prompt_rate=3.0)
    assert find_speed(database) == 100.0


def test_a_long_run_that_asked_nothing_does_not_hide_the_one_before(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    record_run(database)
    record_run(database, prompt_rate=0.0)
    assert find_speed(database) == 100.0


def test_a_database_without_a_long_run_tells_nothing(tmp_path: Path) -> None:
    assert find_speed(tmp_path / "a.duckdb") is None
    record_run(tmp_path / "a.duckdb", generate_s=2.0)
    assert find_speed(tmp_path / "a.duckdb") is None


def test_a_run_on_another_machine_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    record_run(tmp_path / "a.duckdb")
    monkeypatch.undo()
    assert find_speed(tmp_path / "a.duckdb") is None
