"""OpenAI batch files: what of a request becomes a document, and why one does not."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bulkinfer.prompt.conversation import read_conversation
from bulkinfer.records import Document, FormatKind, JsonValue, Message, OpenAiFile, Origin, SourceFile, UnreadableRow
from bulkinfer.sources import find_source_files, open_source
from bulkinfer.sources.custom_ids import share_custom_ids
from bulkinfer.sources.formats import FormatChoice

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
MESSAGES = [{"role": "user", "content": "Hello"}]
BODY = {"model": "m", "messages": MESSAGES}


def request(custom_id: object = "r1", body: object = None, **keys: object) -> dict[str, Any]:
    """A line of a batch file."""
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": CHAT,
        "body": BODY if body is None else body,
        **keys,
    }


def read(
    folder: Path, *lines: object, url: str = CHAT, fields: frozenset[str] | None = None, wanted: list[int] | None = None
) -> list[Document | UnreadableRow]:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (folder / "in.jsonl").write_text(text, encoding="utf-8")
    choice = FormatChoice(FormatKind.OPENAI, openai=OpenAiFile(url, ("m", "alias")))
    (file,) = find_source_files(["in.jsonl"], folder, choice)
    return list(open_source(file, fields, "custom_id").iter_rows(None if wanted is None else iter(wanted)))


def read_fields(folder: Path, body: Mapping[str, object], url: str = CHAT) -> object:
    """The fields that a body becomes, or what is wrong with it."""
    (row,) = read(folder, request(body=body, url=url), url=url)
    return row.fields if isinstance(row, Document) else row.reason.removeprefix("in.jsonl, line 1: ")


def test_a_request_is_a_document_named_by_its_custom_id(tmp_path: Path) -> None:
    body = {
        **BODY,
        "temperature": 0.5,
        "max_completion_tokens": 7,
        "stop": ["x"],
        "seed": 3,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 4,
        "user": "somebody",
        "stream": False,
        "frequency_penalty": None,
        "response_format": {"type": "text"},
    }
    (row,) = read(tmp_path, request("r 1", body))
    parameters: dict[str, JsonValue] = {
        "temperature": 0.5,
        "max_tokens": 7,
        "stop": ["x"],
        "seed": 3,
        "n": 2,
        "logprobs": 4,
    }
    assert row == Document(Origin("in.jsonl", 1, "r 1"), {"custom_id": "r 1", "messages": MESSAGES, **parameters})
    (row,) = read(tmp_path, request("r 1", body), fields=frozenset({"messages", "seed", "top_p", "n", "logprobs"}))
    assert isinstance(row, Document)
    assert row.fields == {"messages": MESSAGES, "seed": 3, "n": 2, "logprobs": 4}


def test_the_other_endpoints(tmp_path: Path) -> None:
    completion = {"model": "alias", "prompt": "Once", "max_tokens": 5, "logprobs": 2, "echo": False}
    assert read_fields(tmp_path, completion, COMPLETIONS) == {
        "custom_id": "r1",
        "prompt": "Once",
        "max_tokens": 5,
        "logprobs": 2,
    }
    embedding = {"model": "m", "input": "text", "encoding_format": "float"}
    assert read_fields(tmp_path, embedding, EMBEDDINGS) == {"custom_id": "r1", "input": "text"}


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (
            {**BODY, "model": "gpt-4o-mini"},
            "body.model: expected the job's model (m, alias), found gpt-4o-mini; input.openai_model may name it",
        ),
        ({**BODY, "model": "a text, and no name"}, "body.model: expected the job's model (m, alias)"),
        ({"messages": MESSAGES}, "body.model: expected the job's model (m, alias)"),
        ({"model": "m"}, "body.messages: is missing"),
        ({**BODY, "tools": [{"type": "function"}]}, f"body.tools: not supported for {CHAT}"),
        ({**BODY, "stream": True}, f"body.stream: not supported for {CHAT}"),
        ({**BODY, "temprature": 1}, f"body.temprature: not supported for {CHAT}"),
        ({**BODY, "prompt": "x"}, f"body.prompt: not supported for {CHAT}"),
        ({**BODY, "x" * 90: 1}, f"body.a key: not supported for {CHAT}"),
        (
            {**BODY, "max_tokens": 3, "max_completion_tokens": 4},
            "body.max_completion_tokens: another number than max_tokens",
        ),
        ({**BODY, "logprobs": 3}, "body.logprobs: expected true or false"),
        ({**BODY, "logprobs": []}, "body.logprobs: expected true or false"),
        ({**BODY, "top_logprobs": 3}, "body.top_logprobs: needs logprobs: true"),
        ("text", "body: expected an object"),
    ],
)
def test_what_would_not_be_honoured_is_a_failure_that_names_it(tmp_path: Path, body: Any, fault: str) -> None:  # noqa: ANN401 - anything that JSON has
    assert read_fields(tmp_path, body) == fault


def test_the_form_of_an_answer_is_text_as_the_order_of_its_keys_counts(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "null"}}}
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = {**BODY, "response_format": asked, "logit_bias": {"7": -100}, "tool_choice": "auto"}
    fields = read_fields(tmp_path, body)
    assert isinstance(fields, dict)
    assert fields == {
        "custom_id": "r1",
        "messages": MESSAGES,
        "response_format": json.dumps(asked, separators=(",", ":")),
        "logit_bias": {"7": -100},
    }
    fault = "in.jsonl, line 1: body.response_format: this job does not take it from requests"
    (row,) = read(tmp_path, request(body=body), fields=frozenset({"messages", "logit_bias", "seed"}))
    assert isinstance(row, UnreadableRow)
    assert row.reason == fault
    (row,) = read(tmp_path, request(), fields=frozenset({"messages"}))
    assert isinstance(row, Document), "a request that asks for none is one of any job"
    completion = {"model": "m", "prompt": ["Once"], "response_format": {"type": "json_object"}}
    fields = read_fields(tmp_path, completion, COMPLETIONS)
    assert fields == {"custom_id": "r1", "prompt": "Once", "response_format": '{"type":"json_object"}'}


def test_messages_stay_as_they_are_but_for_the_role_developer(tmp_path: Path) -> None:
    answer = {"role": "assistant", "content": "x", "refusal": None, "tool_calls": None}
    messages = [{"role": "developer", "content": "Be brief.", "name": None}, *MESSAGES, answer, *MESSAGES]
    fields = read_fields(tmp_path, {"model": "m", "messages": messages})
    assert isinstance(fields, dict)
    system = {"role": "system", "content": "Be brief.", "name": None}
    assert fields["messages"] == [system, *MESSAGES, answer, *MESSAGES], "documents are known by their nulls, too"
    conversation = read_conversation("messages", fields)
    assert conversation == (
        Message("system", "Be brief."),
        Message("user", "Hello"),
        Message("assistant", "x"),
        Message("user", "Hello"),
    )


@pytest.mark.parametrize(
    ("line", "parameter"),
    [
        (request(body={**BODY, "tools": [{}]}), "tools"),
        (request(body={**BODY, "tool_choice": "required"}), "tool_choice"),
        (request(body={**BODY, "stream": True}), "stream"),
        (request(body={**BODY, "audio": {"voice": "alloy"}}), "audio"),
        (request(body={**BODY, "model": "other"}), "model"),
        (request(url=EMBEDDINGS), "url"),
        ("[broken", None),
    ],
)
def test_a_fault_names_the_parameter(tmp_path: Path, line: object, parameter: str | None) -> None:
    (row,) = read(tmp_path, line)
    assert isinstance(row, UnreadableRow)
    assert row.parameter == parameter


def test_texts_in_lists_and_tokens_are_refused(tmp_path: Path) -> None:
    fault = "expected one text; give each text a request of its own"
    assert read_fields(tmp_path, {"model": "m", "prompt": ["a", "b"]}, COMPLETIONS) == f"body.prompt: {fault}"
    assert read_fields(tmp_path, {"model": "m", "input": [1, 2]}, EMBEDDINGS) == f"body.input: {fault}"
    dimensions = {"model": "m", "input": "a", "dimensions": 64}
    assert read_fields(tmp_path, dimensions, EMBEDDINGS) == f"body.dimensions: not supported for {EMBEDDINGS}"


def test_wrong_lines_are_failures_and_those_around_them_are_read(tmp_path: Path) -> None:
    rows = read(
        tmp_path,
        request("a"),
        request("b", url=EMBEDDINGS),
        request("c", url="/v1/images"),
        request("d", method="GET"),
        request("a"),
        request(None),
        request("e", more=1),
        "[broken",
        "[1]",
        request("f"),
        request("a", seed=2),
    )
    assert [(row.origin.row, row.origin.document_id) for row in rows if isinstance(row, Document)] == [
        (1, "a"),
        (10, "f"),
    ]
    faults = {row.origin.row: row.reason.partition(": ")[2] for row in rows if isinstance(row, UnreadableRow)}
    assert faults == {
        2: f"url: {EMBEDDINGS} is another endpoint than the job's, {CHAT}; give it a job of its own, with "
        f"input.openai_url: {EMBEDDINGS}",
        3: f"url: expected {CHAT}",
        4: "method: expected POST",
        5: "custom_id: the same as in line 1",
        6: "custom_id: expected text that is not empty",
        7: "more: no such key; a request has custom_id, method, url and body",
        8: "broken JSON at column 2",
        9: "an array where one JSON object is expected",
        11: "custom_id: the same as in line 1",
    }
    assert [row.origin.document_id for row in rows[1:4]] == ["b", "c", "d"], "the error file names the request"


def test_a_doubled_custom_id_fails_also_where_its_line_is_read_alone(tmp_path: Path) -> None:
    (row,) = read(tmp_path, request("a"), request("b"), request("a"), wanted=[3])
    assert isinstance(row, UnreadableRow)
    assert row.reason.endswith("the same as in line 1")
    assert read(tmp_path, request("a"), wanted=[]) == []


def test_a_custom_id_of_another_file_is_taken_also_where_that_file_is_not_read(tmp_path: Path) -> None:
    for name, ids in (("a", "xy"), ("b", "yz"), ("c", "zw")):
        lines = [json.dumps(request(custom_id)) for custom_id in ids]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    choice = FormatChoice(FormatKind.OPENAI, openai=OpenAiFile(CHAT, ("m",)))

    def read_one(number: int, files: list[SourceFile]) -> list[str]:
        rows = open_source(files[number], None, "custom_id").iter_rows()
        return [row.reason if isinstance(row, UnreadableRow) else row.origin.document_id for row in rows]

    def find() -> list[SourceFile]:
        return share_custom_ids(find_source_files(["[abc].jsonl"], tmp_path, choice))

    second = ["b.jsonl, line 1: custom_id: the same as in a.jsonl, line 2", "z"]
    third = ["c.jsonl, line 1: custom_id: the same as in b.jsonl, line 2", "w"]
    files = find()
    assert [read_one(number, files) for number in (0, 1, 2, 1)] == [["x", "y"], second, third, second]
    assert read_one(2, find()) == third
    assert read_one(1, find()) == second
