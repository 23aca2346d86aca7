"""OpenAI batch files in whole runs: no prompt in the job file, the requests' own parameters, and one outcome each."""

import json
from typing import Any

import pytest
import yaml

from bulkinfer.errors import JobError
from bulkinfer.export import ExportOptions, export_job, parse_target
from bulkinfer.job import load_job
from bulkinfer.runner import forecast_run, plan, plan_run
from bulkinfer.store import open_reader
from tests.conftest import JobFolder
from tests.integration.test_formats import check_again, documents_of, select
from tests.unit.test_sources_openai import CHAT, COMPLETIONS, EMBEDDINGS, request

OWN_JOB = "give it a job of its own, with input.openai_url"


def write(folder: JobFolder, *requests: dict[str, Any], **sections: Any) -> None:  # noqa: ANN401 - sections of a job
    folder.write_documents(requests)
    spec = {key: value for key, value in folder.spec.items() if key != "prompt"}
    spec |= {"input": {"path": "in.jsonl", "format": "openai"}} | sections
    folder.job_path.write_text(yaml.safe_dump(spec), encoding="utf-8")


def body(text: str, **parameters: object) -> dict[str, object]:
    return {"model": "model", "messages": [{"role": "user", "content": text}], **parameters}


def test_requests_are_answered_under_their_custom_ids_and_parameters(folder: JobFolder) -> None:
    write(
        folder,
        request("a", body("one two three four five six seven eight")),
        request("b", body("one two three four five six seven eight", max_tokens=1)),
        request("c", body("x", temperature="hot")),
        request("d", body("x", tools=[{}])),
        request("a", body("y")),
        limits={"max_failures": "100%"},
    )
    documents = documents_of(folder.run_as_written())
    assert documents["failed_by_code"] == {"invalid_field": 1, "unreadable_row": 2}
    assert select(folder, "select document_id, message from open_failures order by row") == [
        ("c", "sampling.columns.temperature: the field temperature: expected a number"),
        ("d", "in.jsonl, line 4: body.tools: not supported for /v1/chat/completions"),
        ("a", "in.jsonl, line 5: custom_id: the same as in line 1"),
    ]
    answers = select(folder, "select document_id, output_tokens = 1 from answers order by 1")
    assert answers == [("a", False), ("b", True)], "the request's own max_tokens"
    check_again(folder, 5)


def test_completions(folder: JobFolder) -> None:
    completion = request("a", {"model": "model", "prompt": "Once upon", "max_tokens": 4}, url=COMPLETIONS)
    section = {"path": "in.jsonl", "format": "openai", "openai_url": COMPLETIONS}
    write(folder, completion, input=section)
    assert documents_of(folder.run_as_written())["read"] == 1
    assert load_job(folder.job_path).spec.prompt.text == "{{ prompt }}"


def test_embeddings(folder: JobFolder) -> None:
    embedding = request("a", {"model": "gpt-x", "input": "some text"}, url=EMBEDDINGS)
    section = {"path": "in.jsonl", "format": "openai", "openai_model": "gpt-x"}
    write(folder, embedding, input=section, task={"kind": "embed"})
    spec = yaml.safe_load(folder.job_path.read_text(encoding="utf-8"))
    del spec["sampling"]
    folder.job_path.write_text(yaml.safe_dump(spec), encoding="utf-8")
    assert documents_of(folder.run_as_written())["succeeded"] == 1
    assert select(folder, "select document_id, len(vector) > 0 from answers") == [("a", True)]


def test_the_second_of_two_files_with_one_custom_id_fails(folder: JobFolder) -> None:
    section = {"path": ["in.jsonl", "more.jsonl"], "format": "openai"}
    write(folder, request("a", body("one")), request("b", body("two")), input=section)
    other = [request("c", body("three")), request("a", body("four"))]
    (folder.path / "more.jsonl").write_text("\n".join(map(json.dumps, other)), encoding="utf-8")
    documents_of(folder.run_as_written())
    assert select(folder, "select source, row, message from open_failures") == [
        ("more.jsonl", 2, "more.jsonl, line 2: custom_id: the same as in in.jsonl, line 1")
    ]
    assert export_job_lines(folder) == (["a", "b", "c"], ["a"])


