"""Exports as OpenAI's batch API writes them: a file of answers, and one of the requests that have none.

A line is `id`, `custom_id` (the document's id), `response` with the body of the endpoint, and `error`. Which endpoint
that is, the job's task says. Ids are made of the document's hash: the same export twice is the same file. Vectors are
lists of numbers, or text in base64 where the request is a line of a batch file that asks for it.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from typing import IO, Any

import orjson
import pyarrow as pa

from bulkinfer.errors import JobError
from bulkinfer.export.columns import NO_COLUMNS, Columns
from bulkinfer.export.rows import Stretch
from bulkinfer.export.targets import Target
from bulkinfer.export.vectors import Vector, iter_vectors
from bulkinfer.job import JobSpec
from bulkinfer.records import FailureCode, JsonValue
from bulkinfer.sources import Originals
from bulkinfer.store import VECTOR, RowStatus, replacing_all

FIELDS = (
    "status",
    "output",
    "finish_reason",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "completed_at",
    "failure_code",
    "failure_message",
    "details",
)
BODY = Columns(pa.schema([("body", pa.string())]), (), (), is_whole=False)
"""What of a batch file says in which form a vector is wanted."""
_FINISH_REASONS = frozenset({"stop", "length"})
_SERVER_FAULTS = frozenset({FailureCode.ENGINE_ERROR, FailureCode.ENGINE_KILLER})
_PENDING_MESSAGE = "the run has not come to this request; run the job again"


class Endpoint(StrEnum):
    """What a request would have been sent to."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"


def choose_endpoint(spec: JobSpec) -> Endpoint:
    """The endpoint that does what the job does. Raises JobError where there is none."""
    match spec.task.kind:
        case "embed":
            return Endpoint.EMBEDDINGS
        case "score":
            raise JobError(
                "--format openai: OpenAI's batch API has no endpoint for task.kind score; take another format"
            )
    return Endpoint.COMPLETIONS if spec.prompt.text is not None else Endpoint.CHAT


def choose_columns(spec: JobSpec) -> Columns:
    """The columns of the input that are needed."""
    is_asked = spec.input.openai_url is not None and choose_endpoint(spec) is Endpoint.EMBEDDINGS
    return BODY if is_asked else NO_COLUMNS


