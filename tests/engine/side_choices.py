"""Run by the tests in a process of its own: probabilities of choices by our engine, and by transformers alone."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bulkinfer.engines.base import EngineRequest, EngineSpec
from bulkinfer.engines.scoring import Scoring
from bulkinfer.engines.vllm import VllmEngine
from bulkinfer.records import FORM, Completion, Message

NUM_DOCUMENTS = 3  # the shortest

orders = json.loads(Path(sys.argv[1]).read_text())
choices = ("defect", "a question", "a complaint")
conversations = [tuple(Message(**message) for message in one) for one in orders["conversations"]]
conversations = sorted(conversations, key=lambda one: len(one[-1].content))[:NUM_DOCUMENTS]
prior = (Message("user", "Which kind of ticket is this?"),)


def make_engine(scoring: Scoring) -> VllmEngine:
    return VllmEngine(
        EngineSpec(
            kind="vllm",
            model=orders["model"],
            revision=None,
            sampling={"temperature": 0, "max_tokens": 26, FORM: {"choice": list(choices)}},
            max_concurrency=8,
            max_context_tokens=orders["max_context_tokens"],
            arguments={"kv_cache_memory_bytes": 512 << 20, "dtype": "float32"},
            scoring=scoring,
        )
    )


def answer_all(engine: VllmEngine) -> list[Completion]:
    """All conversations, side by side; one more is dropped at once."""
    hashes = [bytes([number]) * 16 for number in range(len(conversations))]
    for document_hash, messages in zip(hashes, conversations, strict=True):
        assert engine.add(EngineRequest(document_hash, messages)) is None
    assert engine.add(EngineRequest(b"x" * 16, conversations[0])) is None
    assert engine.abort([b"x" * 16]) == (b"x" * 16,)
    found: dict[bytes, Completion] = {}
    while engine.num_unfinished():
        for outcome in engine.step():
            assert isinstance(outcome, Completion)
            found[outcome.document_hash] = outcome
    return [found[document_hash] for document_hash in hashes]


def told(completions: list[Completion]) -> list[Any]:
    return [[one.text, one.details, one.output_tokens, one.cached_tokens, one.finish_reason] for one in completions]


def score_alone(model: torch.nn.Module, prompt: list[int], tokenizer: AutoTokenizer) -> dict[str, float]:
    """Each choice by one pass over prompt and choice together, without anything of bulkinfer."""
    joint = {}
    for choice in choices:
        tokens = tokenizer.encode(choice, add_special_tokens=False)
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *tokens]])).logits[0].double()
        logprobs = torch.log_softmax(logits, dim=-1)
        joint[choice] = sum(float(logprobs[len(prompt) - 1 + place, token]) for place, token in enumerate(tokens))
    most = max(joint.values())
    total = sum(math.exp(one - most) for one in joint.values())
    return {choice: math.exp(one - most) / total for choice, one in joint.items()}


engine = make_engine(Scoring(choices, is_told=True, prior=prior))
calibrated = answer_all(engine)
label_prior = engine.ready().settings["label_prior"]
# As in a vLLM that tells the log probability of the drawn token alone.
engine._scorer = type(engine._scorer)(  # type: ignore[misc]
    Scoring(choices, is_told=True),
    engine._engine,
    engine._scorer._tokens.__getitem__,  # type: ignore[union-attr]
    engine._scorer._make_params,  # type: ignore[union-attr]
    has_chosen_logprobs=False,
)
one_by_one = answer_all(engine)
prompts = [engine.render(messages) for messages in (*conversations, prior)]
num_unfinished = engine.num_unfinished()
del engine

tokenizer = AutoTokenizer.from_pretrained(orders["model"])
model = AutoModelForCausalLM.from_pretrained(orders["model"], dtype=torch.float32)
alone = [score_alone(model, prompt, tokenizer) for prompt in prompts]
found = {
    "choices": choices,
    "calibrated": told(calibrated),
    "one_by_one": told(one_by_one),
    "label_prior": label_prior,
    "alone": alone[:-1],
    "prior_alone": alone[-1],
    "num_unfinished": num_unfinished,
}
Path(sys.argv[2]).write_text(json.dumps(found))
