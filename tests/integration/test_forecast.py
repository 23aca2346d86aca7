"""`plan` before, between and after runs: it says what `run` then finds, and leaves nothing behind."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bulkinfer.errors import InputError, StoreError
from bulkinfer.events import Counting, Event, Reading, Warned
from bulkinfer.job import load_job
from bulkinfer.records import SourceFile
from bulkinfer.runner import RunOptions, forecast_run, plan_run, survey
from bulkinfer.sources import open_source
from bulkinfer.store import listed, runs
from tests.conftest import JobFolder, make_documents

LIMITS = {"max_context_tokens": 120, "max_failures": "90%"}
NUM_LONG = 7
UNASKABLE = ("unreadable_row", "missing_field", "empty_prompt", "prompt_too_long")


def forecast(folder: JobFolder) -> Any:  # noqa: ANN401 - JSON
    """What `plan --json` prints of the job as it is written."""
    return forecast_run(plan_run(load_job(folder.job_path)), folder.events.append)


def summary_of(folder: JobFolder, options: RunOptions | None = None) -> Any:  # noqa: ANN401 - JSON
    """What `run --json` prints."""
    return folder.run_as_written(options).summary


def list_files(path: Path) -> Mapping[str, int]:
    """Every file below a folder, with the time of its last change."""
    return {str(file): file.stat().st_mtime_ns for file in path.rglob("*")}


@pytest.fixture
def mixed(folder: JobFolder) -> JobFolder:
    """Rows of every kind: 400 good, 40 of them twice, 3 broken, 5 without a body, 2 empty, 7 too long."""
    documents = make_documents(400)
    documents += documents[:40]
    documents += [{"id": f"none{number}", "body": None, "n": number} for number in range(5)]
    documents += [{"id": "empty", "body": " "}, {"id": "empty", "body": ""}]
    documents += [{"id": f"long{number}", "body": f"{number} " + "x" * 500} for number in range(NUM_LONG)]
    folder.write_documents(documents)
    folder.input.write_bytes(b'{"body": \n' + folder.input.read_bytes() + b"[1]\n" + b'{"body": \n')
    folder.write_job(limits=LIMITS)
    return folder


def test_it_says_what_the_run_then_finds(mixed: JobFolder) -> None:
    found = forecast(mixed)
    summary = summary_of(mixed)
    documents, done = found["documents"], summary["documents"]
    for key in ("read", "distinct", "duplicates", "already_done"):
        assert documents[key] == done[key]
    assert documents["to_do"] == done["succeeded"] + done["failed"]
    expected = {code: counted["documents"] for code, counted in found["expected_failures"].items()}
    assert expected == {code: done["failed_by_code"][code] for code in UNASKABLE}
    assert expected["prompt_too_long"] == NUM_LONG
    assert all(counted["is_exact"] for counted in found["expected_failures"].values())
    assert found["tokens"]["prompt"] == summary["tokens"]["prompt"]
    assert found["tokens"]["is_exact"]
    assert summary["tokens"]["output"] <= found["tokens"]["output_at_most"]
    assert documents["to_ask"] == done["succeeded"]


def test_unreadable_rows_are_counted_by_what_is_wrong_with_them(mixed: JobFolder) -> None:
    unreadable = forecast(mixed)["unreadable"]
    assert (unreadable["rows"], unreadable["documents"]) == (3, 2)
    assert unreadable["by_reason"] == {"broken JSON at column …": 2, "an array where one JSON object is expected": 1}
    assert unreadable["first"][0] == "in.jsonl:1"


def test_nothing_is_made_and_nothing_is_changed(mixed: JobFolder) -> None:
    before = list_files(mixed.path)
    forecast(mixed)
    assert list_files(mixed.path) == before
    summary_of(mixed, RunOptions(limit=20))
    before = list_files(mixed.path)
    forecast(mixed)
    assert list_files(mixed.path) == before


def test_what_is_answered_is_not_to_do(mixed: JobFolder) -> None:
    first = forecast(mixed)
    part = summary_of(mixed, RunOptions(limit=100))["documents"]
    then = forecast(mixed)["documents"]
    assert part["succeeded"] + part["failed"] == 100
    assert (then["answered"], then["failed_before"]) == (part["succeeded"], part["failed"])
    assert then["to_do"] == first["documents"]["to_do"] - 100
    summary_of(mixed)
    last = forecast(mixed)
    assert last["documents"]["to_do"] == last["documents"]["to_ask"] == 0
    assert last["documents"]["answered"] == first["documents"]["to_ask"]
    assert last["expected_failures"] == {}
    assert (last["time"]["basis"], last["time"]["seconds"]) == ("nothing_to_do", 0.0)
    assert last["exceeds_max_failures"] is False


@pytest.fixture
def files(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> JobFolder:
    """Three files that a run has read and answered, but for one unreadable row in the second; and what is opened."""
    for number in range(3):
        rows = [{"id": f"{number}", "body": f"{number} text {row % 40}"} for row in range(50)]
        rows += [{"id": "long", "body": "x" * 600}, {"id": "empty", "body": " "}]
        path = folder.path / f"{number}.jsonl"
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows) + (b"[1]\n" if number == 1 else b""))
        old_ns = path.stat().st_mtime_ns - 10**12
        os.utime(path, ns=(old_ns, old_ns))
    folder.input.unlink(missing_ok=True)
    folder.spec["input"] = {"path": "*.jsonl", "id": "id"}
    folder.write_job(limits=LIMITS)
    monkeypatch.setattr(runs, "is_settled", lambda *_: True)
    monkeypatch.setattr(listed, "is_settled", lambda *_: True)
    summary_of(folder)
    return folder


def note_opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read from now on."""
    opened: list[str] = []

    def note(file: SourceFile, *arguments: Any) -> Any:  # noqa: ANN401 - passed through
        opened.append(file.name)
        return open_source(file, *arguments)

    monkeypatch.setattr(survey, "open_source", note)
    return opened


