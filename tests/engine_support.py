"""What the tests of engines share: specs, requests, and waiting with a limit."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from bulkinfer.engines.base import Engine, EngineSpec
from bulkinfer.errors import EngineError
from bulkinfer.records import Completion, EngineEvent, EngineReady, JsonValue, Message, Origin, Rejection, Request

ROOT = Path(__file__).parents[1]
MODEL_PATH = ROOT / ".models" / "smollm2-135m-instruct"
FREE: dict[str, JsonValue] = {"seconds_per_prompt_token": 0, "seconds_per_output_token": 0}


def simulated_spec(
    *, max_concurrency: int = 4, max_context_tokens: int = 512, max_tokens: int = 8, **arguments: JsonValue
) -> EngineSpec:
    """A simulated engine that costs nothing, except for what `arguments` say."""
    return EngineSpec(
        kind="simulated",
        model="none",
        revision=None,
        sampling={"max_tokens": max_tokens},
        max_concurrency=max_concurrency,
        max_context_tokens=max_context_tokens,
        arguments=FREE | arguments,
    )


def vllm_spec(
    *, max_concurrency: int = 4, max_context_tokens: int = 512, max_tokens: int = 8, **arguments: JsonValue
) -> EngineSpec:
    """The demo model in vLLM, always taking the most likely token."""
    return EngineSpec(
        kind="vllm",
        model=str(MODEL_PATH),
        revision=None,
        sampling={"max_tokens": max_tokens, "temperature": 0},
        max_concurrency=max_concurrency,
        max_context_tokens=max_context_tokens,
        arguments=arguments,
    )


def make_request(name: str, content: str | None = None) -> Request:
    """A request whose hash is that of its name; the content is the name too, unless one is given."""
    content = name if content is None else content
    document_hash = hashlib.sha256(name.encode()).digest()[:16]
    return Request(document_hash, Origin("in.jsonl", 1, name), (Message("user", content),), len(content))


def start_and_wait(engine: Engine, limit_s: float = 90) -> EngineReady:
    """Start an engine and wait until it is ready."""
    engine.start()
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        for event in engine.poll(1.0):
            if isinstance(event, EngineReady):
                return event
    raise AssertionError(f"not ready within {limit_s} s")


def collect_outcomes(engine: Engine, count: int, limit_s: float = 60) -> list[Completion | Rejection]:
    """Poll until `count` outcomes have come."""
    outcomes: list[Completion | Rejection] = []
    until_s = time.monotonic() + limit_s
    while len(outcomes) < count:
        assert time.monotonic() < until_s, f"{len(outcomes)} of {count} outcomes within {limit_s} s"
        outcomes += select_outcomes(engine.poll(0.5))
    return outcomes


def select_outcomes(events: list[EngineEvent]) -> list[Completion | Rejection]:
    """Leave out what is not about one request."""
    return [event for event in events if isinstance(event, Completion | Rejection)]


def poll_until_error(engine: Engine, limit_s: float) -> EngineError:
    """Poll until the engine reports its end."""
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        try:
            engine.poll(0.1)
        except EngineError as error:
            return error
    raise AssertionError(f"no error within {limit_s} s")


def wait_until(is_true: Callable[[], bool], limit_s: float) -> None:
    """Wait for a condition."""
    until_s = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < until_s, f"not true within {limit_s} s"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and is not yet reaped does not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return False
    return fields[0] not in {"Z", "X"}
