"""Whole runs that embed or score on the simulated engine: what stands in the database, and what is told of it."""

import csv
import json
import math
from array import array
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from bulkinfer.errors import JobError
from bulkinfer.export import ExportOptions, export_job, parse_target
from bulkinfer.job import load_job
from bulkinfer.report import write_report
from bulkinfer.runner import RunOptions, RunReport, forecast_run, plan_run
from bulkinfer.store import Reader
from bulkinfer.sweep import SweepOptions, run_sweep
from tests.conftest import JobFolder, make_documents

VECTORS = "select document_id, output, value, details, vector, finish_reason, output_tokens from answers order by row"


@pytest.fixture
def embedding(folder: JobFolder) -> JobFolder:
    """A job that embeds its documents."""
    folder.spec["task"] = {"kind": "embed"}
    folder.spec["prompt"] = {"text": "{{ body }}"}
    del folder.spec["sampling"]
    folder.write_documents(make_documents(40))
    return folder


@pytest.fixture
def scoring(folder: JobFolder) -> JobFolder:
    """A job that scores pairs."""
    folder.spec["task"] = {"kind": "score"}
    folder.spec["prompt"] = {"query": "{{ question }}", "document": "{{ body }}"}
    del folder.spec["sampling"]
    folder.write_documents([{**one, "question": f"what is {n % 3}?"} for n, one in enumerate(make_documents(40))])
    return folder


def read(folder: JobFolder, sql: str = VECTORS) -> list[tuple[Any, ...]]:
    with Reader.open(folder.database) as reader:
        return list(reader.query(sql).rows)


def with_simulated(folder: JobFolder, **arguments: object) -> dict[str, Any]:
    return {"simulated": {**folder.spec["engine"]["simulated"], **arguments}}


def run_succeeds(folder: JobFolder, **sections: dict[str, Any]) -> RunReport:
    report = folder.run(None, **sections)
    assert report.error is None
    return report


