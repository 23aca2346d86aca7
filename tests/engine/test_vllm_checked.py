"""classify and extract on the real engine: labels and JSON of the demo model, probabilities, and what is ended."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai.types.chat import ChatCompletion

from bulkinfer.store import Reader
from tests.conftest import JobFolder
from tests.engine.conftest import run_side
from tests.engine_support import MODEL_PATH, ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

NUM_DOCUMENTS = 24


def run_shipped(name: str, tmp_path: Path, *overrides: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run a shipped job on some of its documents; the summary, and the answers with their details."""
    database = tmp_path / "out.duckdb"
    command = [sys.executable, "-m", "bulkinfer", "run", str(ROOT / "jobs" / name), "--json"]
    command += ["--limit", str(NUM_DOCUMENTS), "--set", f"output.database={database}"]
    command += [part for override in overrides for part in ("--set", override)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("VLLM_", "BULKINFER_"))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    with Reader.open(database) as reader:
        lines = reader.query("select output, value, details, finish_reason, output_tokens from answers").rows
        names = ("output", "value", "details", "finish_reason", "output_tokens")
        return json.loads(done.stdout), [dict(zip(names, line, strict=True)) for line in lines]


def read_task(name: str) -> dict[str, Any]:
    task: dict[str, Any] = yaml.safe_load((ROOT / "jobs" / name).read_text())["task"]
    return task


def test_decoded_labels_are_always_choices(tmp_path: Path) -> None:
    choices = read_task("classify.yaml")["choices"]
    off = ("task.probabilities=false", "task.calibrate=false")
    summary, answers = run_shipped("classify.yaml", tmp_path, *off)
    assert summary["documents"]["failed"] == 0
    assert len(answers) >= NUM_DOCUMENTS
    for answer in answers:
        assert json.loads(answer["value"]) == answer["output"]
        assert answer["output"] in choices
        assert answer["finish_reason"] == "stop"
        assert answer["output_tokens"] <= max(map(len, choices)) + 1


def test_calibrated_labels_come_with_probabilities_and_the_prior_stands_in_the_summary(tmp_path: Path) -> None:
    choices = read_task("classify.yaml")["choices"]
    summary, answers = run_shipped("classify.yaml", tmp_path)
    prior = summary["engine"]["settings"]["label_prior"]
    assert set(prior) == set(choices)
    assert sum(prior.values()) == pytest.approx(1, abs=1e-4)
    for answer in answers:
        probabilities = json.loads(answer["details"])["probabilities"]
        assert sum(probabilities.values()) == pytest.approx(1, abs=1e-4)
        assert answer["output"] == max(probabilities, key=probabilities.__getitem__)


def test_probabilities_are_those_that_the_model_alone_gives(
    conversations: list[list[dict[str, str]]], tmp_path: Path
) -> None:
    found = run_side("side_choices.py", conversations, tmp_path, limit_s=270)
    prior = found["label_prior"]
    assert prior == pytest.approx(found["prior_alone"], rel=1e-3, abs=1e-6)
    for (label, details, num_requests, _, reason), alone in zip(found["calibrated"], found["alone"], strict=True):
        assert details["uncalibrated"] == pytest.approx(alone, rel=1e-3, abs=1e-6)
        divided = {choice: alone[choice] / found["prior_alone"][choice] for choice in found["choices"]}
        expected = {choice: one / sum(divided.values()) for choice, one in divided.items()}
        assert details["probabilities"] == pytest.approx(expected, rel=2e-3, abs=1e-6)
        assert label == max(expected, key=expected.__getitem__)
        assert reason == "stop"
        assert num_requests > 1
    # Without the log probabilities of chosen tokens, each token is asked for alone: the same comes of it.
    for (label, details, *_), alone in zip(found["one_by_one"], found["alone"], strict=True):
        assert details["probabilities"] == pytest.approx(alone, rel=1e-3, abs=1e-6)
        assert label == max(alone, key=alone.__getitem__)
    assert found["num_unfinished"] == 0


def test_extracted_json_fits_its_schema_and_has_no_white_space_between_its_parts(tmp_path: Path) -> None:
    schema = read_task("extract.yaml")["schema"]
    summary, answers = run_shipped("extract.yaml", tmp_path, "limits.max_failures=50%", "sampling.max_tokens=64")
    codes = set(summary["documents"]["failed_by_code"])
    assert codes <= {"truncated"}
    assert len(answers) >= NUM_DOCUMENTS // 2
    for answer in answers:
        value = json.loads(answer["value"])
        assert list(value) == schema["required"]
        assert value["wants"] in schema["properties"]["wants"]["enum"]
        assert 1 <= len(value["product"]) <= 40
        assert isinstance(value["is_urgent"], bool)
        compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        assert len(answer["output"]) <= len(compact) + 2 * len(value)
    assert summary["engine"]["settings"]["structured_outputs_config"]["backend"] == "guidance"


