"""The context that a prompt has to fit into: whose word it is, and how certain."""

from dataclasses import replace
from pathlib import Path

import pytest

from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.simulated import AUTO_MAX_CONTEXT_TOKENS
from bulkinfer.runner.context import Context, ContextOrigin, find_context

AUTO = EngineSpec("vllm", "nobody/nothing", None, {"max_tokens": 16}, 4, None, {})
UNKNOWN = Context(None, ContextOrigin.UNKNOWN)


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ('{"max_position_embeddings": 8192}', 8192),
        ('{"text_config": {"max_position_embeddings": 4096}}', 4096),
        ('{"model_type": "x"}', None),
        ('{"max_position_embeddings": "many"}', None),
        ('{"max_position_embeddings": true}', None),
        ("[]", None),
        ("{", None),
    ],
)
def test_a_limit_of_the_job_wins_and_else_the_model_says(tmp_path: Path, config: str, tokens: int | None) -> None:
    (tmp_path / "config.json").write_text(config)
    found = find_context(replace(AUTO, model=str(tmp_path)))
    assert found == (UNKNOWN if tokens is None else Context(tokens, ContextOrigin.MODEL))
    assert not found.is_certain
    given = find_context(replace(AUTO, model=str(tmp_path), max_context_tokens=512))
    assert given == Context(512, ContextOrigin.JOB)
    assert given.is_certain


def test_the_simulated_engine_has_a_limit_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 64}')
    found = find_context(replace(AUTO, kind="simulated", model=str(tmp_path)))
    assert found == Context(AUTO_MAX_CONTEXT_TOKENS, ContextOrigin.SIMULATED)
    assert found.is_certain


def test_of_a_hub_id_what_was_downloaded_before_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert find_context(AUTO) == UNKNOWN
    folder = tmp_path / "models--nobody--nothing"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "snapshots" / "abc" / "config.json").write_text('{"max_position_embeddings": 2048}')
    assert find_context(AUTO) == Context(2048, ContextOrigin.MODEL)
    assert find_context(replace(AUTO, revision="other")) == UNKNOWN


def test_a_name_that_no_hub_has_sets_no_limit() -> None:
    assert find_context(replace(AUTO, model="../../no such")) == UNKNOWN