def test_a_custom_id_of_a_file_that_is_put_before_another_fails_in_that_one(folder: JobFolder) -> None:
    write(folder, request("a", body("one")), input={"path": "[imz]*.jsonl", "format": "openai"})
    (folder.path / "z.jsonl").write_text("\n".join(json.dumps(request(name, body("two"))) for name in "bc"))
    assert documents_of(folder.run_as_written())["succeeded"] == 2
    assert export_job_lines(folder) == (["a", "b", "c"], [])
    (folder.path / "m.jsonl").write_text(json.dumps(request("b", body("three"))))
    assert export_job_lines(folder) == (["a", "c"], ["b", "b"]), "no answer has a name twice"
    documents = documents_of(folder.run_as_written())
    assert (documents["succeeded"], documents["failed"], documents["already_done"]) == (1, 1, 2)
    assert select(folder, "select source, row, message from open_failures") == [
        ("z.jsonl", 1, "z.jsonl, line 1: custom_id: the same as in m.jsonl, line 1")
    ]
    assert export_job_lines(folder) == (["a", "b", "c"], ["b"])
    check_again(folder, 4)
    (folder.path / "m.jsonl").write_text(json.dumps(request("d", body("three"))))
    assert documents_of(folder.run_as_written())["succeeded"] == 0, "all texts have been answered"
    assert export_job_lines(folder) == (["a", "d", "b", "c"], [])


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (
            {"url": EMBEDDINGS},
            f"url: {EMBEDDINGS} is another endpoint than the job's, {CHAT}; {OWN_JOB}: {EMBEDDINGS}",
        ),
        ({"body": body("x", tools=[{}])}, "body.tools: not supported for /v1/chat/completions"),
        ({"body": body("x", stream=True)}, "body.stream: not supported for /v1/chat/completions"),
        (
            {"body": {**body("x"), "model": "gpt-4o"}},
            "body.model: expected the job's model (model), found gpt-4o; input.openai_model may name it",
        ),
    ],
)
def test_a_plan_tells_what_is_wrong_with_the_whole_file(folder: JobFolder, wrong: dict[str, Any], hint: str) -> None:
    write(folder, *(request(str(number), **{"body": body("x"), **wrong}) for number in range(3)))
    plan = plan_run(load_job(folder.job_path))
    found = forecast_run(plan, lambda _: None)["unreadable"]
    assert isinstance(found, dict)
    assert found["hint"] == f"no row of the input can be asked, most of them for one reason: {hint}"
    folder.input.write_text(json.dumps(request("one", body("x"))) + "\n" + folder.input.read_text())
    found = forecast_run(plan_run(load_job(folder.job_path)), lambda _: None)["unreadable"]
    assert isinstance(found, dict)
    assert found["hint"] is None


def pairs_of(folder: JobFolder, sql: str) -> dict[str, Any]:
    """Two columns, as a mapping."""
    return {str(name): value for name, value in select(folder, sql)}


def export_job_lines(folder: JobFolder) -> tuple[list[str], list[str]]:
    """The names of answered requests, and of those in the error file."""
    job = load_job(folder.job_path)
    with open_reader(job.database_path) as reader:
        export_job(reader, job, parse_target(folder.path / "out.openai.jsonl"), ExportOptions())
    names = ("out.openai.jsonl", "out_errors.openai.jsonl")
    answered, failed = ((folder.path / name).read_text().splitlines() for name in names)
    return [json.loads(line)["custom_id"] for line in answered], [json.loads(line)["custom_id"] for line in failed]


