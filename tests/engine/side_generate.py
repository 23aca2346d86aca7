"""Run by the tests in a process of its own: what the task `generate` asks of the real engine, in one engine."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from transformers import AutoTokenizer

from bulkinfer.engines.answers import Answer
from bulkinfer.engines.base import EngineRequest, EngineSpec
from bulkinfer.engines.vllm import VllmEngine
from bulkinfer.errors import JobError
from bulkinfer.records import Completion, JsonValue, Message, Rejection

orders = json.loads(Path(sys.argv[1]).read_text())
QUESTION = (Message("user", "Name three colours."),)
TEXT = "The capital of France is"
THOUGHT = "<think>2 and 2</think>\n\nIt is 4."

adapters = {
    f"a{number}": str(folder) for number, folder in enumerate(sorted(Path(sys.argv[1]).parent.glob("adapter-*")))
}
spec = EngineSpec(
    kind="vllm",
    model=orders["model"],
    revision=None,
    sampling={"temperature": 0, "max_tokens": 6},
    max_concurrency=4,
    max_context_tokens=512,
    arguments={"kv_cache_memory_bytes": 256 << 20},
    adapters=adapters,
    row_sampling=("seed", "max_tokens", "n", "temperature", "stop", "logprobs"),
)
engine = VllmEngine(spec)


def ask(messages: tuple[Message, ...], adapter: str | None = None, **sampling: JsonValue) -> Completion | Rejection:
    """Run one request to its end."""
    rejection = engine.add(EngineRequest(bytes(16), messages, sampling, adapter=adapter))
    if rejection is not None:
        return rejection
    outcomes = engine.step()
    while not outcomes:
        outcomes = engine.step()
    (outcome,) = outcomes
    assert engine.num_unfinished() == 0
    return outcome


def describe(outcome: Completion | Rejection) -> dict[str, object]:
    """As JSON."""
    return {**asdict(outcome), "document_hash": "", "kind": type(outcome).__name__}


def find_job_error(name: str) -> str:
    """What is told of a reasoning parser."""
    try:
        engine._create_reasoning(name, engine._renderer.tokenizer)
    except JobError as error:
        return str(error)
    return ""


def split_with_marks() -> dict[str, object]:
    """What vLLM's parsers make of texts. The demo model's tokenizer has no marks of reasoning; it is given some."""
    tokenizer = AutoTokenizer.from_pretrained(orders["model"])
    tokenizer.add_tokens(["<think>", "</think>"])
    told: dict[str, object] = {}
    for name in ("deepseek_r1", "qwen3"):
        reasoning = engine._create_reasoning(name, tokenizer)
        answers = [reasoning.split(Answer(text, "stop", 9)) for text in (THOUGHT, "<think>2 and")]
        told[name] = [{"reasoning": answer.reasoning, "text": answer.text} for answer in answers]
    return told


found: dict[str, object] = {
    "settings": {name: engine._chosen.values.get(name) for name in ("enable_lora", "max_lora_rank", "max_loras")},
    "chunked": engine._chosen.values.get("enable_chunked_prefill"),
    "base": describe(ask(QUESTION)),
    "adapted": [describe(ask(QUESTION, name)) for name in adapters],
    "base again": describe(ask(QUESTION)),
    "adapted again": describe(ask(QUESTION, "a0")),
    "several": describe(ask(QUESTION, n=3, temperature=1.0, seed=5)),
    "several again": describe(ask(QUESTION, n=3, temperature=1.0, seed=5)),
    "greedy several": describe(ask(QUESTION, n=2)),
    "seeded": [describe(ask(QUESTION, temperature=1.5, seed=seed)) for seed in (1, 2, 1)],
    "logprobs": describe(ask(QUESTION, logprobs=3)),
    "chosen alone": describe(ask(QUESTION, logprobs=0)),
    "short": describe(ask(QUESTION, max_tokens=2)),
    "stopped": describe(ask(QUESTION, stop=[" "], max_tokens=30)),
    "too many": describe(ask(QUESTION, max_tokens=512)),
}
engine._spec = replace(engine._spec, is_plain=True)
plain = engine.render((Message("text", TEXT),))
found |= {
    "plain": {"ids": plain, "own": engine._renderer.tokenizer(TEXT)["input_ids"]},
    "completed": describe(ask((Message("text", TEXT),), max_tokens=3)),
    "no such parser": find_job_error("no_such_parser"),
    "no marks": find_job_error("deepseek_r1"),
}
found["split"] = split_with_marks()
Path(sys.argv[2]).write_text(json.dumps(found))
