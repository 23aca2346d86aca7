"""Databases that an older bulkinfer wrote: no answer in them is lost, and none is asked for again.

`older_requests` holds a job over two OpenAI batch files and its database, as they were before lines could ask for a
form and before a `custom_id` counted across files.
"""

import gzip
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest

from bulkinfer.job import load_job
from bulkinfer.runner import RunOptions, plan_run, run_job
from bulkinfer.store import open_reader
from tests.cli_support import call

OLDER_REQUESTS = Path(__file__).parent / "older_requests"


@pytest.fixture
def job_path(tmp_path: Path) -> Path:
    """Of the job over batch files, in a folder of its own: to the database its files were touched since."""
    for name in ("job.yaml", "first.jsonl", "second.jsonl"):
        shutil.copy(OLDER_REQUESTS / name, tmp_path)
    (tmp_path / "requests.duckdb").write_bytes(gzip.decompress((OLDER_REQUESTS / "requests.duckdb.gz").read_bytes()))
    return tmp_path / "job.yaml"


def export(job_path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The texts of answers, and the codes of those that have none."""
    ended = call("export", str(job_path), "--to", str(job_path.parent / "out.openai.jsonl"))
    assert ended.exit_code == 0, ended.stderr
    names = ("out.openai.jsonl", "out_errors.openai.jsonl")
    lines = [list(map(orjson.loads, (job_path.parent / name).read_bytes().splitlines())) for name in names]
    texts = [(line["custom_id"], line["response"]["body"]["choices"][0]["message"]["content"]) for line in lines[0]]
    codes = [(line["custom_id"], line["error"]["code"]) for line in lines[1]]
    assert (len(dict(texts)), len(dict(codes))) == (len(texts), len(codes)), "no name is there twice"
    return dict(texts), dict(codes)


def stored(job_path: Path) -> dict[str, Any]:
    with open_reader(job_path.parent / "requests.duckdb") as reader:
        return {str(key): text for key, text in reader.query("select document_hash, output from results").rows}


def test_answers_of_an_older_database_are_exported_and_kept(job_path: Path) -> None:
    answered = {"plain", "nulls", "shared", "other"}
    before, texts = stored(job_path), export(job_path)
    assert texts[0].keys() == answered
    assert set(texts[0].values()) < set(before.values())
    assert texts[1] == dict.fromkeys(("developer", "form", "shared"), "pending")
    report = run_job(plan_run(load_job(job_path)), RunOptions(), lambda _: None)
    documents = report.summary["documents"]
    assert isinstance(documents, dict)
    assert (documents["already_done"], documents["succeeded"], documents["failed"]) == (4, 2, 1)
    after = export(job_path)
    assert after[0].keys() == {*answered, "developer", "form"}, "what was refused before, and would be answered now"
    assert after[0].items() > texts[0].items()
    assert after[1] == {"shared": "unreadable_row"}
    assert stored(job_path).items() > before.items()