def form(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


PRODUCT = {
    "type": "object",
    "properties": {"product": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["product", "days"],
    "additionalProperties": False,
}


def test_each_request_gets_an_answer_of_the_form_that_it_asks_for(folder: JobFolder) -> None:
    broken = {"match": "broken", "kind": "broken", "times": None}
    other = {"match": "other", "kind": "mismatch", "times": None}
    write(
        folder,
        request("text", body("one")),
        request("object", body("two", response_format={"type": "json_object"})),
        request("product", body("three", response_format=form(PRODUCT))),
        request("several", body("four", response_format=form(PRODUCT), n=2, temperature=0.5)),
        request("broken", body("broken", response_format={"type": "json_object"})),
        request("other", body("other", response_format=form(PRODUCT))),
        request("endless", body("five", response_format=form({"$ref": "#"}))),
        request("bias", body("six", logit_bias={"7": -100})),
        request("biased", body("six", logit_bias={"seven": -100})),
        limits={"max_failures": "100%"},
        sampling={"max_tokens": 200},
        engine={"kind": "simulated", "simulated": {**folder.spec["engine"]["simulated"], "faults": [broken, other]}},
    )
    documents = documents_of(folder.run_as_written())
    assert documents["failed_by_code"] == {"invalid_field": 2, "invalid_output": 2}
    values = pairs_of(folder, "select document_id, value::varchar from answers")
    assert values.pop("text") is values.pop("bias") is None
    assert values["object"] == "{}"
    products = [json.loads(values["product"]), *json.loads(values["several"])]
    assert len(products) == 3
    assert all(list(product) == ["product", "days"] for product in products)
    failures = pairs_of(folder, "select document_id, message from open_failures")
    assert failures["broken"].startswith("the answer is not JSON")
    assert failures["other"] == "the answer does not fit its response_format: $ breaks the rule type"
    assert failures["endless"].startswith("sampling.columns.response_format: the field response_format: expected ")
    assert failures["biased"].startswith("sampling.columns.logit_bias: the field logit_bias: expected ")
    check_again(folder, 9)


def test_an_answer_that_does_not_fit_its_own_form_is_repaired_by_it(folder: JobFolder) -> None:
    once = {"match": "other", "kind": "mismatch", "times": 1}
    write(
        folder,
        request("other", body("other", response_format=form(PRODUCT))),
        sampling={"max_tokens": 200},
        output={"database": "out.duckdb", "repair": "retry"},
        engine={"kind": "simulated", "simulated": {**folder.spec["engine"]["simulated"], "faults": [once]}},
    )
    assert documents_of(folder.run_as_written())["succeeded"] == 1
    details = pairs_of(folder, "select document_id, details from answers")
    assert [one["message"] for one in json.loads(details["other"])["repairs"]] == [
        "the answer does not fit its response_format: $ breaks the rule type"
    ]


def test_a_job_without_a_form_of_its_own_is_not_warned_about_one(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "find_grammar", lambda: None)
    write(folder, request("a", body("one")), engine={"kind": "vllm"})
    planned = plan_run(load_job(folder.job_path))
    assert planned.engine_spec.holds_text, "requests may ask for one"
    assert list(planned.iter_warnings()) == []


def test_labels_are_drawn_as_the_job_says_and_what_asks_for_more_than_one_fails(folder: JobFolder) -> None:
    wishes: list[dict[str, Any]] = [
        {"temperature": 0.5},
        {"n": 1},
        {"n": 2},
        {"logprobs": True},
        {"logit_bias": {"1": 1}},
    ]
    requests = [request(str(number), body(f"text {number}", **wish)) for number, wish in enumerate(wishes)]
    task = {"kind": "classify", "choices": ["red", "green"], "probabilities": True}
    write(folder, *requests, task=task, sampling={"temperature": 0}, limits={"max_failures": "100%"})
    assert documents_of(folder.run_as_written())["succeeded"] == 2
    assert list(pairs_of(folder, "select details->>'parameter', document_id from failures order by row")) == [
        "n",
        "logprobs",
        "logit_bias",
    ]


def test_documents_that_are_split_have_one_answer(folder: JobFolder) -> None:
    prompt = {"messages": "messages", "combine": "{{ parts | join }}"}
    limits = {"max_failures": "100%", "overlong": "split"}
    write(folder, request("a", body("x")), request("b", body("y", n=2, temperature=1)), prompt=prompt, limits=limits)
    documents_of(folder.run_as_written())
    assert pairs_of(folder, "select document_id, details->>'parameter' from failures") == {"b": "n"}


def test_a_task_that_has_a_form_lets_no_request_choose_another(folder: JobFolder) -> None:
    wish = request("a", body("one", response_format={"type": "json_object"}))
    task = {"kind": "extract", "schema": PRODUCT}
    write(folder, wish, request("b", body("two")), task=task, limits={"max_failures": "100%"})
    documents_of(folder.run_as_written())
    assert select(folder, "select document_id, message from open_failures where code = 'unreadable_row'") == [
        ("a", "in.jsonl, line 1: body.response_format: this job does not take it from requests")
    ]
    write(folder, request(), task=task, sampling={"max_tokens": 9, "columns": {"response_format": "x"}})
    with pytest.raises(JobError, match=r"response_format: expected no such key with task.kind extract"):
        load_job(folder.job_path)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"format": "openai", "openai_url": "/v1/images"}, "input.openai_url"),
        ({"format": "jsonl", "openai_url": COMPLETIONS}, "no openai_url with format jsonl"),
        ({"format": "auto"}, "prompt: the key is missing"),
    ],
)
def test_what_is_wrong_with_the_job_is_told(folder: JobFolder, section: dict[str, Any], words: str) -> None:
    write(folder, request(), input={"path": "in.jsonl", **section})
    with pytest.raises(JobError, match=words):
        folder.run_as_written()


def test_what_the_job_says_itself_stays(folder: JobFolder) -> None:
    section = {"path": "in.jsonl", "format": "openai", "id": "seed"}
    write(folder, request(), input=section, sampling={"max_tokens": 4, "columns": {"seed": "seed"}})
    spec = load_job(folder.job_path).spec
    assert (spec.input.id, spec.prompt.messages) == ("seed", "messages")
    assert spec.sampling.columns is not None
    assert spec.sampling.columns.to_fields() == {"seed": "seed"}