def drop_seconds(found: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on the machine."""
    return {key: value for key, value in found.items() if key not in {"seconds", "peak_memory_bytes"}}


def test_a_file_that_is_done_is_not_read_and_counts_the_same(files: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = note_opened(monkeypatch)
    found = forecast(files)
    assert opened == ["1.jsonl"]
    assert found["documents"]["read"] == 157
    assert found["documents"]["answered"] == 120
    assert found["documents"]["to_do"] == 0
    assert found["unreadable"]["rows"] == 1
    monkeypatch.setattr(listed, "is_settled", lambda *_: False)
    opened.clear()
    assert drop_seconds(forecast(files)) == drop_seconds(found)
    assert opened == ["0.jsonl", "1.jsonl", "2.jsonl"]


def test_a_file_that_changed_or_has_something_to_do_is_read(files: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with (files.path / "0.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"id": "n", "body": "new"}\n')
    with duckdb.connect(files.database) as connection:
        connection.execute(
            """delete from results where document_hash =
                (select document_hash from documents where source = '2.jsonl' order by row limit 1)"""
        )
    opened = note_opened(monkeypatch)
    assert forecast(files)["documents"]["to_do"] == 2
    assert opened == ["0.jsonl", "1.jsonl", "2.jsonl"]


@pytest.mark.parametrize(
    "end", ["delete from scan_ends", "update scan_ends set last_row = last_row + 1", "drop table scan_ends"]
)
def test_no_file_is_done_for_another_prompt_or_before_its_scan_has_ended(
    files: JobFolder, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    with duckdb.connect(files.database) as connection:
        connection.execute(end)
    opened = note_opened(monkeypatch)
    assert forecast(files)["documents"]["to_do"] == 0
    assert len(opened) == 3
    opened.clear()
    files.write_job(limits=LIMITS, prompt={"user": "Sum up: {{ body }}"})
    assert forecast(files)["documents"]["already_done"] == 0
    assert len(opened) == 3


def test_a_changed_prompt_is_all_to_do_again(mixed: JobFolder) -> None:
    summary_of(mixed)
    mixed.write_job(limits=LIMITS, prompt={"user": "Sum up: {{ body }}"})
    assert forecast(mixed)["documents"]["already_done"] == 0


def test_a_failure_that_is_asked_again_is_to_do(folder: JobFolder) -> None:
    folder.write_documents(make_documents(10))
    faults = [{"match": "document 3 ", "kind": "error"}]
    folder.run(engine={"simulated": {**folder.spec["engine"]["simulated"], "faults": faults}})
    documents = forecast(folder)["documents"]
    assert (documents["answered"], documents["failed_before"], documents["to_do"]) == (9, 0, 1)


def test_a_sample_stands_for_all_and_long_ones_are_counted_all_the_same(
    mixed: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = forecast(mixed)
    monkeypatch.setattr(survey, "NUM_SAMPLED", 100)
    found = forecast(mixed)
    assert found["sample"] == {"documents": 100 + NUM_LONG, "is_complete": False}
    assert found["documents"] == whole["documents"] | {"to_ask": found["documents"]["to_ask"]}
    assert found["documents"]["to_ask"] == pytest.approx(whole["documents"]["to_ask"], rel=0.05)
    assert found["tokens"]["prompt"] == pytest.approx(whole["tokens"]["prompt"], rel=0.15)
    assert not found["tokens"]["is_exact"]
    assert found["expected_failures"]["prompt_too_long"] == {"documents": NUM_LONG, "is_exact": True}
    assert found["expected_failures"]["unreadable_row"]["is_exact"]
    again = forecast(mixed)
    assert again["tokens"] == found["tokens"]


def test_above_the_cap_long_ones_are_extrapolated_and_that_is_said(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "NUM_LONG_SAMPLED", 200)
    folder.write_documents([{"id": "i", "body": f"{number} " + "x" * (300 + number)} for number in range(1_000)])
    folder.write_job(limits=LIMITS)
    found = forecast(folder)["expected_failures"]["prompt_too_long"]
    true = summary_of(folder)["documents"]["failed_by_code"]["prompt_too_long"]
    assert found["is_exact"] is False
    assert found["documents"] == pytest.approx(true, rel=0.1)


def test_a_prompt_that_a_loop_makes_long_is_found(folder: JobFolder) -> None:
    folder.write_documents([{"id": "i", "body": f"b{number}", "times": list(range(number))} for number in range(200)])
    folder.write_job(limits=LIMITS, prompt={"user": "{% for time in times %}{{ body }} {% endfor %}"})
    found = forecast(folder)["expected_failures"]["prompt_too_long"]
    summary = summary_of(folder)["documents"]["failed_by_code"]
    assert found == {"documents": summary["prompt_too_long"], "is_exact": True}
    assert found["documents"] > 50


def test_values_that_are_no_texts_are_printed_longer_and_still_found(folder: JobFolder) -> None:
    documents = [{"id": "i", "body": [number] * length} for number, length in enumerate(range(100, 200))]
    folder.write_documents(documents)
    folder.write_job(limits=LIMITS)
    found = forecast(folder)["expected_failures"]["prompt_too_long"]
    assert found == {
        "documents": summary_of(folder)["documents"]["failed_by_code"]["prompt_too_long"],
        "is_exact": True,
    }


def test_it_says_that_a_run_would_fail_by_its_limit(folder: JobFolder) -> None:
    folder.write_documents([*make_documents(10), *({"id": "i", "n": number} for number in range(10))])
    folder.write_job(limits={"max_failures": 0})
    assert forecast(folder)["exceeds_max_failures"] is True
    assert folder.run_as_written().exit_code == 5


GOOD = [{"id": "i", "body": f"good {number}"} for number in range(20)]
LONG = [{"id": "i", "body": f"{number} " + "x" * 600} for number in range(1_000)]
EMPTY = {"id": "i", "body": " "}


@pytest.mark.parametrize(
    ("documents", "num_failed_rows", "is_exceeded"),
    [
        ([*GOOD, *[EMPTY] * 60], 60, True),  # 1 of 21 documents, 60 of 80 rows
        ([*GOOD[:1] * 95, *LONG[:4], EMPTY], 5, False),  # 5 of 6 documents, 5 of 100 rows
        ([*GOOD, *LONG[:1] * 60], 60, True),
        ([EMPTY] * 3, 3, True),
    ],
    ids=["equal bad rows", "equal good rows", "equal long rows", "nothing good"],
)
def test_failures_are_weighed_by_rows_as_the_run_does(
    folder: JobFolder, documents: list[dict[str, object]], num_failed_rows: int, *, is_exceeded: bool
) -> None:
    folder.write_documents(documents)
    folder.write_job(limits=LIMITS | {"max_failures": "10%"})
    for _ in range(2):  # and the same once they have failed
        found = forecast(folder)
        assert found["failed_rows"] == {"rows": num_failed_rows, "is_exact": True}
        assert found["exceeds_max_failures"] is is_exceeded
        assert (folder.run_as_written().exit_code == 5) is is_exceeded


def test_equal_unreadable_rows_count_each(folder: JobFolder) -> None:
    folder.write_documents(GOOD)
    folder.input.write_bytes(folder.input.read_bytes() + b"[1]\n" * 40)
    folder.write_job(limits={"max_failures": "50%"})
    for _ in range(2):
        found = forecast(folder)
        assert (found["failed_rows"]["rows"], found["exceeds_max_failures"]) == (40, True)
        assert folder.run_as_written().exit_code == 5


def test_rows_of_documents_that_a_sample_stands_for_are_estimated(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "NUM_LONG_SAMPLED", 200)
    folder.write_documents(LONG[:500] + LONG * 2)
    folder.write_job(limits=LIMITS)
    found = forecast(folder)
    assert found["failed_rows"]["rows"] == pytest.approx(2_500, rel=0.1)
    assert found["failed_rows"]["is_exact"] is False


def test_parquet_over_several_files_is_read_with_progress(folder: JobFolder) -> None:
    for number in range(3):
        rows = [f"{number} text {row}" for row in range(20_000)]
        pq.write_table(pa.table({"body": rows}), folder.path / f"{number}.parquet")
    folder.spec["input"] = {"path": "*.parquet"}
    folder.write_job()
    found = forecast(folder)
    assert found["documents"]["read"] == found["documents"]["distinct"] == 60_000
    told: list[Event] = folder.events
    readings = [event for event in told if isinstance(event, Reading)]
    assert readings
    assert all(0 <= event.share_read <= 1 for event in readings)
    assert [event.num_counted for event in told if isinstance(event, Counting)][-1] == found["sample"]["documents"]


def test_the_estimate_comes_from_the_cost_model(folder: JobFolder) -> None:
    folder.write_documents(make_documents(100))
    costs = {"clock": "virtual", "seconds_per_prompt_token": 0.01, "seconds_per_output_token": 0.1, "output_tokens": 8}
    folder.write_job(engine={"simulated": costs})
    time = forecast(folder)["time"]
    assert time["basis"] == "cost_model"
    assert 0 < time["low"] <= time["seconds"] <= time["high"]


def test_without_a_tokenizer_tokens_are_guessed_and_that_is_said(folder: JobFolder) -> None:
    folder.write_documents(make_documents(50))
    folder.write_job(engine={"kind": "vllm"})
    found = forecast(folder)
    assert found["tokens"]["counted_by"] == "characters"
    assert not found["tokens"]["is_exact"]
    assert found["tokens"]["prompt"] > 50
    assert (found["time"]["basis"], found["time"]["seconds"]) == ("none", None)
    assert "--limit 200" in found["time"]["advice"]
    [warning] = [event for event in folder.events if isinstance(event, Warned)]
    assert "tokenizer" in warning.message


def test_earlier_runs_with_the_model_are_the_base(folder: JobFolder) -> None:
    folder.write_documents(make_documents(50))
    folder.run()
    with duckdb.connect(folder.database) as connection:  # as if the same had been computed by vLLM
        connection.execute("""update tasks set spec = json_merge_patch(spec, '{"engine": {"kind": "vllm"}}')""")
        summary = '{"seconds": {"generate": 10, "engine_start": 4}, "throughput": {"documents_per_s": 5}}'
        connection.execute(f"update run_ends set summary = json_merge_patch(summary, '{summary}')")
    folder.write_documents(make_documents(500))
    folder.write_job(engine={"kind": "vllm"})
    found = forecast(folder)
    assert found["time"]["basis"] == "earlier_runs"
    assert 50 < found["time"]["low"] <= found["time"]["seconds"] <= found["time"]["high"] < 400
    assert found["time"]["engine_start"] == 4
    assert len(found["time"]["runs"]) == 1
    assert "--limit 200" in found["time"]["advice"]


def test_an_input_without_rows_and_one_that_is_damaged_are_errors(folder: JobFolder) -> None:
    folder.write_documents([])
    folder.write_job()
    with pytest.raises(InputError, match="no documents"):
        forecast(folder)
    pq.write_table(pa.table({"body": ["a"]}), folder.path / "a.parquet")
    damaged = folder.path / "a.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-8])
    folder.spec["input"] = {"path": "a.parquet"}
    folder.write_job()
    with pytest.raises(InputError):
        forecast(folder)


def test_a_blank_database_is_none_yet(folder: JobFolder) -> None:
    folder.write_documents(make_documents(3))
    folder.write_job()
    duckdb.connect(folder.database).close()
    assert forecast(folder)["documents"]["to_do"] == 3


def test_a_log_without_its_database_is_said_as_by_a_run(folder: JobFolder) -> None:
    folder.write_documents(make_documents(3))
    folder.write_job()
    (folder.path / "out.duckdb.wal").write_bytes(b"x")
    with pytest.raises(StoreError, match="is missing, but its write-ahead log"):
        forecast(folder)
