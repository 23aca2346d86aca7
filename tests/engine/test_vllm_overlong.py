"""What is too long is cut to the token by vLLM's own tokenizer, and a split document comes to one answer."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from bulkinfer.engines.child import ChildEngine
from bulkinfer.engines.tokenizer import HubTokenizer
from bulkinfer.errors import ExitCode
from bulkinfer.job import load_job
from bulkinfer.records import Completion, Message, Origin, Overlong, Rejection, Request, Span
from bulkinfer.runner import RunOptions, RunReport, plan_run, run_job
from tests.engine_support import MODEL_PATH, ROOT, collect_outcomes, start_and_wait, vllm_spec
from tests.unit.store_support import select

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

CONTEXT, MAX_TOKENS = 256, 2
SPEC = replace(
    vllm_spec(max_concurrency=4, max_context_tokens=CONTEXT, max_tokens=MAX_TOKENS), overlong=Overlong.TRUNCATE_MIDDLE
)
BEFORE, BEHIND = "Text:\n", "\nWhat is it about?"
THREADS = [json.loads(line) for line in (ROOT / "sample_data" / "threads.jsonl").read_text("utf-8").splitlines()]
TEXTS = {
    "english": THREADS[-1]["text"],
    "chinese": "漢字の文章はとても長い。" * 400,
    "emoji": "👩‍👩‍👧 café 👍🏽 ½ " * 300,
    "one word": "a" * 20_000,
    "nothing but space": " \n" * 5_000,
    "beyond all counting by size": "word " * 200_000,
}


@pytest.fixture(scope="module")
def engine() -> Iterator[ChildEngine]:
    engine = ChildEngine(SPEC, start_timeout_s=200, silence_timeout_s=60)
    start_and_wait(engine)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def tokenizer() -> HubTokenizer:
    return HubTokenizer(SPEC)


def ask(name: str, text: str) -> Request:
    messages = (Message("system", "You are brief."), Message("user", BEFORE + text + BEHIND))
    span = Span(1, len(BEFORE), len(BEFORE) + len(text))
    return Request(name.encode().ljust(16)[:16], Origin("a", 1, name), messages, len(text), spans=(span,))


def test_a_long_document_is_split_and_joined(tmp_path: Path) -> None:
    spec = yaml.safe_load((ROOT / "jobs" / "threads.yaml").read_text())
    short = min(THREADS, key=lambda thread: len(thread["text"]))
    documents = [short, {**short, "thread_id": "again", "text": short["text"] + " And that is all."}]
    (tmp_path / "in.jsonl").write_bytes(b"".join(orjson.dumps(document) + b"\n" for document in documents))
    spec["input"]["path"], spec["model"]["path"] = "in.jsonl", str(MODEL_PATH)
    spec["output"]["database"] = "out.duckdb"
    spec["limits"] |= {"max_context_tokens": 320, "overlap_tokens": 16}
    spec["sampling"]["stop"] = [" "]  # a word is enough: the demo model goes on until it is cut
    room = 320 - spec["sampling"]["max_tokens"]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(spec))

    def run() -> RunReport:
        return run_job(plan_run(load_job(tmp_path / "job.yaml")), RunOptions(), lambda _: None)

    report = run()
    assert (report.exit_code, report.error) == (ExitCode.OK, None)
    rows = select(tmp_path / "out.duckdb", "select output, details::varchar, prompt_tokens from answers")
    assert len(rows) == 2
    for output, details, prompt_tokens in rows:
        told = json.loads(str(details))["overlong"]
        assert told["tokens_before"] > room >= told["tokens_after"]
        assert told["parts"] >= 2
        assert prompt_tokens > told["tokens_before"], "all parts, what overlaps, and what joins them"
        assert output
    parts: Any = report.summary["parts"]
    assert parts["reused"] >= 1, "both begin with the same part"
    kept = select(tmp_path / "out.duckdb", f"select count(*), max(prompt_tokens) <= {room} from parts")
    assert kept == [(parts["answered"], True)]
    engine: Any = run().summary["engine"]
    assert not engine["is_used"]


def test_what_is_cut_fits_to_the_token(engine: ChildEngine, tokenizer: HubTokenizer) -> None:
    requests = [ask(name, text) for name, text in TEXTS.items()]
    engine.submit(requests)
    by_hash = {outcome.document_hash: outcome for outcome in collect_outcomes(engine, len(requests), limit_s=200)}
    for request in requests:
        completion = by_hash[request.document_hash]
        assert isinstance(completion, Completion), completion
        assert completion.details is not None
        told: Any = completion.details["overlong"]
        assert told["tokens_after"] == completion.prompt_tokens
        # A family is 13 tokens or so, and is not cut in two.
        least = CONTEXT - MAX_TOKENS - (20 if request.origin.document_id == "emoji" else 3)
        assert least <= completion.prompt_tokens <= CONTEXT - MAX_TOKENS, request.origin.document_id
        (whole,) = tokenizer.count([request.messages])
        assert told["tokens_before"] == whole


def test_what_fits_is_not_cut_and_what_cannot_be_is_refused(engine: ChildEngine) -> None:
    short = ask("short", "A short text.")
    long_job = replace(
        ask("long", "x"), messages=(Message("user", "Be brief. " * 400 + "x"),), spans=(Span(0, 4_000, 4_001),)
    )
    engine.submit([short, long_job])
    by_hash = {outcome.document_hash: outcome for outcome in collect_outcomes(engine, 2, limit_s=200)}
    completion, rejection = by_hash[short.document_hash], by_hash[long_job.document_hash]
    assert isinstance(completion, Completion)
    assert completion.details is None
    assert isinstance(rejection, Rejection)
    assert "the job's own text alone has" in rejection.message
