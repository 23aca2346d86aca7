"""Run by the tests in a process of its own: render in a second thread while the first steps the engine."""

import json
import sys
import threading
from pathlib import Path

from bulkinfer.engines.base import EngineRequest, EngineSpec, Prepared
from bulkinfer.engines.vllm import VllmEngine
from bulkinfer.records import Completion, Message, Rejection

NUM_ROUNDS = 10

orders = json.loads(Path(sys.argv[1]).read_text())
conversations = [tuple(Message(**message) for message in one) for one in orders["conversations"]]
spec = EngineSpec(
    kind="vllm",
    model=orders["model"],
    revision=None,
    sampling={"temperature": 0, "max_tokens": orders["max_tokens"]},
    max_concurrency=16,
    max_context_tokens=orders["max_context_tokens"],
    arguments={"kv_cache_memory_bytes": 256 << 20},
)
engine = VllmEngine(spec)
alone = [engine.render(messages) for messages in conversations]
rendered: list[tuple[int, list[int]]] = []
faults: list[str] = []
is_over = threading.Event()


def render_all() -> None:
    """Prepare every conversation again and again, as the worker's renderer does."""
    try:
        for _ in range(NUM_ROUNDS):
            for number, messages in enumerate(conversations):
                prepared = engine.prepare(EngineRequest(bytes(16), messages))
                assert isinstance(prepared, Prepared)
                rendered.append((number, list(prepared.prompt["prompt_token_ids"])))  # type: ignore[index]
    except Exception as error:  # noqa: BLE001 - the test tells it
        faults.append(repr(error))
    finally:
        is_over.set()


def step_all() -> list[Completion | Rejection]:
    """Answer every conversation; the detokenizer works in each step."""
    for number, messages in enumerate(conversations):
        assert engine.add(EngineRequest(number.to_bytes(16, "big"), messages)) is None
    outcomes: list[Completion | Rejection] = []
    while engine.num_unfinished():
        outcomes += engine.step()
    return outcomes


thread = threading.Thread(target=render_all)
thread.start()
outcomes = step_all()
num_rendered_meanwhile = len(rendered)
while not is_over.is_set():
    step_all()
thread.join()
found = {
    "num_wrong": sum(token_ids != alone[number] for number, token_ids in rendered),
    "num_rendered": len(rendered),
    "num_rendered_meanwhile": num_rendered_meanwhile,
    "num_expected": NUM_ROUNDS * len(conversations),
    "faults": faults,
    "num_completions": sum(isinstance(outcome, Completion) for outcome in outcomes),
}
Path(sys.argv[2]).write_text(json.dumps(found))
