"""Signals while all documents are in flight: how long a stopping run waits, what it gives up, and what it keeps."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli_support import LIMIT_S, bulkinfer, start, wait_until
from tests.conftest import JobFolder, make_documents
from tests.unit.store_support import select

NUM_DOCUMENTS = 100


@pytest.fixture
def long(folder: JobFolder) -> JobFolder:
    """A job whose documents are all in flight at once: the first answers take a second or two, the last 100 s."""
    folder.write_documents(make_documents(NUM_DOCUMENTS))
    simulated = {"clock": "real", "in_child": True, "seconds_per_output_token": 0.1, "seconds_per_prompt_token": 0}
    folder.spec["engine"]["simulated"] = simulated
    folder.spec["sampling"]["max_tokens"] = 1_000
    folder.write_job(limits={"max_concurrency": NUM_DOCUMENTS, "max_queue_size": NUM_DOCUMENTS})
    return folder


@contextmanager
def running(folder: JobFolder, *options: str) -> Iterator[subprocess.Popen[str]]:
    run = start("run", folder.job_path, "--json", *options)
    try:
        yield run
    finally:
        run.kill()
        run.communicate(timeout=LIMIT_S)


def read_documents(folder: JobFolder) -> dict[str, int]:
    """How the documents of a live run stand, as the run itself tells it; empty while it cannot."""
    found = bulkinfer("status", folder.job_path, "--json").stdout
    documents: dict[str, int] = json.loads(found)["documents"] if '"in_flight"' in found else {}
    return documents


def wait_for_answers(folder: JobFolder) -> None:
    """Until the first are on disk."""
    status = Path(f"{folder.database}.status.json")

    def has_some() -> bool:
        return status.exists() and json.loads(status.read_text()).get("documents", {}).get("succeeded", 0) > 0

    wait_until(has_some, "the first answers")


def wait_for_drain(run: subprocess.Popen[str]) -> None:
    assert run.stderr is not None
    for line in run.stderr:
        if "stopping" in line:
            return
    raise AssertionError("the run ended without a word that it stops")


def check_interrupted(folder: JobFolder, summary: dict[str, Any]) -> int:
    """What finished is on disk, and the rest is told as not finished. Returns the number of answers."""
    documents = summary["documents"]
    assert (summary["status"], summary["exit_code"]) == ("interrupted", 143)
    assert select(folder.database, "select count(*) from results") == [(documents["succeeded"],)]
    assert documents["succeeded"] > 0
    assert documents["not_finished"] > 0
    assert documents["succeeded"] + documents["not_finished"] == NUM_DOCUMENTS
    assert documents["failed"] == 0
    num_answered: int = documents["succeeded"]
    return num_answered


def check_next_run_completes(folder: JobFolder, num_answered: int) -> None:
    folder.spec["engine"]["simulated"] = {"clock": "virtual"}
    documents = folder.run().summary["documents"]
    assert isinstance(documents, dict)
    assert (documents["already_done"], documents["succeeded"]) == (num_answered, NUM_DOCUMENTS - num_answered)
    counted = "select count(*), count(distinct document_hash) from results"
    assert select(folder.database, counted) == [(NUM_DOCUMENTS, NUM_DOCUMENTS)]


def test_what_does_not_finish_within_the_grace_is_given_up(long: JobFolder) -> None:
    with running(long, "--grace", "1") as run:
        wait_for_answers(long)
        run.send_signal(signal.SIGTERM)
        out, err = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 143, err
    assert "may finish for up to 1 s" in err
    check_next_run_completes(long, check_interrupted(long, json.loads(out)))


def test_a_second_signal_commits_what_is_finished_and_gives_up_the_rest(long: JobFolder) -> None:
    with running(long, "--grace", "600") as run:
        wait_for_answers(long)
        engines = psutil.Process(run.pid).children()
        run.send_signal(signal.SIGTERM)
        wait_for_drain(run)
        drained = read_documents(long)
        assert drained["in_flight"] > 0, "the run waits for them"
        more: dict[str, int] = {}
        wait_until(
            lambda: more.update(read_documents(long)) or more["in_flight"] < drained["in_flight"],
            "one more to finish while the run stops",
        )
        run.send_signal(signal.SIGTERM)
        out, err = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 143, err
    num_answered = check_interrupted(long, json.loads(out))
    assert num_answered >= NUM_DOCUMENTS - more["in_flight"], "nothing that had finished was given up"
    assert len(engines) == 1
    wait_until(lambda: not engines[0].is_running(), "the end of the engine")
    check_next_run_completes(long, num_answered)