class BatchWriter:
    """Writes stretches as lines of the two files."""

    def __init__(self, endpoint: Endpoint, model: str, answers: IO[bytes], errors: IO[bytes]) -> None:
        self._endpoint = endpoint
        self._model = model
        self._answers = answers
        self._errors = errors

    def write(self, stretch: Stretch, originals: Originals | None) -> None:
        """Write one stretch. `originals` of `choose_columns`; the input's own columns have no place here."""
        answers = stretch.answers
        vectors: Iterator[Vector | None] = iter([None] * len(stretch.rows))
        if VECTOR in answers.column_names:
            vectors, answers = iter_vectors(answers.column(VECTOR)), answers.drop_columns(VECTOR)
        lines = [b"{}"] * len(stretch.rows) if originals is None else originals.take_lines(stretch.rows)
        for row, place, vector, own in zip(answers.to_pylist(), stretch.rows, vectors, lines, strict=True):
            number = f"{row['document_hash'] or stretch.part.name}-{place}"
            stream = self._answers if row["status"] == RowStatus.ANSWERED else self._errors
            line = {
                "id": f"batch_req_{number}",
                "custom_id": row["document_id"],
                "response": self._respond({**row, VECTOR: _write_vector(vector, own)}, number),
                "error": _describe_error(row),
            }
            stream.write(orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")

    def _respond(self, row: Mapping[str, Any], number: str) -> Mapping[str, JsonValue] | None:
        request_id = f"req_{number}"
        match row["status"]:
            case RowStatus.ANSWERED:
                return {"status_code": 200, "request_id": request_id, "body": self._write_body(row, number)}
            case RowStatus.FAILED:
                is_server = row["failure_code"] in _SERVER_FAULTS
                kind = "server_error" if is_server else "invalid_request_error"
                parameter = _read_details(row).get("parameter")
                error = {
                    "message": row["failure_message"],
                    "type": kind,
                    "param": parameter,
                    "code": row["failure_code"],
                }
                status = 500 if is_server else 400
                return {"status_code": status, "request_id": request_id, "body": {"error": error}}
        return None

    def _write_body(self, row: Mapping[str, Any], number: str) -> Mapping[str, JsonValue]:
        completed_at: datetime = row["completed_at"]
        about: dict[str, JsonValue] = {"created": int(completed_at.timestamp()), "model": self._model}
        match self._endpoint:
            case Endpoint.EMBEDDINGS:
                vector = {"object": "embedding", "index": 0, "embedding": row[VECTOR]}
                usage = {"prompt_tokens": row["prompt_tokens"], "total_tokens": row["prompt_tokens"]}
                return {"object": "list", "data": [vector], "model": self._model, "usage": usage}
            case Endpoint.COMPLETIONS:
                choices: JsonValue = [_write_text_choice(*each) for each in enumerate(_list_answers(row))]
                head = {"id": f"cmpl-{number}", "object": "text_completion"}
            case _:
                choices = [_write_chat_choice(*each) for each in enumerate(_list_answers(row))]
                head = {"id": f"chatcmpl-{number}", "object": "chat.completion"}
        return {**head, **about, "choices": choices, "usage": _describe_usage(row)}


@contextmanager
def open_batch_writer(target: Target, spec: JobSpec) -> Iterator[BatchWriter]:
    """A writer of both files. The errors' file is there even if there are none: an older one would be taken for it.

    It is replaced before the other: who sees new answers sees their errors.
    """
    assert target.path is not None
    with replacing_all([target.error_path, target.path]) as (errors, answers):
        yield BatchWriter(choose_endpoint(spec), spec.model.path, answers, errors)


def _write_vector(vector: Vector | None, line: bytes) -> Vector | str | None:
    """As its request wants it; `line` holds the request's body. Raises for no line: its request was answered."""
    if vector is None or orjson.loads(line).get("body", {}).get("encoding_format") != "base64":
        return vector
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _read_details(row: Mapping[str, Any]) -> Mapping[str, Any]:
    told = row.get("details")  # a database from before has none
    found: Mapping[str, Any] = orjson.loads(told) if told else {}
    return found


def _list_answers(row: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Text, reason to end, log probabilities and reasoning of each answer to one document."""
    details = _read_details(row)
    outputs = details.get("outputs") or [{"text": row["output"], "finish_reason": row["finish_reason"]}]
    is_one = "outputs" not in details
    logprobs, reasoning = details.get("logprobs"), details.get("reasoning")
    return [
        {
            "text": output["text"],
            "finish_reason": output["finish_reason"] if output["finish_reason"] in _FINISH_REASONS else "stop",
            "logprobs": logprobs if is_one or logprobs is None else logprobs[place],
            "reasoning": reasoning if is_one or reasoning is None else reasoning[place],
        }
        for place, output in enumerate(outputs)
    ]


def _write_chat_choice(index: int, answer: Mapping[str, Any]) -> Mapping[str, JsonValue]:
    message = {"role": "assistant", "content": answer["text"], "refusal": None}
    if answer["reasoning"] is not None:
        message["reasoning_content"] = answer[
            "reasoning"
        ]  # as vLLM's server and others call it; OpenAI has no such key
    logprobs = answer["logprobs"]
    tokens = None if logprobs is None else [_write_token(*token) for token in _add_drawn(logprobs)]
    return {
        "index": index,
        "message": message,
        "logprobs": None if tokens is None else {"content": tokens, "refusal": None},
        "finish_reason": answer["finish_reason"],
    }


def _add_drawn(logprobs: Sequence[Any]) -> Iterator[tuple[str, float, Sequence[tuple[str, float]]]]:
    """Each token with all of the likeliest, as OpenAI has them: those that are kept leave out the one that was drawn.

    It is among them where another place has more of them. Where none has, it is taken to be: it nearly always is.
    """
    most = max((len(others) for _, _, others in logprobs), default=0)
    is_told = any(len(others) < most for _, _, others in logprobs)
    for token, logprob, others in logprobs:
        is_likeliest = len(others) < most or (most > 0 and not is_told)
        yield token, logprob, sorted([*others, (token, logprob)], key=_by_logprob) if is_likeliest else others


def _by_logprob(one: tuple[str, float]) -> float:
    return -one[1]


def _write_token(token: str, logprob: float, others: Sequence[tuple[str, float]]) -> Mapping[str, JsonValue]:
    top: JsonValue = [{"token": text, "logprob": value, "bytes": list(text.encode())} for text, value in others]
    return {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": top}


def _write_text_choice(index: int, answer: Mapping[str, Any]) -> Mapping[str, JsonValue]:
    logprobs = answer["logprobs"]
    told = None
    if logprobs is not None:
        told = {
            "tokens": [token for token, _, _ in logprobs],
            "token_logprobs": [logprob for _, logprob, _ in logprobs],
            # As OpenAI's has it, always with the one that was drawn.
            "top_logprobs": [dict([(token, logprob), *others]) for token, logprob, others in logprobs],
        }
    return {"index": index, "text": answer["text"], "logprobs": told, "finish_reason": answer["finish_reason"]}


def _describe_usage(row: Mapping[str, Any]) -> Mapping[str, JsonValue]:
    return {
        "prompt_tokens": row["prompt_tokens"],
        "completion_tokens": row["output_tokens"],
        "total_tokens": row["prompt_tokens"] + row["output_tokens"],
        "prompt_tokens_details": {"cached_tokens": row["cached_tokens"]},
    }


def _describe_error(row: Mapping[str, Any]) -> Mapping[str, JsonValue] | None:
    match row["status"]:
        case RowStatus.FAILED:
            return {"code": row["failure_code"], "message": row["failure_message"]}
        case RowStatus.PENDING:
            return {"code": RowStatus.PENDING.value, "message": _PENDING_MESSAGE}
    return None
