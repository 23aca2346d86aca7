"""Whole runs of classify and extract on the simulated engine: answers, failures, repairs, what is refused before."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bulkinfer.errors import ExitCode, JobError
from bulkinfer.events import Warned
from bulkinfer.job import load_job
from bulkinfer.runner import plan, plan_run
from bulkinfer.runner.forecast import forecast_run
from bulkinfer.store import Reader
from tests.conftest import JobFolder, make_documents

CHOICES = ["spam", "ham", "a question"]
CLASSIFY = {"kind": "classify", "choices": CHOICES}
SCHEMA = {
    "type": "object",
    "properties": {"product": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 0}},
    "required": ["product", "days"],
    "additionalProperties": False,
}
EXTRACT = {"kind": "extract", "schema": SCHEMA}


def select(folder: JobFolder, sql: str) -> list[tuple[Any, ...]]:
    with Reader.open(folder.database) as reader:
        return list(reader.query(sql).rows)


def script(*faults: dict[str, Any]) -> dict[str, Any]:
    free = {"clock": "virtual", "seconds_per_prompt_token": 0, "seconds_per_output_token": 0}
    return {"simulated": {**free, "faults": list(faults)}}


def write_job(folder: JobFolder, task: dict[str, Any], **sections: object) -> None:
    """The task, and sections that replace the default's."""
    folder.spec |= {"task": task, **sections}
    if task["kind"] == "classify" and "sampling" not in sections:
        folder.spec.pop("sampling", None)
    folder.write_job()


def test_classify_needs_no_max_tokens_and_gives_one_choice_for_each_document(folder: JobFolder) -> None:
    folder.write_documents(make_documents(40))
    write_job(folder, CLASSIFY)
    report = folder.run_as_written()
    assert report.exit_code is ExitCode.OK
    found = select(folder, "select output, value, finish_reason, details from answers")
    assert len(found) == 40
    assert {output for output, *_ in found} == set(CHOICES)
    for output, value, finish_reason, details in found:
        assert (json.loads(value), finish_reason, details) == (output, "stop", None)


def test_probabilities_are_recorded_and_calibration_with_its_prior(folder: JobFolder) -> None:
    folder.write_documents(make_documents(30))
    write_job(
        folder,
        CLASSIFY | {"probabilities": True, "calibrate": True},
        prompt={"system": "Sort.", "user": "Ticket: {{ body }}"},
    )
    report = folder.run_as_written()
    engine: Any = report.summary["engine"]
    prior = engine["settings"]["label_prior"]
    assert set(prior) == set(CHOICES)
    for output, details in select(folder, "select output, details from answers"):
        told = json.loads(details)
        probabilities, before = told["probabilities"], told["uncalibrated"]
        assert sum(probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert output == max(probabilities, key=probabilities.__getitem__)
        divided = {choice: before[choice] / prior[choice] for choice in CHOICES}
        assert probabilities["ham"] == pytest.approx(divided["ham"] / sum(divided.values()), rel=1e-4)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ({"user": "{{ body }}"}, "prompt.user gives no text"),
        ({"user": "Count: {{ body.size }}"}, "absent or null"),
        ({"messages": "body"}, "has no conversation"),
    ],
)
def test_calibration_needs_a_prompt_that_can_be_made_without_a_document(
    folder: JobFolder, prompt: dict[str, str], words: str
) -> None:
    folder.write_documents([{"id": "a", "body": {"size": 1}}])
    write_job(folder, CLASSIFY | {"calibrate": True}, prompt=prompt)
    with pytest.raises(JobError, match=words):
        folder.run_as_written()


def test_extract_stores_json_that_fits_its_schema(folder: JobFolder) -> None:
    folder.write_documents(make_documents(40))
    write_job(folder, EXTRACT)
    assert folder.run_as_written().exit_code is ExitCode.OK
    for output, value in select(folder, "select output, value from answers"):
        assert json.loads(value) == json.loads(output)
        assert set(json.loads(value)) == {"product", "days"}
    assert select(folder, "select count(*) from answers where value->>'days' is not null") == [(40,)]


