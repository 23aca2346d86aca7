"""A run as lines of JSON."""

import io
import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from bulkinfer.errors import EngineError, JobError, TooManyFailures
from bulkinfer.events import (
    Cancelled,
    Committed,
    DocumentsFinished,
    Draining,
    EngineGivenUp,
    EngineRestarting,
    EngineStarted,
    EngineStarting,
    Event,
    Finished,
    MetricsServed,
    RunEnded,
    ShardTaken,
    Warned,
)
from bulkinfer.logs import JsonLog
from bulkinfer.records import JsonValue, RunStatus
from tests.metrics_support import PROGRESS, STARTED

SUMMARY: dict[str, JsonValue] = {
    "status": "completed",
    "exit_code": 0,
    "error": None,
    "documents": {"succeeded": 4},
    "engine": {"x": 1},
}


def write(*events: Event, is_quiet: bool = False) -> list[dict[str, Any]]:
    """The lines of these events."""
    stream = io.StringIO()
    with JsonLog("job.yaml", is_quiet=is_quiet, stream=stream) as log:
        for event in events:
            log(event)
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_every_line_says_when_what_and_of_which_run() -> None:
    lines = write(
        Warned("early"),
        STARTED,
        EngineStarting("tiny", 0),
        EngineStarted(1.5, {"secret": "setting"}),
        ShardTaken(1, 10, 2, 7, 1),
        EngineRestarting("the engine died", 3, 2.0, 1),
        EngineGivenUp(1),
        MetricsServed("http://127.0.0.1:1/metrics"),
        Draining(15, 3, 30.0),
        Cancelled(2),
        RunEnded(RunStatus.COMPLETED, SUMMARY),
    )
    assert [(line["level"], line["event"]) for line in lines] == [
        ("warning", "warning"),
        ("info", "run_started"),
        ("info", "engine_starting"),
        ("info", "engine_started"),
        ("info", "shard_taken"),
        ("warning", "engine_died"),
        ("warning", "engine_given_up"),
        ("info", "metrics_served"),
        ("warning", "draining"),
        ("warning", "cancelled"),
        ("info", "run_ended"),
    ]
    for line in lines:
        assert datetime.fromisoformat(line["time"]).utcoffset() == timedelta(0)
        assert line["time"].endswith("Z")
    assert lines[0]["job"] == "job.yaml"
    assert {(line["job"], line["run_id"]) for line in lines[1:]} == {("nightly", str(STARTED.run_id))}
    assert [line.get("shard") for line in lines] == [None] * 4 + [1] * 7
    assert lines[4] | {"num_read": 10, "num_skipped": 2, "num_requests": 7, "num_failures": 1} == lines[4]
    assert lines[-1]["documents"] == {"succeeded": 4}
    assert "secret" not in json.dumps(lines)


def test_progress_has_a_line_now_and_then_with_what_is_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("bulkinfer.logs.time.monotonic", lambda: now_s)
    stream = io.StringIO()
    with JsonLog("job.yaml", stream=stream) as log:
        log(STARTED)
        log(PROGRESS)
        log(DocumentsFinished((Finished(None, 1),)))
        log(Committed(1, 4, 1, 0.1, 100))
        now_s += 4.9
        log(PROGRESS)
        now_s += 0.2
        log(PROGRESS)
        log(PROGRESS)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["run_started", "progress"]
    documents = lines[1]["documents"]
    assert (documents["committed"], documents["succeeded"], documents["queued"]) == (5, 4, 3)
    assert documents["failed_by_code"] == {"truncated": 1}


@pytest.mark.parametrize(
    ("status", "level"),
    [(RunStatus.COMPLETED, "info"), (RunStatus.INTERRUPTED, "warning"), (RunStatus.FAILED, "error")],
)
def test_the_last_line_is_as_grave_as_the_end(status: RunStatus, level: str) -> None:
    [line] = write(RunEnded(status, SUMMARY))
    assert line["level"] == level


def test_a_quiet_log_has_errors_only() -> None:
    lines = write(STARTED, Warned("w"), RunEnded(RunStatus.FAILED, SUMMARY), is_quiet=True)
    assert [line["event"] for line in lines] == ["run_ended"]


def test_an_error_has_a_line_and_is_not_told_a_second_time() -> None:
    stream = io.StringIO()
    with pytest.raises(JobError) as caught, JsonLog("job.yaml", stream=stream):
        raise JobError("job.yaml: name: is missing\nand more")
    assert str(caught.value) == ""
    [line] = [json.loads(text) for text in stream.getvalue().splitlines()]
    assert (line["level"], line["event"], line["code"], line["exit_code"]) == ("error", "error", "job_error", 2)
    assert line["message"] == "job.yaml: name: is missing\nand more"


def test_what_the_end_of_the_run_has_told_has_no_second_line() -> None:
    stream = io.StringIO()
    log = JsonLog("job.yaml", stream=stream)
    log(RunEnded(RunStatus.FAILED, SUMMARY))
    with pytest.raises(TooManyFailures), log:
        raise TooManyFailures("too many")
    assert len(stream.getvalue().splitlines()) == 1


def test_a_bug_has_a_line_without_its_text() -> None:
    stream = io.StringIO()
    with pytest.raises(ZeroDivisionError), JsonLog("job.yaml", stream=stream):
        raise ZeroDivisionError("secret")
    assert json.loads(stream.getvalue()) | {"event": "bug", "message": "ZeroDivisionError"} == json.loads(
        stream.getvalue()
    )


def test_a_line_is_one_line_and_moves_no_terminal() -> None:
    stream = io.StringIO()
    with JsonLog("job.yaml", stream=stream) as log:
        log(Warned("two\nlines \x1b[31m \x9b \ud800"))
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().isprintable() or stream.getvalue().rstrip("\n").isprintable()
    with pytest.raises(EngineError), JsonLog("x", stream=stream):
        raise EngineError("died")
