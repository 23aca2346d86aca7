"""Texts embedded and pairs scored by vLLM, beside what transformers computes of them by itself."""

import json
import math
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.child import ChildEngine
from bulkinfer.engines.token_counter import choose_counter, count_tokens
from bulkinfer.errors import JobError
from bulkinfer.records import Completion, EngineReady, FailureCode, Message, Origin, Rejection, Request
from tests.engine.conftest import run_script
from tests.engine_support import ROOT, collect_outcomes, poll_until_error, start_and_wait, vllm_spec

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

EMBEDDING_MODEL = ROOT / ".models" / "all-minilm-l6-v2"
CROSS_ENCODER = ROOT / ".models" / "random-cross-encoder"
TEXTS = ("a", "The lamp does not work.", "Die Lampe geht nicht. 東京", "word " * 200, "Where is my parcel?", "\u200b")
PAIRS = [
    (row["question"], row["passage"])
    for line in (ROOT / "sample_data" / "pairs.jsonl").read_text(encoding="utf-8").splitlines()
    for row in [json.loads(line)]
]


def pooling_spec(model: Path, task: str, *, is_normalized: bool = True, is_exact: bool = False) -> EngineSpec:
    """`is_exact`: in 32 bits, as a CPU computes by itself; otherwise in 16."""
    return replace(
        vllm_spec(max_concurrency=8),
        arguments={} if is_exact else {"dtype": "bfloat16"},
        model=str(model),
        task=task,
        is_normalized=is_normalized,
        sampling={},
        max_context_tokens=None,
    )


def text_request(number: int, text: str) -> Request:
    return Request(number.to_bytes(16, "big"), Origin("in", number, str(number)), (Message("text", text),), len(text))


def pair_request(number: int, query: str, document: str) -> Request:
    messages = (Message("query", query), Message("document", document))
    return Request(number.to_bytes(16, "big"), Origin("in", number, str(number)), messages, len(query) + len(document))


def start(spec: EngineSpec) -> Iterator[tuple[ChildEngine, EngineReady]]:
    engine = ChildEngine(spec, start_timeout_s=120, silence_timeout_s=60)
    yield engine, start_and_wait(engine, 120)
    engine.close()


def ask(engine: ChildEngine, requests: list[Request]) -> list[Completion]:
    """In the order of the requests."""
    engine.submit(requests)
    by_hash = {outcome.document_hash: outcome for outcome in collect_outcomes(engine, len(requests))}
    outcomes = [by_hash[request.document_hash] for request in requests]
    assert all(isinstance(outcome, Completion) for outcome in outcomes)
    return [outcome for outcome in outcomes if isinstance(outcome, Completion)]


def unpack(completion: Completion) -> list[float]:
    assert completion.vector is not None
    return list(array("f", completion.vector))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    orders = {
        "embedding_model": str(EMBEDDING_MODEL),
        "cross_encoder": str(CROSS_ENCODER),
        "texts": TEXTS,
        "pairs": PAIRS,
    }
    return run_script("side_transformers.py", orders, tmp_path_factory.mktemp("transformers"))


@pytest.fixture(scope="module")
def embedding() -> Iterator[tuple[ChildEngine, EngineReady]]:
    yield from start(pooling_spec(EMBEDDING_MODEL, "embed", is_exact=True))


@pytest.fixture(scope="module")
def cross_encoder() -> Iterator[tuple[ChildEngine, EngineReady]]:
    yield from start(pooling_spec(CROSS_ENCODER, "score", is_exact=True))


@pytest.fixture(scope="module")
def cosine() -> Iterator[tuple[ChildEngine, EngineReady]]:
    yield from start(pooling_spec(EMBEDDING_MODEL, "score"))


def test_vectors_are_the_mean_of_the_tokens_scaled_to_length_1(
    embedding: tuple[ChildEngine, EngineReady], expected: dict[str, Any]
) -> None:
    completions = ask(embedding[0], [text_request(number, text) for number, text in enumerate(TEXTS)])
    assert [completion.prompt_tokens for completion in completions] == expected["num_tokens"]
    for completion, raw in zip(completions, expected["vectors"], strict=True):
        vector = unpack(completion)
        assert math.hypot(*vector) == pytest.approx(1, abs=1e-5)
        assert vector == pytest.approx([number / math.hypot(*raw) for number in raw], abs=1e-4)
        assert (completion.text, completion.output_tokens, completion.finish_reason) == ("", 0, "stop")
        assert 0 <= completion.queue_s <= completion.total_s


def test_the_engine_tells_the_size_and_chooses_settings_for_prompts_alone(
    embedding: tuple[ChildEngine, EngineReady],
) -> None:
    _, ready = embedding
    assert ready.vector_size == 384
    assert ready.num_kv_cache_tokens == 0
    assert ready.settings["max_model_len"] == 256
    assert ready.settings["runner"] == "pooling"
    assert ready.settings["dtype"] == "torch.float32"
    assert ready.settings["enable_prefix_caching"] is False
    batched = ready.settings["max_num_batched_tokens"]
    assert isinstance(batched, int)
    assert batched >= 256