def test_each_document_gets_a_vector_of_length_1_and_no_text(embedding: JobFolder) -> None:
    summary = run_succeeds(embedding).summary
    found = read(embedding)
    assert len(found) == 40
    for _, output, value, details, vector, finish_reason, output_tokens in found:
        assert (output, value, details, finish_reason, output_tokens) == ("", None, None, "stop", 0)
        assert len(vector) == 8
        assert math.hypot(*vector) == pytest.approx(1, abs=1e-6)
    assert len({tuple(vector) for *_, vector, _, _ in found}) == 40
    num_tokens = sum(4 + (len(one["body"]) + 3) // 4 for one in make_documents(40))
    assert summary["tokens"] == {"prompt": num_tokens, "cached": 0, "output": 0}
    assert summary["throughput"]["output_tokens_per_s"] == 0  # type: ignore[index,call-overload]


def test_a_vector_that_is_not_normalized_is_a_task_of_its_own(embedding: JobFolder) -> None:
    first = run_succeeds(embedding)
    second = run_succeeds(embedding, task={"normalize": False}, engine=with_simulated(embedding, vector_size=5))
    assert first.summary["task_fingerprint"] != second.summary["task_fingerprint"]
    vectors = [vector for *_, vector, _, _ in read(embedding)]
    assert {len(vector) for vector in vectors} == {5}
    assert max(abs(math.hypot(*vector) - 1) for vector in vectors) > 0.1


def test_a_second_run_embeds_only_what_is_new(embedding: JobFolder) -> None:
    run_succeeds(embedding)
    embedding.write_documents([*make_documents(40), {"id": "new", "body": "new"}, {"id": "again", "body": "new"}])
    summary = run_succeeds(embedding).summary
    assert summary["documents"]["succeeded"] == 1  # type: ignore[index,call-overload]
    assert len(read(embedding)) == 42


def test_a_vector_with_a_number_that_is_none_is_one_failure(embedding: JobFolder) -> None:
    faults = [{"match": "document 7 ", "kind": "nan"}, {"match": "document 9 ", "kind": "empty"}]
    report = run_succeeds(embedding, engine=with_simulated(embedding, faults=faults))
    assert report.summary["documents"]["failed_by_code"] == {"invalid_output": 2}  # type: ignore[index,call-overload]
    failed = read(embedding, "select document_id, message, raw_output from open_failures order by row")
    assert failed == [
        ("d7", "the vector holds numbers that are not finite", ""),
        ("d9", "the vector has 0 numbers, and the model's have 8", ""),
    ]


def test_documents_without_text_or_too_long_are_failures(embedding: JobFolder) -> None:
    rows = [{"id": "a", "body": " "}, {"id": "b"}, {"id": "c", "body": "x" * 4000}, *make_documents(20)]
    embedding.write_documents(rows)
    run_succeeds(embedding, limits={"max_context_tokens": 200})
    failed = read(embedding, "select document_id, code, message from open_failures order by row")
    assert [(name, code) for name, code, _ in failed] == [
        ("a", "empty_prompt"), ("b", "missing_field"), ("c", "prompt_too_long"),
    ]  # fmt: skip
    assert failed[0][2] == "prompt.text gives no text on this document"
    assert failed[2][2] == "prompt of 1004 tokens exceeds limits.max_context_tokens 200"


def test_each_pair_gets_a_number(scoring: JobFolder) -> None:
    run_succeeds(scoring)
    found = read(scoring)
    assert len(found) == 40
    for _, output, value, details, vector, _, output_tokens in found:
        assert 0 <= float(output) <= 1
        assert json.loads(value) == float(output)
        assert (json.loads(details), vector, output_tokens) == ({"scored_by": "simulation"}, None, 0)
    assert len({output for _, output, *_ in found}) > 30


def test_a_score_that_is_no_number_and_a_pair_without_a_half_are_failures(scoring: JobFolder) -> None:
    rows = [{"id": "a", "body": "x", "question": ""}, {"id": "b", "body": "y", "question": "bad"}]
    scoring.write_documents([*rows, *({"id": f"{n}", "body": f"{n}", "question": "q"} for n in range(9))])
    run_succeeds(scoring, engine=with_simulated(scoring, faults=[{"match": "bad", "kind": "nan"}]))
    assert read(scoring, "select document_id, code, message from open_failures order by row") == [
        ("a", "empty_prompt", "prompt.query gives no text on this document"),
        ("b", "invalid_output", "the score is not a finite number"),
    ]


@pytest.mark.parametrize("ending", ["parquet", "arrow", "jsonl", "csv"])
def test_an_export_has_vectors_of_one_size(embedding: JobFolder, tmp_path: Path, ending: str) -> None:
    faults = [{"match": "document 7 ", "kind": "nan"}]
    run_succeeds(embedding, engine=with_simulated(embedding, faults=faults))
    with Reader.open(embedding.database) as reader:
        target = parse_target(tmp_path / f"v.{ending}")
        export_job(reader, load_job(embedding.job_path), target, ExportOptions())
    expected = {name: vector for name, *_, vector, _, _ in read(embedding)}
    assert len(expected) == 39
    text = (tmp_path / f"v.{ending}").read_bytes()
    match ending:
        case "parquet" | "arrow":
            table = (
                pq.read_table(pa.BufferReader(text))
                if ending == "parquet"
                else pa.ipc.open_file(pa.BufferReader(text)).read_all()
            )
            assert table.schema.field("vector").type == pa.list_(pa.float32(), 8)
            found = dict(zip(table.column("id").to_pylist(), table.column("vector").to_pylist(), strict=True))
        case "jsonl":
            found = {row["id"]: row["vector"] for row in map(json.loads, text.splitlines())}
        case _:
            rows = list(csv.DictReader(text.decode().splitlines()))
            found = {row["id"]: json.loads(row["vector"]) if row["vector"] else None for row in rows}
    assert found.pop("d7") is None
    assert found.keys() == expected.keys()
    for name, vector in found.items():
        assert array("f", vector) == array("f", expected[name]), "each 32-bit number is the same"


def test_replicas_and_children_make_the_same_vectors(embedding: JobFolder) -> None:
    run_succeeds(embedding)
    alone = read(embedding)
    embedding.database.unlink()
    simulated = {"in_child": True, "clock": "real"}
    run_succeeds(embedding, engine={"replicas": 2, **with_simulated(embedding, **simulated)})
    assert read(embedding) == alone


def test_a_plan_tells_the_time_from_prompts_alone(embedding: JobFolder) -> None:
    costs = {"seconds_per_prompt_token": 0.001, "seconds_per_output_token": 0.0}
    path = embedding.write_job(engine=with_simulated(embedding, **costs))
    plan = plan_run(load_job(path))
    found: Any = forecast_run(plan, lambda _: None)
    assert (found["tokens"]["output_at_most"], found["tokens"]["output_expected"]) == (0, 0)
    assert found["time"]["seconds"] == pytest.approx(found["tokens"]["prompt"] / 1000, abs=0.06)
    report: Any = embedding.run_as_written(RunOptions())
    assert report.summary["tokens"]["prompt"] == found["tokens"]["prompt"]


def test_a_report_draws_no_answers_where_none_are_written(embedding: JobFolder, tmp_path: Path) -> None:
    run_succeeds(embedding)
    with Reader.open(embedding.database) as reader:
        write_report(reader, "test", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Lengths of prompts" in page
    for absent in ("Lengths of answers", "first token", "output tokens"):
        assert absent not in page


@pytest.mark.parametrize("kind", ["embedding", "scoring"])
def test_a_sweep_refuses_a_task_that_writes_no_answers(kind: str, request: pytest.FixtureRequest) -> None:
    folder: JobFolder = request.getfixturevalue(kind)
    plan = plan_run(load_job(folder.write_job()))
    with pytest.raises(JobError, match="expected a task that writes answers, found "):
        run_sweep(plan, SweepOptions(), lambda _: None)