def test_a_schema_in_a_file_is_the_same_task_as_the_schema_itself(folder: JobFolder, tmp_path: Path) -> None:
    folder.write_documents(make_documents(5))
    write_job(folder, EXTRACT)
    first = folder.run_as_written().summary
    (tmp_path / "ticket.schema.json").write_text(json.dumps(SCHEMA, indent=4, sort_keys=True))
    write_job(folder, {"kind": "extract", "schema": "ticket.schema.json"})
    second: Any = folder.run_as_written().summary
    assert second["task_fingerprint"] == first["task_fingerprint"]
    assert second["documents"]["already_done"] == 5
    assert "product" in select(folder, "select spec->'task'->'schema' from tasks")[0][0]


def test_answers_of_another_form_are_failures_with_their_text_and_a_reason_without_it(folder: JobFolder) -> None:
    folder.write_documents(
        [{"id": kind, "body": f"{kind} please"} for kind in ("broken", "mismatch", "white", "cut", "ok")]
    )
    faults = [("broken", "broken"), ("mismatch", "mismatch"), ("white", "white_space"), ("cut", "truncate")]
    engine = script(*({"match": f"{match} ", "kind": kind} for match, kind in faults))
    write_job(folder, EXTRACT, sampling={"max_tokens": 40}, limits={"max_failures": "90%"})
    assert folder.run(engine={**folder.spec["engine"], **engine}).exit_code is ExitCode.OK
    failed = select(folder, "select document_id, code, message, raw_output from failures")
    found = {document_id: (code, message, raw_output) for document_id, code, message, raw_output in failed}
    assert found["broken"][:2] == (
        "invalid_output",
        f"the answer is not JSON at character 0 of {len(found['broken'][2])}",
    )
    assert found["mismatch"] == (
        "invalid_output",
        "the answer does not fit task.schema: $ breaks the rule type",
        "null",
    )
    assert found["white"][:2] == (
        "invalid_output",
        "the engine ended the answer because it went on with white space alone",
    )
    assert found["white"][2].endswith(" " * 128)
    assert found["cut"][0] == "truncated"
    assert select(folder, "select document_id from answers") == [("ok",)]


def test_cut_answers_count_where_the_job_says_so_and_json_must_be_whole_all_the_same(folder: JobFolder) -> None:
    folder.write_documents(make_documents(20))
    write_job(folder, EXTRACT, sampling={"max_tokens": 4}, limits={"max_failures": "100%"})
    report = folder.run(output={"accept_truncated": True})
    documents: Any = report.summary["documents"]
    assert documents["failed_by_code"] == {"truncated": 20}
    (message,) = {message for (message,) in select(folder, "select message from failures limit 1")}
    assert "the answer is not JSON" in message

    text = {"kind": "generate"}
    write_job(folder, text, name="text", sampling={"max_tokens": 8})
    cut = {"output_tokens": 9, "clock": "virtual", "seconds_per_prompt_token": 0, "seconds_per_output_token": 0}
    engine = {**folder.spec["engine"], "simulated": cut}
    report = folder.run(engine=engine)
    assert report.exit_code is ExitCode.TOO_MANY_FAILURES
    strict = report.summary["task_fingerprint"]
    report = folder.run(engine=engine, output={"accept_truncated": True})
    assert report.exit_code is ExitCode.OK
    assert select(folder, "select distinct finish_reason, value from answers where output_tokens = 8") == [
        ("length", None)
    ]

    report = folder.run(engine=engine)
    assert report.summary["task_fingerprint"] == strict
    assert select(folder, "select * from answers where finish_reason = 'length'") == [], "none of a job that takes none"
    assert report.exit_code is ExitCode.TOO_MANY_FAILURES


