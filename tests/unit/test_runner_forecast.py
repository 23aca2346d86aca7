"""The context that a prompt has to fit into, where the job gives none."""

from pathlib import Path

import pytest

from bulkinfer.runner.forecast import find_context_tokens


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ('{"max_position_embeddings": 8192}', 8192),
        ('{"text_config": {"max_position_embeddings": 4096}}', 4096),
        ('{"model_type": "x"}', None),
        ('{"max_position_embeddings": "many"}', None),
        ("[]", None),
        ("{", None),
    ],
)
def test_a_limit_of_the_job_wins_and_else_the_model_says(tmp_path: Path, config: str, expected: int | None) -> None:
    (tmp_path / "config.json").write_text(config)
    assert find_context_tokens("auto", str(tmp_path)) == expected
    assert find_context_tokens(None, str(tmp_path)) == expected
    assert find_context_tokens(512, str(tmp_path)) == 512


def test_a_model_that_is_not_here_sets_no_limit() -> None:
    assert find_context_tokens(None, "nobody/nothing") is None
