"""What earlier runs tell of a model, and what is left out because it tells nothing."""

from pathlib import Path
from uuid import UUID

import duckdb
import orjson
import pytest

from bulkinfer.records import FailureCode, JsonValue, RunStatus
from bulkinfer.store import Reader, RunRecord, Store, TaskRecord, read_answer_lengths, read_past_runs
from tests.unit.store_support import NOW, TASK, make_failure, make_result, make_run

SUMMARY: dict[str, dict[str, JsonValue]] = {
    "tokens": {"prompt": 1_000, "output": 200},
    "seconds": {"generate": 10.0, "engine_start": 3.0},
    "throughput": {"documents_per_s": 2.0},
}


def write_run(
    database: Path,
    summary: dict[str, dict[str, JsonValue]],
    model: str = "m",
    kind: str = "vllm",
    task: str | None = None,
) -> UUID:
    """A run that ended with this summary; `task` None: it is from before there were kinds of tasks."""
    told: dict[str, JsonValue] = {"engine": {"kind": kind}, "model": {"path": model, "revision": None}}
    spec = orjson.dumps(told if task is None else {**told, "task": {"kind": task}}).decode()
    run: RunRecord = make_run(f"job-{model}-{kind}-{task}")
    store = Store.open(database)
    store.begin_run(run, TaskRecord(TASK.task_fingerprint, spec), [], "body")
    store.end_run(RunStatus.COMPLETED, 0, summary)
    store.close()
    return run.run_id


def test_runs_of_the_model_come_newest_first_and_others_not(tmp_path: Path) -> None:
    database = tmp_path / "out.duckdb"
    first = write_run(database, SUMMARY)
    write_run(database, SUMMARY, model="other")
    write_run(database, SUMMARY, kind="simulated")
    second = write_run(database, SUMMARY)
    with Reader.open(database) as reader:
        found = read_past_runs(reader, "vllm", "m", None)
        assert read_past_runs(reader, "vllm", "m", "main") == []
    assert [run.run_id for run in found] == [second, first]
    run = found[0]
    assert (run.prompt_tokens, run.output_tokens, run.generate_s, run.engine_start_s) == (1_000, 200, 10.0, 3.0)
    assert run.num_answered == 20.0
    assert run.started_at.startswith(str(NOW)[:16])


def test_runs_that_embed_tell_nothing_of_those_that_write(tmp_path: Path) -> None:
    database = tmp_path / "out.duckdb"
    wrote = [write_run(database, SUMMARY, task=task) for task in (None, "generate", "classify")]
    embedded = write_run(database, {**SUMMARY, "tokens": {"prompt": 1_000, "output": 0}}, task="embed")
    with Reader.open(database) as reader:
        assert [run.run_id for run in read_past_runs(reader, "vllm", "m", None)] == wrote[::-1]
        assert [run.run_id for run in read_past_runs(reader, "vllm", "m", None, "embed")] == [embedded]
        assert read_past_runs(reader, "vllm", "m", None, "score") == []


@pytest.mark.parametrize(
    "summary",
    [
        {},
        {**SUMMARY, "tokens": {"prompt": 0, "output": 0}},
        {**SUMMARY, "tokens": {"prompt": 0, "output": 200}},
        {**SUMMARY, "seconds": {"generate": 0.0, "engine_start": 0.0}},
        {**SUMMARY, "seconds": {"generate": "long", "engine_start": 0.0}},
    ],
    ids=["empty", "nothing asked", "no prompt", "no time", "not a number"],
)
def test_a_run_that_tells_no_speed_is_left_out(tmp_path: Path, summary: dict[str, dict[str, JsonValue]]) -> None:
    database = tmp_path / "out.duckdb"
    write_run(database, summary)
    with Reader.open(database) as reader:
        assert read_past_runs(reader, "vllm", "m", None) == []


def test_runs_that_tell_nothing_or_are_of_others_hide_no_run(tmp_path: Path) -> None:
    database = tmp_path / "out.duckdb"
    first = write_run(database, SUMMARY)
    write_run(database, {})
    write_run(database, SUMMARY, model="other")
    with duckdb.connect(str(database)) as connection:  # a hundred and twenty more of the other model
        connection.execute("""
            insert into runs by name select r.* replace (uuid() as run_id, r.seq + n.i as seq)
            from (select * from runs order by seq desc limit 1) r, range(1, 121) n(i);
            insert into run_ends by name select e.* replace (r.run_id as run_id)
            from (select * from run_ends limit 1) e, runs r where r.run_id not in (select run_id from run_ends);
        """)
    with Reader.open(database) as reader:
        assert [run.run_id for run in read_past_runs(reader, "vllm", "m", None)] == [first]


def test_a_run_on_another_host_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = tmp_path / "out.duckdb"
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    write_run(database, SUMMARY)
    monkeypatch.undo()
    with Reader.open(database) as reader:
        assert read_past_runs(reader, "vllm", "m", None) == []


@pytest.mark.parametrize("spec", ['{"model": {"path": "m"}}', '{"engine": "vllm", "model": "m"}', "[]", "null"])
def test_a_task_of_another_version_is_left_out(tmp_path: Path, spec: str) -> None:
    database = tmp_path / "out.duckdb"
    write_run(database, SUMMARY)
    with duckdb.connect(str(database)) as connection:
        connection.execute("update tasks set spec = $spec::json", {"spec": spec})
    with Reader.open(database) as reader:
        assert read_past_runs(reader, "vllm", "m", None) == []


def test_answers_and_those_cut_at_max_tokens_make_the_mean_length(tmp_path: Path) -> None:
    database = tmp_path / "out.duckdb"
    store = Store.open(database)
    store.begin_run(make_run(), TASK, [], "body")
    store.add([make_result("a"), make_result("b"), make_failure("c"), make_failure("d", FailureCode.EMPTY_PROMPT)])
    store.end_run(RunStatus.COMPLETED, 0, {})
    store.close()
    with Reader.open(database) as reader:
        assert read_answer_lengths(reader, TASK.task_fingerprint, 30) == (3, (3 + 3 + 30) / 3)
        assert read_answer_lengths(reader, UUID(int=9), 30) == (0, 0.0)