@pytest.mark.parametrize(
    ("repair", "fault", "times", "steps", "code"),
    [
        ("none", "broken", 1, None, "invalid_output"),
        ("retry", "broken", 1, ["again"], None),
        ("retry", "truncate", 2, ["again", "again"], None),
        ("retry", "broken", 4, ["again", "again", "again"], "invalid_output"),
        ("retry_longer", "truncate", 1, ["again"], None),
        ("retry_longer", "truncate", 2, ["again", "longer"], None),
        ("retry_longer", "truncate", 3, ["again", "longer", "shown"], None),
        ("retry_longer", "mismatch", 3, ["again", "longer", "shown"], None),
        ("retry_longer", "white_space", 4, ["again", "longer", "shown"], "invalid_output"),
        ("retry_longer", "empty", 3, ["again", "longer", "again"], None),
    ],
)
def test_repairs_are_taken_step_by_step_and_recorded(
    folder: JobFolder, repair: str, fault: str, times: int, steps: list[str] | None, code: str | None
) -> None:
    folder.write_documents([{"id": "bad", "body": "bad"}, {"id": "good", "body": "good"}])
    write_job(folder, EXTRACT, sampling={"max_tokens": 40}, limits={"max_failures": "90%", "max_context_tokens": 512})
    engine = {**folder.spec["engine"], **script({"match": "bad", "kind": fault, "times": times})}
    report = folder.run(engine=engine, output={"repair": repair})
    assert report.exit_code is ExitCode.OK
    documents: Any = report.summary["documents"]
    assert documents["succeeded"] == (1 if code else 2)
    table = "failures" if code else "answers"
    ((details, attempts),) = select(folder, f"select details, attempts from {table} where document_id = 'bad'")
    repairs = None if details is None else json.loads(details)["repairs"]
    assert attempts == 1 + len(steps or ())
    assert steps == (None if repairs is None else [one["then"] for one in repairs])
    if code:
        assert select(folder, "select code, raw_output is not null from failures") == [(code, True)]
    if repairs:
        assert repairs[0]["max_tokens"] == 40
        assert repairs[0]["code"] == ("truncated" if fault == "truncate" else "invalid_output")
        assert set(repairs[0]) == {"code", "message", "output_tokens", "max_tokens", "then"}
    good = select(folder, "select details, attempts from answers where document_id = 'good'")
    assert good == [(None, 1)]


def test_more_tokens_let_an_answer_end(folder: JobFolder) -> None:
    folder.write_documents(make_documents(20))
    write_job(folder, EXTRACT, sampling={"max_tokens": 4}, limits={"max_context_tokens": 256})
    assert folder.run(output={"repair": "retry_longer"}).exit_code is ExitCode.OK
    found = select(folder, "select details->'repairs'->0->>'max_tokens', output_tokens > 4 from answers")
    assert found == [("4", True)] * 20


def test_a_repair_that_is_refused_leaves_the_failure_that_it_was_to_mend(folder: JobFolder) -> None:
    folder.write_documents([{"id": "bad", "body": "bad"}])
    write_job(folder, EXTRACT, sampling={"max_tokens": 40}, limits={"max_failures": "100%", "max_context_tokens": 512})
    faults = script({"match": "bad", "kind": "truncate", "times": 3}, {"match": "too long", "kind": "reject"})
    report = folder.run(engine={**folder.spec["engine"], **faults}, output={"repair": "retry_longer"})
    assert report.exit_code is ExitCode.TOO_MANY_FAILURES
    ((code, raw_output, details),) = select(folder, "select code, raw_output, details from failures")
    assert (code, bool(raw_output)) == ("truncated", True)
    last = json.loads(details)["repairs"][-1]
    assert last["refused"] == "engine_rejected: rejected by a scripted fault"


def test_a_repair_is_no_part_of_the_task(folder: JobFolder) -> None:
    folder.write_documents(make_documents(3))
    write_job(folder, EXTRACT)
    first = folder.run().summary["task_fingerprint"]
    second: Any = folder.run(output={"repair": "retry_longer", "max_repairs": 5}).summary
    assert second["task_fingerprint"] == first
    assert second["documents"]["already_done"] == 3