def test_a_text_that_is_too_long_is_refused_alone(embedding: tuple[ChildEngine, EngineReady]) -> None:
    engine, _ = embedding
    engine.submit([text_request(1, "word " * 300), text_request(2, "word " * 254)])
    by_hash = {outcome.document_hash: outcome for outcome in collect_outcomes(engine, 2)}
    rejection, completion = by_hash[(1).to_bytes(16, "big")], by_hash[(2).to_bytes(16, "big")]
    assert isinstance(rejection, Rejection)
    assert rejection.code is FailureCode.PROMPT_TOO_LONG
    assert rejection.message.startswith("prompt of 302 tokens exceeds the context of 256, which is what the model can")
    assert isinstance(completion, Completion)
    assert completion.prompt_tokens == 256


def test_an_abort_drops_texts_and_leaves_the_engine_well(embedding: tuple[ChildEngine, EngineReady]) -> None:
    engine, _ = embedding
    requests = [text_request(number, f"{number} " + "word " * 200) for number in range(100, 160)]
    engine.submit(requests)
    engine.abort([request.document_hash for request in requests])
    assert ask(engine, [text_request(1, "a")])[0].prompt_tokens == 3


def test_scores_of_a_cross_encoder_are_those_of_its_head(
    cross_encoder: tuple[ChildEngine, EngineReady], expected: dict[str, Any]
) -> None:
    engine, ready = cross_encoder
    assert (ready.settings["scored_by"], ready.vector_size) == ("cross_encoder", None)
    completions = ask(engine, [pair_request(number, *pair) for number, pair in enumerate(PAIRS)])
    assert [completion.prompt_tokens for completion in completions] == expected["num_pair_tokens"]
    assert [float(completion.text) for completion in completions] == pytest.approx(expected["scores"], abs=1e-4)
    assert len({completion.text for completion in completions}) > 32, "a head that says the same of all proves nothing"
    assert completions[0].details == {"scored_by": "cross_encoder"}


def test_the_cosine_of_an_embedding_model_is_highest_for_the_text_that_answers(
    cosine: tuple[ChildEngine, EngineReady],
) -> None:
    """In 16 bits, as a job may choose."""
    engine, ready = cosine
    assert ready.settings["scored_by"] == "cosine"
    completions = ask(engine, [pair_request(number, *pair) for number, pair in enumerate(PAIRS)])
    scores = [float(completion.text) for completion in completions]
    best = [max(range(8), key=lambda other: scores[8 * number + other]) for number in range(8)]
    assert sum(number == found for number, found in enumerate(best)) >= 6, "of eight; by chance it is one"
    assert completions[0].details == {"scored_by": "cosine"}


def test_a_cosine_is_that_of_the_vectors(
    cosine: tuple[ChildEngine, EngineReady], embedding: tuple[ChildEngine, EngineReady]
) -> None:
    one, other, third = PAIRS[0][0], PAIRS[0][1], PAIRS[1][1]
    found = ask(embedding[0], [text_request(number, text) for number, text in enumerate((one, other, third))])
    vectors = [unpack(completion) for completion in found]
    scores = ask(cosine[0], [pair_request(1, one, other), pair_request(2, one, third), pair_request(3, one, one)])
    expected = [sum(a * b for a, b in zip(vectors[0], vectors[n], strict=True)) for n in (1, 2, 0)]
    assert [float(score.text) for score in scores] == pytest.approx(expected, abs=0.02)
    assert float(scores[2].text) == pytest.approx(1, abs=1e-3)
    assert scores[0].prompt_tokens == found[0].prompt_tokens + found[1].prompt_tokens


def test_a_vector_that_is_not_normalized_is_the_bare_mean(expected: dict[str, Any]) -> None:
    for engine, _ in start(pooling_spec(EMBEDDING_MODEL, "embed", is_normalized=False, is_exact=True)):
        completions = ask(engine, [text_request(number, text) for number, text in enumerate(TEXTS)])
        for completion, raw in zip(completions, expected["vectors"], strict=True):
            assert unpack(completion) == pytest.approx(raw, abs=1e-3)
        assert min(abs(math.hypot(*unpack(completion)) - 1) for completion in completions) > 0.5


def test_a_context_above_the_models_is_a_fault_of_the_job() -> None:
    engine = ChildEngine(
        replace(pooling_spec(EMBEDDING_MODEL, "embed"), max_context_tokens=2048),
        start_timeout_s=120,
        silence_timeout_s=60,
    )
    engine.start()
    try:
        with pytest.raises(JobError, match="expected at most 256, which is what the model can take, found 2,048"):
            poll_until_error(engine, 120)
    finally:
        engine.close()


def test_a_plan_counts_the_tokens_that_the_model_reads(expected: dict[str, Any]) -> None:
    texts = [(Message("text", text),) for text in TEXTS]
    counter = choose_counter(pooling_spec(EMBEDDING_MODEL, "embed"))
    assert counter.count(texts) == expected["num_tokens"]
    pairs = [(Message("query", query), Message("document", document)) for query, document in PAIRS]
    joined = choose_counter(pooling_spec(CROSS_ENCODER, "score"))
    assert [count for count, _ in count_tokens(joined, pairs)] == expected["num_pair_tokens"]
    apart = choose_counter(pooling_spec(EMBEDDING_MODEL, "score"))
    for (count, longest), (query, document) in zip(count_tokens(apart, pairs), PAIRS, strict=True):
        own = [found or 0 for found in counter.count([(Message("text", query),), (Message("text", document),)])]
        assert (count, longest) == (sum(own), max(own))
