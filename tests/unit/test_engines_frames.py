"""What parent and child say to each other arrives as it was said."""

import socket
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkinfer.engines.base import EngineRequest
from bulkinfer.engines.frames import (
    Abort,
    ChildFailure,
    ChildFrame,
    Close,
    Events,
    ParentFrame,
    Start,
    Submit,
    decode_child_frame,
    decode_parent_frame,
    encode_child_frame,
    encode_parent_frame,
    encode_request,
)
from bulkinfer.framing import read_frame, send_frame
from bulkinfer.records import (
    Aborted,
    Completion,
    EngineReady,
    EngineStats,
    FailureCode,
    Message,
    Rejection,
    Span,
    Workload,
)
from tests.engine_support import simulated_spec, vllm_spec

HASH = bytes(range(240, 256))


@pytest.mark.parametrize(
    "frame",
    [
        Start(vllm_spec(block_size=16, faults=[{"match": "x"}]), 3),
        Start(simulated_spec(), 1),
        Start(replace(simulated_spec(), task="embed", is_normalized=False, sampling={}), 1),
        Start(
            simulated_spec(), 1, Workload(10, 1.5, 2, 3, is_read_to_end=True, tokens_per_s=0.5, longest_bytes=(3, 2))
        ),
        Submit(()),
        Submit(
            (EngineRequest(HASH, (Message("system", "s"), Message("user", "ü\n\0😀"))), EngineRequest(bytes(16), ()))
        ),
        Submit((EngineRequest(HASH, (), sampling={"max_tokens": 7, "stop": ["."]}, priority=-3, adapter="polite"),)),
        Submit((EngineRequest(HASH, (Message("user", "abc"),), spans=(Span(0, 0, 1), Span(0, 2, 3))),)),
        Abort((HASH, bytes(16))),
        Close(),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_a_frame_to_the_child_arrives_unchanged(frame: ParentFrame) -> None:
    assert decode_parent_frame(encode_parent_frame(frame)) == frame


@pytest.mark.parametrize(
    "frame",
    [
        Events(
            (
                EngineReady(2.5, 4096, {"reasons": {"block_size": "why"}}, max_concurrency=7),
                EngineReady(1.5, 4096, {"block_size": 32, "dtype": "bfloat16", "omp": None}),
                EngineReady(1.5, 0, {}, 8, vector_size=384),
                Completion(HASH, "text", "stop", 10, 3, 2, 0.1, 0.2, 0.3),
                Completion(HASH, "", "stop", 10, 0, 0, 0.1, 0.2, 0.3, {"a": [1]}, bytes(range(256))),
                Completion(HASH, "", "stop", 10, 0, 0, 0.1, 0.2, 0.3, None, b""),
                Completion(HASH, "thought", "stop", 10, 0, 0, 0.1, 0.2, 0.3, fault="the parser failed"),
                Rejection(HASH, FailureCode.PROMPT_TOO_LONG, "too long", 5000, 4000),
                Rejection(HASH, FailureCode.ENGINE_REJECTED, "refused"),
                EngineStats(1, 2, 0.5, 3, 4, 5, 6),
                EngineStats(1, 2, 0.5, 3, 4, 5, 6, num_aborted=7, num_free_kv_blocks=8, peak_kv_cache_usage=0.75),
                Aborted((HASH, bytes(16))),
                Aborted(()),
            )
        ),
        ChildFailure(is_job_error=True, message="no such key"),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_a_frame_from_the_child_arrives_unchanged(frame: ChildFrame) -> None:
    assert decode_child_frame(encode_child_frame(frame)) == frame


@given(st.text(), st.binary(min_size=16, max_size=16))
def test_any_text_and_any_hash_arrive_unchanged(text: str, document_hash: bytes) -> None:
    submit = Submit((EngineRequest(document_hash, (Message("user", text),)),))
    assert decode_parent_frame(encode_parent_frame(submit)) == submit
    events = Events((Completion(document_hash, text, "stop", 1, 0, 1, 0.0, 0.0, 0.0),))
    assert decode_child_frame(encode_child_frame(events)) == events


def test_a_lone_surrogate_cannot_be_sent() -> None:
    with pytest.raises(orjson.JSONEncodeError):
        encode_request(EngineRequest(HASH, (Message("user", "\ud800"),)))


def test_frames_are_read_one_by_one_to_the_end_of_the_socket() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send_frame(theirs, b"first")
        send_frame(theirs, b"")
        theirs.sendall(b"\x00\x00\x00\x09cut")
        theirs.shutdown(socket.SHUT_WR)
        with ours.makefile("rb") as stream:
            assert [read_frame(stream), read_frame(stream), read_frame(stream)] == [b"first", b"", None]