def test_what_is_risky_about_a_form_is_told_before_the_model_loads(folder: JobFolder) -> None:
    folder.write_documents(make_documents(2))
    write_job(folder, {"kind": "extract", "regex": "[a-z]+"})
    folder.run_as_written()
    (warned,) = [event for event in folder.events if isinstance(event, Warned)]
    assert warned.message.startswith("task.regex: matches have no greatest length")
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    write_job(folder, {"kind": "extract", "schema": tree})
    events: list[Any] = []
    forecast_run(plan_run(load_job(folder.job_path)), events.append)
    (message,) = [event.message for event in events if isinstance(event, Warned)]
    assert message.startswith("task.schema: properties.next.$ref leads back to where it stands")


def test_what_only_the_backend_can_tell_is_told_before_the_model_loads(folder: JobFolder) -> None:
    pytest.importorskip("llguidance")
    folder.write_documents(make_documents(2))
    overlapping = {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}
    write_job(folder, {"kind": "extract", "schema": overlapping}, engine={"kind": "vllm"})
    with pytest.raises(JobError, match=r"task\.schema: the engine cannot hold answers to it: oneOf"):
        folder.run_as_written()
    own = {"kind": "vllm", "vllm": {"structured_outputs_config": {"backend": "xgrammar"}}}
    write_job(folder, {"kind": "extract", "schema": overlapping}, engine=own)
    assert plan_run(load_job(folder.job_path)).engine_spec.form == {"json": overlapping}


@pytest.mark.parametrize(
    ("own", "has_backend", "why"),
    [
        ({}, True, None),
        ({}, False, "vLLM's backend for it (llguidance) is not installed here"),
        ({"structured_outputs_config": {"backend": "xgrammar"}}, True, "the job chooses another backend"),
    ],
)
def test_a_form_that_nobody_could_check_is_said_to_be_so(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch, own: dict[str, Any], *, has_backend: bool, why: str | None
) -> None:
    backend = SimpleNamespace(check_form=lambda _: None) if has_backend else None
    monkeypatch.setattr(plan, "find_grammar", lambda: backend)
    folder.write_documents(make_documents(2))
    task = {"kind": "extract", "schema": {"type": "object", "properties": {"a": {"type": "null"}}}}
    write_job(folder, task, engine={"kind": "vllm", "vllm": own})
    found = list(plan_run(load_job(folder.job_path)).iter_warnings())
    assert len(found) == (why is not None)
    for warning in found:
        assert warning.startswith(f"task.schema: whether the engine can hold answers to it was not checked: {why}")
    write_job(folder, task, engine={"kind": "simulated"})
    assert list(plan_run(load_job(folder.job_path)).iter_warnings()) == [], "the simulated engine holds all"


def test_a_row_that_would_cut_a_label_fails_before_it_is_asked(folder: JobFolder) -> None:
    rows: list[dict[str, Any]] = [{"most": 99}, {"most": 2}, {"end": "!"}, {"end": "fect"}, {}]
    folder.write_documents([{"id": f"{number}", "body": "x", **row} for number, row in enumerate(rows)])
    sampling = {"columns": {"max_tokens": "most", "stop": "end"}}
    write_job(folder, {"kind": "classify", "choices": ["defect", "other"]}, sampling=sampling)
    assert folder.run_as_written().exit_code is ExitCode.OK
    failures = select(folder, "select document_id, code, attempts, message from failures order by 1")
    answered = select(folder, "select document_id from answers order by 1")
    assert answered == [("0",), ("2",), ("4",)]
    assert [failure[:3] for failure in failures] == [("1", "invalid_field", 0), ("3", "invalid_field", 0)]
    assert "at least 7" in failures[0][3]
    assert "no text that is part of a choice" in failures[1][3]
