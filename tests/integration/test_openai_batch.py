"""OpenAI batch files in whole runs: no prompt in the job file, the requests' own parameters, and one outcome each."""

from typing import Any

import pytest
import yaml

from bulkinfer.errors import JobError
from bulkinfer.job import load_job
from tests.conftest import JobFolder
from tests.integration.test_formats import check_again, documents_of, select
from tests.unit.test_sources_openai import COMPLETIONS, EMBEDDINGS, request


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
