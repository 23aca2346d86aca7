"""The task `generate` on the real engine: answers, log probabilities, parameters of rows, plain texts, adapters."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bulkinfer.store import Reader
from tests.adapter_support import write_adapter
from tests.engine.conftest import run_side
from tests.engine_support import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one engine answers: see `side_generate.py`."""
    folder = tmp_path_factory.mktemp("generate")
    for seed in range(2):
        write_adapter(folder / f"adapter-{seed}", seed=seed)
    return run_side("side_generate.py", [], folder, limit_s=280)


def test_adapters_change_answers_and_only_those_that_they_are_asked_for(found: dict[str, Any]) -> None:
    assert found["settings"] == {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
    texts = [found["base"]["text"], *(one["text"] for one in found["adapted"])]
    assert len(set(texts)) == 3
    assert found["base again"]["text"] == texts[0]
    assert found["adapted again"]["text"] == texts[1]


def test_several_answers_are_drawn_apart_and_repeat_with_a_seed(found: dict[str, Any]) -> None:
    outputs = found["several"]["details"]["outputs"]
    assert len({one["text"] for one in outputs}) == 3
    assert found["several"]["text"] == outputs[0]["text"]
    assert found["several"]["output_tokens"] == sum(one["output_tokens"] for one in outputs)
    assert found["several again"]["details"] == found["several"]["details"]
    assert found["several"]["prompt_tokens"] == found["base"]["prompt_tokens"]


def test_what_vllm_refuses_of_a_row_is_one_rejection(found: dict[str, Any]) -> None:
    assert (found["greedy several"]["kind"], found["greedy several"]["code"]) == ("Rejection", "engine_rejected")
    assert (found["too many"]["kind"], found["too many"]["code"]) == ("Rejection", "prompt_too_long")


def test_rows_bring_seeds_lengths_and_stops(found: dict[str, Any]) -> None:
    first, second, again = (one["text"] for one in found["seeded"])
    assert first == again != second
    assert (found["short"]["output_tokens"], found["short"]["finish_reason"]) == (2, "length")
    assert found["stopped"]["finish_reason"] == "stop"
    assert " " not in found["stopped"]["text"]
    assert found["chunked"] is False, "with seeds on a CPU prompts are computed whole"


def test_log_probabilities_are_those_of_the_answer(found: dict[str, Any]) -> None:
    logprobs = found["logprobs"]["details"]["logprobs"]
    assert found["logprobs"]["text"] == found["base"]["text"]
    assert len(logprobs) == found["logprobs"]["output_tokens"]
    text = "".join(token for token, _, _ in logprobs)
    assert text.startswith(found["base"]["text"])
    for _, logprob, others in logprobs:
        assert len(others) == 2, "the token itself is the likeliest of three"
        assert 0 >= logprob >= others[0][1] >= others[1][1]
        assert math.exp(logprob) + sum(math.exp(other) for _, other in others) <= 1.001
    assert all(others == [] for _, _, others in found["chosen alone"]["details"]["logprobs"])


def test_a_plain_text_gets_no_chat_template(found: dict[str, Any]) -> None:
    assert found["plain"]["ids"] == found["plain"]["own"]
    assert found["completed"]["prompt_tokens"] == len(found["plain"]["ids"])
    assert "Paris" in found["completed"]["text"]


def test_vllms_own_parsers_split_reasoning_off(found: dict[str, Any]) -> None:
    for name in ("deepseek_r1", "qwen3"):
        thought, cut = found["split"][name]
        assert (thought["reasoning"].strip(), thought["text"].strip()) == ("2 and 2", "It is 4."), name
        assert (cut["reasoning"].strip(), cut["text"]) == ("2 and", ""), name


def test_a_parser_that_is_none_for_this_model_is_the_jobs_fault(found: dict[str, Any]) -> None:
    assert found["no such parser"].startswith("output.reasoning: vLLM's parser no_such_parser is none for this model: ")
    assert found["no marks"].startswith("output.reasoning: vLLM's parser deepseek_r1 is none for this model: ")


@pytest.mark.parametrize("name", ["few_shot", "complete", "variants", "conversations"])
def test_the_jobs_run(name: str, tmp_path: Path) -> None:
    database = tmp_path / "out.duckdb"
    command = [sys.executable, "-m", "bulkinfer", "run", str(ROOT / "jobs" / f"{name}.yaml"), "--limit", "8", "--json"]
    command += ["--quiet", "--set", f"output.database={database}", "--set", "limits.max_failures=100%"]
    command += ["--set", "engine.max_restarts=0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    summary = json.loads(done.stdout)
    documents = summary["documents"]
    assert documents["succeeded"] + documents["failed"] == 8, done.stderr
    assert documents["succeeded"] > 0
    assert set(documents["failed_by_code"]) <= {"truncated", "invalid_output"}
    with Reader.open(database) as reader:
        rows = list(reader.query("select output, value::varchar, details::varchar from answers").rows)
    assert len(rows) == documents["succeeded"]
    for output, value, details in rows:
        if name == "variants":
            assert json.loads(str(value))[0] == output
            assert len(json.loads(str(details))["logprobs"]) == 3
        else:
            assert value is None
