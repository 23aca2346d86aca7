"""Our engine gives the model what vLLM's own `LLM.chat` gives it, and gets the same answers."""

from typing import Any

import pytest

# Two engines are loaded, one after the other, before the first test runs; on a busy machine that takes a while.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


def test_the_model_gets_the_token_ids_of_llm_chat(
    by_llm_chat: dict[str, Any], by_our_engine: dict[str, Any], conversations: list[list[dict[str, str]]]
) -> None:
    assert len(by_our_engine["prompts"]) == len(conversations) >= 100
    assert by_our_engine["prompts"] == by_llm_chat["prompts"]
    assert by_our_engine["prompts"][:12] == [answer["prompt"] for answer in by_llm_chat["answers"]]
    assert min(len(prompt) for prompt in by_our_engine["prompts"]) > 10


def test_one_at_a_time_the_answers_are_those_of_llm_chat(
    by_llm_chat: dict[str, Any], by_our_engine: dict[str, Any]
) -> None:
    assert len(by_our_engine["answers"]) == 12
    assert by_our_engine["answers"] == [answer["text"] for answer in by_llm_chat["answers"]]
    lengths = [len(answer["token_ids"]) for answer in by_llm_chat["answers"]]
    assert [completion["output_tokens"] for completion in by_our_engine["completions"]] == lengths


def test_a_completion_tells_its_tokens_and_its_times(by_our_engine: dict[str, Any]) -> None:
    for prompt, completion in zip(by_our_engine["prompts"], by_our_engine["completions"], strict=False):
        assert completion["prompt_tokens"] == len(prompt)
        assert 0 <= completion["cached_tokens"] < len(prompt)
        assert 0 <= completion["queue_s"] <= completion["first_token_s"] <= completion["total_s"] < 60
        assert completion["finish_reason"] in {"stop", "length"}
        assert (completion["finish_reason"] == "length") == (completion["output_tokens"] == 16)


def test_a_prompt_may_fill_the_context_up_to_max_tokens(by_our_engine: dict[str, Any]) -> None:
    assert by_our_engine["longest"] == 2048 - 16
    assert by_our_engine["one_more"]["code"] == "prompt_too_long"
    assert by_our_engine["one_more"]["tokens"] == 2048 - 16 + 1
    assert by_our_engine["one_more"]["message"] == (
        "prompt of 2033 tokens + max_tokens 16 = 2049 exceeds limits.max_context_tokens 2048"
    )


def test_a_document_of_20_megabytes_is_refused_without_being_tokenized(by_our_engine: dict[str, Any]) -> None:
    assert by_our_engine["huge"]["code"] == "prompt_too_long"
    assert by_our_engine["huge"]["message"].startswith("prompt of 19999999 bytes exceeds")
    assert by_our_engine["huge"]["s"] < 1.0
    assert by_our_engine["num_unfinished"] == 0


def test_a_prompt_that_the_chat_template_refuses_is_one_rejection(by_our_engine: dict[str, Any]) -> None:
    assert by_our_engine["by_template"]["code"] == "engine_rejected"
    assert by_our_engine["by_template"]["message"].startswith("vLLM refused the request: ")
    assert "secret" not in by_our_engine["by_template"]["message"]


def test_the_engine_tells_what_it_chose_for_a_cpu(by_our_engine: dict[str, Any]) -> None:
    settings = by_our_engine["ready"]
    assert settings["device"] == "cpu"
    assert (settings["max_num_seqs"], settings["max_model_len"], settings["block_size"]) == (1, 2048, 32)
    assert settings["enforce_eager"] is True
    assert settings["kv_cache_memory_bytes"] == 256 << 20
    # 30 layers * 3 heads * 64 numbers * 2 bytes, for a key and a value
    assert by_our_engine["num_kv_cache_tokens"] == (256 << 20) // (23_040 * 32) * 32


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "unknown argument",
            'engine.vllm.blok_size: this vLLM has no such engine argument; did you mean "block_size"?',
        ),
        ("owned argument", "engine.vllm.max_model_len: this is set by limits.max_context_tokens"),
        (
            "unknown sampling",
            'sampling.temprature: this vLLM has no such sampling parameter; did you mean "temperature"?',
        ),
        ("wrong sampling", "sampling: vLLM refuses it: "),
        ("wrong structure", "sampling: vLLM refuses it: "),
    ],
)
def test_what_vllm_does_not_know_is_the_jobs_fault(by_our_engine: dict[str, Any], name: str, told: str) -> None:
    assert by_our_engine["job_errors"][name].startswith(told)
