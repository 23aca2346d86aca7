"""What the runner's process and the engine's process say to each other over their socket.

A frame (`framing`) is JSON: a list of the frame's name and its content.
Document hashes and vectors travel as hexadecimal text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from bulkinfer.engines.base import EngineRequest, EngineSpec
from bulkinfer.engines.scoring import Scoring
from bulkinfer.records import (
    UNKNOWN_WORKLOAD,
    Aborted,
    Completion,
    EngineEvent,
    EngineReady,
    EngineStats,
    FailureCode,
    Message,
    Rejection,
    Span,
    Workload,
)


@dataclass(frozen=True, slots=True)
class Start:
    """The first frame to a child: what to load."""

    spec: EngineSpec
    life: int
    """How often this engine was started, from 1."""
    workload: Workload = UNKNOWN_WORKLOAD


@dataclass(frozen=True, slots=True)
class Submit:
    """Requests to run."""

    requests: tuple[EngineRequest, ...]


@dataclass(frozen=True, slots=True)
class Abort:
    """Requests to drop."""

    document_hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Close:
    """End now."""


ParentFrame = Start | Submit | Abort | Close


@dataclass(frozen=True, slots=True)
class Events:
    """What happened in the child, in order."""

    events: tuple[EngineEvent, ...]


@dataclass(frozen=True, slots=True)
class ChildFailure:
    """The last frame of a child that failed."""

    is_job_error: bool
    """The user can mend it in the job file."""
    message: str


ChildFrame = Events | ChildFailure


def encode_request(request: EngineRequest) -> bytes:
    """JSON of one request. Raises orjson.JSONEncodeError for text that UTF-8 cannot hold: a lone surrogate."""
    return orjson.dumps(request, default=_encode_bytes)


def encode_submit(encoded_requests: Sequence[bytes]) -> bytes:
    """A Submit frame of requests that are encoded already."""
    return orjson.dumps(["submit", [orjson.Fragment(encoded) for encoded in encoded_requests]])


def encode_parent_frame(frame: ParentFrame) -> bytes:
    """Any frame to a child."""
    match frame:
        case Start():
            return orjson.dumps(["start", frame])
        case Submit(requests):
            return encode_submit([encode_request(request) for request in requests])
        case Abort(document_hashes):
            return orjson.dumps(["abort", [document_hash.hex() for document_hash in document_hashes]])
        case Close():
            return orjson.dumps(["close", None])


def decode_parent_frame(body: bytes) -> ParentFrame:
    """The inverse of `encode_parent_frame`."""
    name, content = orjson.loads(body)
    match name:
        case "start":
            workload: dict[str, Any] = content["workload"]
            workload["longest_bytes"] = tuple(workload["longest_bytes"])
            return Start(_decode_spec(content["spec"]), content["life"], Workload(**workload))
        case "submit":
            return Submit(tuple(_decode_request(request) for request in content))
        case "abort":
            return Abort(tuple(bytes.fromhex(document_hash) for document_hash in content))
        case "close":
            return Close()
    raise AssertionError(f"unknown frame {name}")


def encode_child_frame(frame: ChildFrame) -> bytes:
    """Any frame from a child."""
    match frame:
        case Events(events):
            named = [[type(event).__name__, event] for event in events]
            return orjson.dumps(["events", named], default=_encode_bytes)
        case ChildFailure():
            return orjson.dumps(["failure", frame])


def decode_child_frame(body: bytes) -> ChildFrame:
    """The inverse of `encode_child_frame`."""
    name, content = orjson.loads(body)
    match name:
        case "events":
            return Events(tuple(_decode_event(event_name, fields) for event_name, fields in content))
        case "failure":
            return ChildFailure(**content)
    raise AssertionError(f"unknown frame {name}")


# Any: the fields are what orjson read; they were typed on the side that wrote them.
def _decode_event(name: str, fields: dict[str, Any]) -> EngineEvent:
    match name:
        case "Completion":
            fields["document_hash"] = bytes.fromhex(fields["document_hash"])
            fields["vector"] = None if fields["vector"] is None else bytes.fromhex(fields["vector"])
            return Completion(**fields)
        case "Rejection":
            fields["document_hash"] = bytes.fromhex(fields["document_hash"])
            fields["code"] = FailureCode(fields["code"])
            fields["cuts"] = tuple((start, end) for start, end in fields["cuts"])
            return Rejection(**fields)
        case "EngineStats":
            return EngineStats(**fields)
        case "EngineReady":
            return EngineReady(**fields)
        case "Aborted":
            return Aborted(tuple(map(bytes.fromhex, fields["document_hashes"])))
    raise AssertionError(f"unknown event {name}")


def _decode_spec(fields: dict[str, Any]) -> EngineSpec:
    fields["row_sampling"] = tuple(fields["row_sampling"])
    scoring = fields["scoring"]
    if scoring is not None:
        prior = scoring["prior"]
        messages = None if prior is None else tuple(map(_decode_message, prior))
        fields["scoring"] = Scoring(tuple(scoring["choices"]), scoring["is_told"], messages)
    return EngineSpec(**fields)


def _decode_request(fields: Mapping[str, Any]) -> EngineRequest:
    messages = tuple(map(_decode_message, fields["messages"]))
    document_hash = bytes.fromhex(fields["document_hash"])
    spans = tuple(Span(**span) for span in fields["spans"])
    own = fields["sampling"], fields["priority"], fields["adapter"], spans
    return EngineRequest(document_hash, messages, *own)


def _decode_message(fields: Mapping[str, Any]) -> Message:
    return Message(fields["role"], fields["content"], tuple(fields["images"]))


def _encode_bytes(value: object) -> str:
    assert isinstance(value, bytes)
    return value.hex()
