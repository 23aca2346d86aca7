"""`bulkinfer run` as a process on the real engine: all have an outcome, nothing is done twice, bad lines do no harm."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bulkinfer.store import Reader
from tests.conftest import JobFolder
from tests.engine_support import MODEL_PATH, ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

TICKETS = (ROOT / "sample_data" / "tickets.jsonl").read_bytes().splitlines()[:10]
BROKEN = (ROOT / "sample_data" / "broken.jsonl").read_bytes().split(b"\n")[:29]
NUM_BROKEN_ASKED = 18
"""Of the lines in BROKEN: the odd ones are good, and so are the number, the object and the CRLF."""
BAD = {
    2: "unreadable_row",
    4: "unreadable_row",
    8: "unreadable_row",
    10: "unreadable_row",
    12: "unreadable_row",
    14: "missing_field",
    16: "missing_field",
    22: "empty_prompt",
    24: "prompt_too_long",
    28: "unreadable_row",
}
"""By line of BROKEN, from 1."""

PROMPT_LINES = ("<|im_start|>", "You are a helpful AI assistant named SmolLM")
"""What the model's chat template puts into each prompt."""

# An answer that is cut keeps its text in the failure: it is compared too.
TEXTS = """
    select document_id, 'answer' as kind, output from answers where document_id like 'T-%'
    union all select document_id, code, raw_output from failures where document_id like 'T-%'
    order by document_id
"""


@dataclass(frozen=True)
class Done:
    """One run and the folder that it ran in."""

    folder: JobFolder
    summary: dict[str, Any]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Ten good tickets."""
    folder = make_job(tmp_path_factory.mktemp("alone"), TICKETS)
    return Done(folder, run(folder))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """The same tickets behind the broken lines, one every third line."""
    lines = list(BROKEN)
    for number, ticket in enumerate(TICKETS):
        lines.insert(number * 3, ticket)
    folder = make_job(tmp_path_factory.mktemp("mixed"), lines)
    return Done(folder, run(folder))


def make_job(path: Path, lines: list[bytes]) -> JobFolder:
    folder = JobFolder(path)
    folder.input.write_bytes(b"\n".join(lines) + b"\n")
    folder.write_job(
        input={"id": "ticket_id"},
        model={"path": str(MODEL_PATH)},
        # The model writes longer answers than that: most are over at the first comma, some are cut.
        sampling={"temperature": 0, "max_tokens": 16, "stop": [","]},
        limits={"max_concurrency": 1, "max_context_tokens": 2048, "max_failures": "90%"},
        engine={"kind": "vllm", "vllm": {"kv_cache_memory_bytes": 256 << 20}},
    )
    return folder


def run(folder: JobFolder) -> dict[str, Any]:
    """Run the job to its end as a process; return its summary."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "BULKINFER_"))}
    command = [sys.executable, "-m", "bulkinfer", "run", str(folder.job_path), "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=140, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def select(folder: JobFolder, sql: str) -> list[tuple[object, ...]]:
    with Reader.open(folder.database) as reader:
        return list(reader.query(sql).rows)


def test_every_ticket_has_an_outcome(alone: Done) -> None:
    documents = alone.summary["documents"]
    assert (documents["read"], documents["succeeded"] + documents["failed"], documents["not_finished"]) == (10, 10, 0)
    assert set(documents["failed_by_code"]) <= {"truncated"}
    texts = select(alone.folder, TEXTS)
    assert [document_id for document_id, _, _ in texts] == [f"T-{number:05d}" for number in range(1, 11)]
    assert all(isinstance(text, str) and text.strip() for _, _, text in texts)
    assert {kind for _, kind, _ in texts} == {"answer", "truncated"}
    assert alone.summary["seconds"]["engine_start"] > 1


def test_a_second_run_loads_no_model_and_adds_no_row(alone: Done) -> None:
    count = "select (select count(*) from results), (select count(*) from failures), (select count(*) from documents)"
    before = select(alone.folder, count)
    summary = run(alone.folder)
    assert summary["seconds"]["engine_start"] == 0
    assert summary["engine"]["is_used"] is False
    assert (summary["documents"]["already_done"], summary["documents"]["not_finished"]) == (10, 0)
    assert select(alone.folder, count) == before
    assert select(alone.folder, "select count(*) from runs") == [(2,)]


def test_bad_lines_are_one_failure_each_and_change_no_other_answer(alone: Done, mixed: Done) -> None:
    assert select(mixed.folder, TEXTS) == select(alone.folder, TEXTS)
    lines = mixed.folder.input.read_bytes().split(b"\n")
    expected = sorted((lines.index(BROKEN[number - 1]) + 1, code) for number, code in BAD.items())
    assert select(mixed.folder, "select row, code from failures where code <> 'truncated' order by row") == expected
    documents = mixed.summary["documents"]
    assert documents["read"] == 10 + NUM_BROKEN_ASKED + len(BAD)
    assert documents["succeeded"] + documents["failed_by_code"].get("truncated", 0) == 10 + NUM_BROKEN_ASKED
    assert mixed.summary["engine"]["restarts"] == 0


def test_the_engines_log_is_the_owners_and_holds_no_text_of_the_documents_or_answers(alone: Done) -> None:
    log_path = Path(f"{alone.folder.database}.engine.log")
    assert log_path.stat().st_mode & 0o777 == 0o600
    log = log_path.read_text(errors="replace")
    assert "vllm" in log.lower(), "what the engine says goes there"
    tickets = [json.loads(line) for line in TICKETS]
    texts = [ticket[field] for ticket in tickets for field in ("subject", "body")]
    texts += [str(text) for _, _, text in select(alone.folder, TEXTS)]
    lines = [line.strip() for text in texts for line in text.splitlines() if len(line.strip()) >= 20]
    assert len(lines) > 2 * len(tickets), "subjects, bodies and answers are among them"
    for prompt in (*PROMPT_LINES, *lines):
        for form in (prompt, json.dumps(prompt)[1:-1], repr(prompt)[1:-1]):
            assert form not in log
