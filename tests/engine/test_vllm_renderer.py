from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import run_side

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]


def test_rendering_beside_the_steps_gives_the_same_token_ids(
    conversations: list[list[dict[str, str]]], tmp_path: Path
) -> None:
    found: dict[str, Any] = run_side("side_renderer.py", conversations, tmp_path)
    assert found["faults"] == []
    assert (found["num_rendered"], found["num_wrong"]) == (found["num_expected"], 0)
    assert found["num_rendered_meanwhile"] > 0  # both threads worked at once
    assert found["num_completions"] == len(conversations)
