"""The engine alone, fed in an order of our choice, without input files and store."""

import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.queues import Queue
from bulkinfer.engines import create_engine
from bulkinfer.engines.base import Engine, EngineSpec
from bulkinfer.records import (
    Completion,
    EngineReady,
    JsonValue,
    Message,
    Origin,
    Rejection,
    Request,
)

START_TIMEOUT_S = 120
RUN_TIMEOUT_S = 300
POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Driven:
    """What one drive took, on the engine's clock."""

    makespan_s: float
    """From the first request given to the last answer."""
    tail_s: float
    """From the moment that nothing was left to give, to the last answer."""
    num_documents: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class DriveFailed(Exception):
    """The engine did not start, died, or refused a document."""


def vllm_spec(queue: Queue, model: Path, max_concurrency: int, arguments: dict[str, JsonValue]) -> EngineSpec:
    """The demo model in vLLM, greedy."""
    return EngineSpec(
        kind="vllm",
        model=str(model),
        revision=None,
        sampling={"temperature": 0, "max_tokens": queue.max_tokens},
        max_concurrency=max_concurrency,
        max_context_tokens=queue.max_context_tokens,
        arguments=arguments,
    )


def make_requests(queue: Queue, *, is_distinct: bool) -> list[Request]:
    """A request for each row in file order, or for the first of each equal rows."""
    requests = []
    seen = Counter[tuple[str, str]]()
    for entry, conversation in zip(queue.entries, queue.conversations(), strict=True):
        seen[entry.content] += 1
        if is_distinct and seen[entry.content] > 1:
            continue
        messages = tuple(Message(message["role"], message["content"]) for message in conversation)
        requests.append(make_request(entry.document_id, messages))
    return requests


def make_request(document_id: str, messages: tuple[Message, ...]) -> Request:
    """A request known by the id of its row, so that equal rows are two requests."""
    document_hash = hashlib.sha256(document_id.encode()).digest()[:16]
    num_chars = sum(len(message.content) for message in messages)
    return Request(document_hash, Origin("benchmark", 1, document_id), messages, num_chars)


def drive(spec: EngineSpec, requests: Sequence[Request], window: int, log_path: Path | None = None) -> Driven:
    """Give all requests in their order, at most `window` at a time, to a fresh engine. Raises DriveFailed."""
    engine = create_engine(spec, start_timeout_s=START_TIMEOUT_S, log_path=log_path)
    try:
        _start(engine)
        return _drive(engine, requests, window)
    finally:
        engine.close()


def _start(engine: Engine) -> None:
    engine.start()
    until_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until_s:
        if any(isinstance(event, EngineReady) for event in engine.poll(POLL_S)):
            return
    raise DriveFailed(f"the engine was not ready within {START_TIMEOUT_S} s")


def _drive(engine: Engine, requests: Sequence[Request], window: int) -> Driven:
    completions: list[Completion] = []
    num_given, given_s = 0, 0.0
    start_s, until_s = engine.now(), time.monotonic() + RUN_TIMEOUT_S
    while len(completions) < len(requests):
        if time.monotonic() > until_s:
            raise DriveFailed(f"{len(completions)} of {len(requests)} answers within {RUN_TIMEOUT_S} s")
        free = window - (num_given - len(completions))
        if free > 0 and num_given < len(requests):
            engine.submit(requests[num_given : num_given + free])
            num_given, given_s = min(len(requests), num_given + free), engine.now()
        for event in engine.poll(POLL_S):
            match event:
                case Completion():
                    completions.append(event)
                case Rejection():
                    raise DriveFailed(f"the engine refused a document: {event.code}: {event.message}")
                case _:
                    pass
    end_s = engine.now()
    return Driven(
        makespan_s=end_s - start_s,
        tail_s=end_s - given_s,
        num_documents=len(requests),
        prompt_tokens=sum(completion.prompt_tokens for completion in completions),
        cached_tokens=sum(completion.cached_tokens for completion in completions),
        output_tokens=sum(completion.output_tokens for completion in completions),
    )