def test_a_pattern_holds_and_white_space_without_end_is_ended(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    folder.write_documents([{"id": f"d{number}", "body": f"Ticket {number}: AB-{number}"} for number in range(4)])
    folder.spec |= {"model": {"path": str(MODEL_PATH)}, "engine": {"kind": "vllm"}, "limits": {"max_failures": "100%"}}
    folder.spec |= {"task": {"kind": "extract", "regex": "[A-Z]{2}-[0-9]{1,3}"}, "sampling": {"max_tokens": 16}}
    folder.write_job()
    command = [sys.executable, "-m", "bulkinfer", "run", str(folder.job_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    with Reader.open(folder.database) as reader:
        values = [json.loads(str(value)) for (value,) in reader.query("select value from answers").rows]
    assert len(values) == 4
    assert all(value[2] == "-" and value[:2].isupper() and value[3:].isdigit() for value in values)

    folder.spec |= {
        "name": "spaces",
        "task": {"kind": "extract", "regex": "[ ]{4000}"},
        "sampling": {"max_tokens": 400},
    }
    folder.write_job()
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 5, done.stderr[-2000:]
    assert json.loads(done.stdout)["documents"]["failed_by_code"] == {"invalid_output": 4}
    with Reader.open(folder.database) as reader:
        lines = reader.query("select raw_output from failures where message like '%white space%'").rows
        texts = [str(raw_output) for (raw_output,) in lines]
    assert len(texts) == 4
    assert all(128 <= len(text) < 4000 and text.isspace() for text in texts)


def test_lines_of_a_batch_file_get_answers_of_their_own_forms(tmp_path: Path) -> None:
    def ask(custom_id: str, **parameters: object) -> str:
        messages = [{"role": "user", "content": "The parcel came 3 days late. Which product, how many days late?"}]
        body = {"model": "any", "messages": messages, **parameters}
        return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body})

    def form(*names: str) -> dict[str, Any]:
        kinds = {"product": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "maximum": 9, "minimum": 0}}
        properties = {name: kinds[name] for name in names}
        schema = {"type": "object", "properties": properties, "required": names, "additionalProperties": False}
        return {"type": "json_schema", "json_schema": {"name": "late", "schema": schema}}

    impossible = {"type": "json_schema", "json_schema": {"schema": {"allOf": [{"type": "null"}, {"type": "string"}]}}}
    lines = [
        ask("text"),
        ask("banned", logit_bias={str(token): -100 for token in range(100)}, logprobs=True, top_logprobs=2),
        ask("product first", response_format=form("product", "days")),
        ask("days first", response_format=form("days", "product"), n=2, temperature=1, seed=1),
        ask("object", response_format={"type": "json_object"}),
        ask("impossible", response_format=impossible),
        ask("no such token", logit_bias={"999999": 1}),
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines), encoding="utf-8")
    job = {
        "name": "lines",
        "input": {"path": "in.jsonl", "format": "openai", "openai_model": "any"},
        "model": {"path": str(MODEL_PATH)},
        "sampling": {"max_tokens": 48},
        "limits": {"max_concurrency": 4, "max_context_tokens": 512, "max_failures": "100%"},
        "output": {"database": "out.duckdb"},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    for arguments in (["run", "job.yaml", "--quiet"], ["export", "job.yaml", "--to", "out.openai.jsonl"]):
        command = [sys.executable, "-m", "bulkinfer", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    with Reader.open(tmp_path / "out.duckdb") as reader:
        rows = reader.query("select document_id, code from open_failures").rows
        failed = {str(name): code for name, code in rows}
    assert failed.pop("impossible") == failed.pop("no such token") == "engine_rejected"
    assert failed.keys() <= {"object", "text", "banned"}, "a small model may never end"
    answered = [json.loads(line) for line in (tmp_path / "out.openai.jsonl").read_text().splitlines()]
    chats = {one["custom_id"]: ChatCompletion.model_validate(one["response"]["body"], strict=True) for one in answered}
    for name, keys, num_answers in (("product first", ["product", "days"], 1), ("days first", ["days", "product"], 2)):
        values = [json.loads(choice.message.content or "") for choice in chats[name].choices]
        assert [list(value) for value in values] == [keys] * num_answers
    if "object" in chats:
        assert isinstance(json.loads(chats["object"].choices[0].message.content or ""), dict)
    if "banned" in chats:
        logprobs = chats["banned"].choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        assert all(1 <= len(token.top_logprobs) <= 3 for token in logprobs.content)
