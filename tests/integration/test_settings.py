"""The limits of the job file reach what waits by them."""

from typing import Any

import pytest

from bulkinfer.engines import create_engine
from bulkinfer.engines.base import Engine
from bulkinfer.engines.child import ChildEngine
from bulkinfer.errors import ExitCode
from bulkinfer.job import JobSpec, load_job
from bulkinfer.store import Store
from tests.conftest import JobFolder, make_documents

ENGINE = {"step_timeout_s": 123.0, "start_timeout_s": 45.0, "silence_timeout_s": 67.0}
OUTPUT = {"stall_timeout_s": 89.0, "client_timeout_s": 7.0, "lock_timeout_s": 3.0}


def test_each_wait_of_a_run_has_the_limit_that_the_job_file_gives_it(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines: list[Engine] = []
    stores: list[Store] = []
    listened: list[float] = []
    open_store, listen = Store.open, Store.listen

    def create_and_note(*arguments: Any, **named: Any) -> Engine:  # noqa: ANN401
        engines.append(create_engine(*arguments, **named))
        return engines[-1]

    def open_and_note(*arguments: Any, **named: Any) -> Store:  # noqa: ANN401
        stores.append(open_store(*arguments, **named))
        return stores[-1]

    def listen_and_note(store: Store, client_timeout_s: float) -> None:
        listened.append(client_timeout_s)
        listen(store, client_timeout_s)

    monkeypatch.setattr("bulkinfer.engines.create_engine", create_and_note)
    monkeypatch.setattr(Store, "open", open_and_note)
    monkeypatch.setattr(Store, "listen", listen_and_note)
    folder.write_documents(make_documents(5))
    simulated = {"in_child": True, "seconds_per_output_token": 0}
    report = folder.run(engine={"simulated": simulated, **ENGINE}, output=OUTPUT)
    assert report.exit_code is ExitCode.OK, report.error

    [engine], [store] = engines, stores
    assert isinstance(engine, ChildEngine)
    assert {
        "step_timeout_s": engine._spec.step_timeout_s,
        "start_timeout_s": engine._start_timeout_s,
        "silence_timeout_s": engine._silence_timeout_s,
    } == ENGINE
    assert {
        "stall_timeout_s": store._limits.stall_limit_s,
        "client_timeout_s": listened[0],
        "lock_timeout_s": store._limits.lock_wait_s,
    } == OUTPUT
    check_not_defaults(load_job(folder.job_path).spec)


def check_not_defaults(spec: JobSpec) -> None:
    """A default would be there by itself."""
    for section in (spec.engine, spec.output):
        for name, field in type(section).model_fields.items():
            if name in ENGINE | OUTPUT:
                assert getattr(section, name) != field.default
