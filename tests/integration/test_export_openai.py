"""OpenAI's batch files: the models of the `openai` package take every line, and no request is lost between the two."""

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import orjson
import pytest
from openai import OpenAI
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.batch_error import BatchError
from openai.types.chat import ChatCompletion
from openai.types.shared import ErrorObject

from bulkinfer.errors import JobError
from bulkinfer.export import ExportOptions, export_job, parse_target
from bulkinfer.job import load_job
from bulkinfer.runner import RunOptions
from bulkinfer.store import open_reader
from tests.conftest import JobFolder, make_documents


def export(folder: JobFolder, name: str = "out.openai.jsonl", columns: tuple[str, ...] | None = None) -> int:
    """Export the job; the number of rows."""
    job = load_job(folder.job_path)
    with open_reader(job.database_path) as reader:
        return export_job(reader, job, parse_target(folder.path / name), ExportOptions(columns)).num_rows


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of one file, each with the keys of OpenAI's."""
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert all(list(line) == ["id", "custom_id", "response", "error"] for line in lines)
    return lines


@contextmanager
def serve(answer: object) -> Iterator[str]:
    """The address of a server that gives one answer to all."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(orjson.dumps(answer))

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_chats_and_failures(folder: JobFolder) -> None:
    broken: list[dict[str, Any]] = [{"id": "null", "body": None}, {"id": "crash", "body": "FAIL"}]
    folder.write_documents([*make_documents(6), *broken, make_documents(1)[0]])
    faults = [{"match": "FAIL", "kind": "error", "times": None}]
    folder.run(engine={"simulated": {**folder.spec["engine"]["simulated"], "faults": faults}})
    assert export(folder) == 9
    answers = read_lines(folder.path / "out.openai.jsonl")
    errors = read_lines(folder.path / "out_errors.openai.jsonl")
    assert [line["custom_id"] for line in answers] == ["d0", "d1", "d2", "d3", "d4", "d5", "d0"]
    for line in answers:
        assert (line["error"], line["response"]["status_code"]) == (None, 200)
        chat = ChatCompletion.model_validate(line["response"]["body"], strict=True)
        assert chat.choices[0].message.content
        assert chat.usage is not None
        assert chat.usage.total_tokens == chat.usage.prompt_tokens + chat.usage.completion_tokens
    assert len({line["id"] for line in [*answers, *errors]}) == 9
    assert [line["custom_id"] for line in errors] == ["null", "crash"]
    for line, code, status in zip(errors, ("missing_field", "engine_error"), (400, 500), strict=True):
        assert line["response"]["status_code"] == status
        assert ErrorObject.model_validate(line["response"]["body"]["error"], strict=True).code == code
        assert BatchError.model_validate(line["error"], strict=True).code == code


def test_requests_that_no_run_has_come_to_are_errors(folder: JobFolder) -> None:
    folder.write_documents(make_documents(5))
    folder.run(RunOptions(limit=2))
    export(folder)
    errors = read_lines(folder.path / "out_errors.openai.jsonl")
    assert [(line["custom_id"], line["response"], line["error"]["code"]) for line in errors] == [
        (f"d{number}", None, "pending") for number in (2, 3, 4)
    ]


def test_embeddings(folder: JobFolder) -> None:
    folder.write_documents(make_documents(3))
    del folder.spec["sampling"], folder.spec["prompt"]
    folder.spec |= {"task": {"kind": "embed"}, "prompt": {"text": "{{ body }}"}}
    folder.run()
    export(folder)
    for line in read_lines(folder.path / "out.openai.jsonl"):
        response = CreateEmbeddingResponse.model_validate(line["response"]["body"], strict=True)
        assert len(response.data[0].embedding) > 1
    assert (folder.path / "out_errors.openai.jsonl").read_bytes() == b""


def test_a_vector_is_base64_where_its_request_asks_for_it(folder: JobFolder) -> None:
    def request(custom_id: str, text: object, **parameters: object) -> dict[str, Any]:
        body = {"model": "model", "input": text, **parameters}
        return {"custom_id": custom_id, "method": "POST", "url": "/v1/embeddings", "body": body}

    same = [request("list", "a text"), request("packed", "a text", encoding_format="base64")]
    folder.write_documents([*same, request("one", ["a text"], encoding_format="float")])
    del folder.spec["sampling"], folder.spec["prompt"]
    folder.spec |= {"task": {"kind": "embed"}, "input": {"path": "in.jsonl", "format": "openai"}}
    folder.run()
    export(folder)
    bodies = {line["custom_id"]: line["response"]["body"] for line in read_lines(folder.path / "out.openai.jsonl")}
    assert bodies["list"] == bodies["one"]
    assert isinstance(bodies["packed"]["data"][0]["embedding"], str)
    assert CreateEmbeddingResponse.model_validate(bodies["list"], strict=True)
    with serve(bodies["packed"]) as url:
        client = OpenAI(api_key="x", base_url=url, max_retries=0)
        # The client asks for base64 unless it is told otherwise, and makes a list of numbers of it.
        unpacked = client.embeddings.create(model="model", input="a text")
    assert array("f", unpacked.data[0].embedding) == array("f", bodies["list"]["data"][0]["embedding"])


def test_a_batch_file_comes_back_as_one(folder: JobFolder) -> None:
    def request(custom_id: str, **parameters: object) -> dict[str, Any]:
        body = {"model": "model", "messages": [{"role": "user", "content": f"text of {custom_id}"}], **parameters}
        return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}

    folder.write_documents([request("a"), request("b", tools=[{}]), request("c", n=2, temperature=0.7), request("a")])
    del folder.spec["prompt"]
    folder.spec["input"] = {"path": "in.jsonl", "format": "openai"}
    folder.run(limits={"max_failures": "100%"})
    export(folder)
    answers = read_lines(folder.path / "out.openai.jsonl")
    assert [line["custom_id"] for line in answers] == ["a", "c"]
    chats = [ChatCompletion.model_validate(line["response"]["body"], strict=True) for line in answers]
    assert [len(chat.choices) for chat in chats] == [1, 2]
    errors = read_lines(folder.path / "out_errors.openai.jsonl")
    assert [(line["custom_id"], line["error"]["code"]) for line in errors] == [
        ("b", "unreadable_row"),
        ("a", "unreadable_row"),
    ]
    export(folder, "out.jsonl")
    rows = [orjson.loads(line) for line in (folder.path / "out.jsonl").read_bytes().splitlines()]
    assert [(row["custom_id"], row["url"], row["status"]) for row in rows] == [
        (name, "/v1/chat/completions", status)
        for name, status in (("a", "answered"), ("b", "failed"), ("c", "answered"), ("a", "failed"))
    ]


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/completions"])
def test_all_that_requests_may_ask_for_comes_back_in_openais_words(folder: JobFolder, url: str) -> None:
    is_chat = url.endswith("chat/completions")

    def request(custom_id: str, **parameters: object) -> dict[str, Any]:
        text = f"text of {custom_id}"
        prompt = {"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text}
        body = {"model": "model", **prompt, **parameters}
        return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}

    logprobs = {"logprobs": True, "top_logprobs": 2} if is_chat else {"logprobs": 2}
    several = {"n": 3, "temperature": 1, "stop": ["\n"], "seed": 1, "logit_bias": {"1": 1}, **logprobs}
    json_form = {"response_format": {"type": "json_object"}, "presence_penalty": 1, "frequency_penalty": -1}
    folder.write_documents([request("several", **several), request("json", **json_form), request("no", suffix="x")])
    del folder.spec["prompt"]
    folder.spec["input"] = {"path": "in.jsonl", "format": "openai", "openai_url": url}
    folder.run(limits={"max_failures": "100%"})
    export(folder)
    bodies = {line["custom_id"]: line["response"]["body"] for line in read_lines(folder.path / "out.openai.jsonl")}
    assert bodies.keys() == {"several", "json"}
    if is_chat:
        chat = ChatCompletion.model_validate(bodies["several"], strict=True)
        tokens = [choice.logprobs.content for choice in chat.choices if choice.logprobs is not None]
        assert [bool(content) and len(content[0].top_logprobs) for content in tokens if content] == [2, 2, 2]
        assert ChatCompletion.model_validate(bodies["json"], strict=True).choices[0].message.content == "{}"
    else:
        completion = Completion.model_validate(bodies["several"], strict=True)
        found = [choice.logprobs.top_logprobs for choice in completion.choices if choice.logprobs is not None]
        assert [bool(top) and len(top[0]) for top in found if top] == [2, 2, 2]
        assert Completion.model_validate(bodies["json"], strict=True).choices[0].text == "{}"
    (error,) = read_lines(folder.path / "out_errors.openai.jsonl")
    told = ErrorObject.model_validate(error["response"]["body"]["error"], strict=True)
    assert (told.code, told.param, told.type) == ("unreadable_row", "suffix", "invalid_request_error")
    with open_reader(folder.database) as reader:
        assert list(reader.query("select details->>'parameter' from failures").rows) == [("suffix",)]


def test_several_answers_are_several_choices() -> None:
    from bulkinfer.export.batches import BatchWriter, Endpoint

    token = ["Hi", -0.25, [["Hu", -0.5], ["Ho", -1.5]]]
    details = {
        "outputs": [
            {"text": "Hi", "finish_reason": "stop", "output_tokens": 1},
            {"text": "Ho", "finish_reason": "repetition", "output_tokens": 1},
        ],
        "logprobs": [[token], [token]],
        "reasoning": ["because", None],
    }
    row = {
        "output": "Hi",
        "finish_reason": "stop",
        "prompt_tokens": 3,
        "cached_tokens": 1,
        "output_tokens": 2,
        "completed_at": datetime.now(UTC),
        "details": orjson.dumps(details).decode(),
    }
    chat = BatchWriter(Endpoint.CHAT, "m", None, None)._write_body(row, "1")  # type: ignore[arg-type]  # writes nothing
    parsed = ChatCompletion.model_validate(chat, strict=True)
    assert [choice.message.content for choice in parsed.choices] == ["Hi", "Ho"]
    assert parsed.choices[1].finish_reason == "stop"
    assert parsed.choices[0].logprobs is not None
    assert parsed.choices[0].logprobs.content is not None
    assert [one.token for one in parsed.choices[0].logprobs.content[0].top_logprobs] == ["Hi", "Hu", "Ho"]
    text = BatchWriter(Endpoint.COMPLETIONS, "m", None, None)._write_body(row, "1")  # type: ignore[arg-type]  # as above
    completion = Completion.model_validate(text, strict=True)
    assert [choice.text for choice in completion.choices] == ["Hi", "Ho"]


def test_columns_cannot_be_chosen(folder: JobFolder) -> None:
    folder.write_documents(make_documents(1))
    folder.run()
    with pytest.raises(JobError, match="--columns"):
        export(folder, columns=("output",))
    assert not (folder.path / "out.openai.jsonl").exists()


@pytest.mark.parametrize(
    ("name", "errors"),
    [
        ("out.openai.jsonl", "out_errors.openai.jsonl"),
        ("out.jsonl", "out_errors.jsonl"),
        ("out.txt", "out_errors.txt"),
        ("out", "out_errors"),
    ],
)
def test_the_error_file_is_named_after_the_other(name: str, errors: str) -> None:
    from bulkinfer.records import ExportFormat

    assert parse_target(Path("a") / name, ExportFormat.OPENAI).error_path == Path("a") / errors


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ([("a", -0.1, [("b", -2.0)]), ("c", -0.2, [("d", -3.0)])], [["a", "b"], ["c", "d"]]),
        ([("a", -0.1, [("b", -2.0)]), ("z", -9.0, [("d", -1.0), ("e", -3.0)])], [["a", "b"], ["d", "e"]]),
        ([("b", -2.0, [("a", -0.1)])], [["a", "b"]]),
        ([("a", -0.1, []), ("b", -0.1, [])], [[], []]),
        ([], []),
    ],
)
def test_the_likeliest_tokens_hold_the_one_that_was_drawn(kept: list[Any], expected: list[list[str]]) -> None:
    from bulkinfer.export.batches import _add_drawn

    assert [[token for token, _ in top] for _, _, top in _add_drawn(kept)] == expected
