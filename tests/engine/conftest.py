"""What the real-engine tests share. Each engine lives in a process of its own, and only one at a time."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bulkinfer.engines.environment import build_environment, find_vllm
from tests.engine_support import MODEL_PATH, ROOT, vllm_spec

HERE = Path(__file__).parent
TICKETS_PATH = ROOT / "sample_data" / "tickets.jsonl"
MAX_CONTEXT_TOKENS = 2048
MAX_TOKENS = 16
NUM_ANSWERS = 12


@pytest.fixture(scope="session")
def conversations() -> list[list[dict[str, str]]]:
    """A conversation for each sample ticket: every other one with a system message."""
    tickets = [json.loads(line) for line in TICKETS_PATH.read_text(encoding="utf-8").splitlines()]
    conversations = []
    for number, ticket in enumerate(tickets):
        user = {"role": "user", "content": f"{ticket['subject']}\n\n{ticket['body']}"}
        system = {"role": "system", "content": "You summarise customer support tickets in one short sentence."}
        conversations.append([system, user] if number % 2 else [user])
    return conversations


@pytest.fixture(scope="session")
def by_llm_chat(conversations: list[list[dict[str, str]]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What vLLM's own `LLM.chat` makes of the conversations: see `side_llm_chat.py`."""
    return run_side("side_llm_chat.py", conversations, tmp_path_factory.mktemp("llm_chat"))


@pytest.fixture(scope="session")
def by_our_engine(
    conversations: list[list[dict[str, str]]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What our engine makes of them: see `side_our_engine.py`."""
    return run_side("side_our_engine.py", conversations, tmp_path_factory.mktemp("our_engine"))


def run_side(script: str, conversations: Sequence[Any], folder: Path, limit_s: float = 140) -> dict[str, Any]:
    """Run one of the scripts beside this file in a process of its own, and read the JSON that it writes."""
    orders = {
        "model": str(MODEL_PATH),
        "conversations": conversations,
        "max_context_tokens": MAX_CONTEXT_TOKENS,
        "max_tokens": MAX_TOKENS,
        "num_answers": NUM_ANSWERS,
    }
    return run_script(script, orders, folder, limit_s)


def run_script(script: str, orders: Mapping[str, Any], folder: Path, limit_s: float = 140) -> dict[str, Any]:
    """The same with any orders."""
    (folder / "orders.json").write_text(json.dumps(orders))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    environment = build_environment(vllm_spec(), find_vllm(), inherited)
    environment["PYTHONPATH"] = str(ROOT / "src")
    command = [sys.executable, str(HERE / script), str(folder / "orders.json"), str(folder / "found.json")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit_s, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found
