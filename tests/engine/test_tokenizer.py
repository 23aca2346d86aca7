"""The tokenizer without an engine counts what the engine counts: `plan` says how many tokens `run` will read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkinfer.engines import choose_counter
from bulkinfer.engines.tokenizer import HubTokenizer, TokenizerMissing
from bulkinfer.records import Message
from tests.engine_support import vllm_spec

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def tokenizer() -> HubTokenizer:
    """Of the demo model."""
    return HubTokenizer(vllm_spec())


def test_prompts_are_the_engines(
    tokenizer: HubTokenizer, by_our_engine: dict[str, Any], conversations: list[list[dict[str, str]]]
) -> None:
    prompts = [[Message(message["role"], message["content"]) for message in one] for one in conversations]
    assert tokenizer.tokenize(prompts) == by_our_engine["prompts"]
    assert tokenizer.count(prompts) == [len(ids) for ids in by_our_engine["prompts"]]


@given(st.text(), st.text(min_size=1))
def test_what_is_safe_has_no_more_tokens(tokenizer: HubTokenizer, system: str, user: str) -> None:
    num_bytes = len(system.encode()) + len(user.encode())
    [num_tokens] = tokenizer.count([[Message("system", system), Message("user", user)]])
    assert num_tokens is not None
    least = next(limit for limit in range(1, 10_000) if (tokenizer.find_safe_bytes(limit) or 0) >= max(1, num_bytes))
    assert num_tokens <= least


def test_the_jobs_chat_template_is_taken_and_one_that_refuses_is_none(tokenizer: HubTokenizer) -> None:
    template = "{% if messages|length > 1 %}{{ raise_exception('no') }}{% endif %}a{{ messages[0].content }}"
    own = HubTokenizer(replace(vllm_spec(), chat_template=template))
    both = [Message("system", "s"), Message("user", "u")]
    assert own.count([[Message("user", "")], both]) == [1, None]
    assert own.count([both]) == [None]


def test_a_plain_text_is_counted_as_it_stands() -> None:
    plain = HubTokenizer(replace(vllm_spec(), is_plain=True))
    assert plain.count([[Message("text", "The capital of France is")]]) == [5]


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    spec = replace(vllm_spec(), model=str(tmp_path))
    with pytest.raises(TokenizerMissing, match=r"on this machine \(\w+\)$"):
        HubTokenizer(spec)
    with pytest.raises(TokenizerMissing, match="the first run downloads it"):
        HubTokenizer(replace(spec, model="nobody/nothing"))
    assert choose_counter(spec).name == "characters"
    assert choose_counter(vllm_spec()).name == "tokenizer"
