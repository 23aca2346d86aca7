"""Whole runs on the simulated engine: every row one outcome, nothing twice, limits that hold."""

import gzip
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from bulkinfer.engines.base import EngineRequest
from bulkinfer.engines.simulated import SimulatedEngine
from bulkinfer.errors import EngineError, ExitCode, InputError, JobError, TooManyFailures
from bulkinfer.events import EngineRestarting, EngineStarting, Progress, RunStarted, Warned
from bulkinfer.records import Completion, Only, Outcome, Rejection
from bulkinfer.runner import RunOptions, RunReport, loop
from bulkinfer.runner.fleet import Fleet
from bulkinfer.runner.window import Returned
from bulkinfer.shards import Shard, prepare_next
from bulkinfer.store import Reader, Store
from tests.conftest import JobFolder, make_documents


def select(folder: JobFolder, sql: str) -> list[tuple[object, ...]]:
    """Ask the job's database."""
    with Reader.open(folder.database) as reader:
        return list(reader.query(sql).rows)


def documents_of(report: RunReport) -> dict[str, Any]:
    """The `documents` part of a summary."""
    documents = report.summary["documents"]
    assert isinstance(documents, dict)
    return documents


def started_engine(folder: JobFolder) -> bool:
    """Whether the last run loaded a model."""
    return any(isinstance(event, EngineStarting) for event in folder.events)


def with_fault(folder: JobFolder, match: str, kind: str, times: int | None) -> dict[str, Any]:
    """The `engine` section with one scripted fault."""
    return {
        "simulated": {**folder.spec["engine"]["simulated"], "faults": [{"match": match, "kind": kind, "times": times}]}
    }


def test_every_document_is_answered_and_a_second_run_does_nothing(folder: JobFolder) -> None:
    folder.write_documents(make_documents(100))
    report = folder.run()
    assert (report.exit_code, report.error, report.summary["status"]) == (ExitCode.OK, None, "completed")
    assert documents_of(report) == {
        "read": 100,
        "distinct": 100,
        "duplicates": 0,
        "already_done": 0,
        "succeeded": 100,
        "failed": 0,
        "failed_by_code": {},
        "failed_rows": 0,
        "not_asked": 0,
        "not_finished": 0,
    }
    assert started_engine(folder)
    before = select(folder, "select count(*), count(distinct document_hash), min(row), max(row) from answers")
    assert before == [(100, 100, 1, 100)]

    again = folder.run()
    assert again.exit_code is ExitCode.OK
    assert (documents_of(again)["already_done"], documents_of(again)["succeeded"]) == (100, 0)
    assert not started_engine(folder)
    for table in ("results", "document_rows", "answers"):
        assert select(folder, f"select count(*) from {table}") == [(100,)]


def test_equal_documents_are_asked_once_and_answered_for_every_row(folder: JobFolder) -> None:
    folder.write_documents([{"id": f"d{number}", "body": f"document {number % 10}"} for number in range(30)])
    report = folder.run()
    assert (documents_of(report)["distinct"], documents_of(report)["duplicates"]) == (10, 20)
    assert select(folder, "select count(*) from results") == [(10,)]
    assert select(folder, "select count(*), count(distinct output), count(distinct document_id) from answers") == [
        (30, 10, 30)
    ]


def test_equal_documents_in_different_shards_are_asked_once(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bulkinfer.runner.parts.MAX_SHARD_DOCUMENTS", 7)
    folder.write_documents([{"id": f"d{number}", "body": f"document {number % 10}"} for number in range(200)])
    report = folder.run()
    assert (documents_of(report)["succeeded"], documents_of(report)["duplicates"]) == (10, 190)
    assert select(folder, "select count(*) from commits where rows > 10") == [(0,)]
    assert select(folder, "select count(*) from results") == [(10,)]


def test_a_changed_prompt_answers_all_again_beside_the_old(folder: JobFolder) -> None:
    folder.write_documents(make_documents(20))
    first = folder.run()
    second = folder.run(prompt={"user": "Say it again: {{ body }}"})
    assert documents_of(second)["succeeded"] == 20
    assert first.summary["task_fingerprint"] != second.summary["task_fingerprint"]
    assert select(folder, "select count(*), count(distinct task_fingerprint) from results") == [(40, 2)]
    assert select(folder, "select count(*), count(distinct task_fingerprint) from answers") == [(20, 1)]
    back = folder.run()
    assert (documents_of(back)["already_done"], documents_of(back)["succeeded"]) == (20, 0)
    assert select(folder, "select distinct task_fingerprint::varchar from answers") == [
        (first.summary["task_fingerprint"],)
    ]


def test_one_edited_document_redoes_one(folder: JobFolder) -> None:
    documents = make_documents(20)
    folder.write_documents(documents)
    folder.run()
    documents[7]["body"] = "edited"
    folder.write_documents(documents)
    report = folder.run()
    assert (documents_of(report)["already_done"], documents_of(report)["succeeded"]) == (19, 1)
    assert select(folder, "select count(*) from answers") == [(20,)]
    assert select(folder, "select count(*) from results") == [(21,)]


def test_an_unused_column_is_not_a_change(folder: JobFolder) -> None:
    folder.write_documents(make_documents(5))
    folder.run()
    folder.write_documents([{**document, "seen": True} for document in make_documents(5)])
    assert documents_of(folder.run())["succeeded"] == 0


def test_a_folder_that_gets_a_file_each_night(folder: JobFolder) -> None:
    (folder.path / "nightly").mkdir()
    folder.write_documents(make_documents(10), "nightly/1.jsonl")
    folder.run(input={"path": "nightly"})
    folder.write_documents([{"id": "new", "body": "new"}, *make_documents(3)], "nightly/2.jsonl")
    report = folder.run(input={"path": "nightly"})
    assert (documents_of(report)["succeeded"], documents_of(report)["already_done"]) == (1, 10)
    assert select(folder, "select source, count(*) from answers group by source order by source") == [
        ("nightly/1.jsonl", 10),
        ("nightly/2.jsonl", 4),
    ]
    (folder.path / "nightly/1.jsonl").unlink()
    folder.run(input={"path": "nightly"})
    assert select(folder, "select source, count(*) from documents group by source") == [("nightly/2.jsonl", 4)]


BAD_LINES = {
    b'{"id": "broken", "body": "no end': "unreadable_row",
    b'["an", "array"]': "unreadable_row",
    b'{"id": "utf8", "body": "\xff"}': "unreadable_row",
    b'{"id": "nul", "body": "\x00"}': "unreadable_row",
    b'{"id": "surrogate", "body": "\\ud800"}': "unreadable_row",
    b'{"id": "null", "body": null}': "missing_field",
    b'{"id": "missing"}': "missing_field",
    b'{"id": "empty", "body": ""}': "empty_prompt",
    b'{"id": "blank", "body": " \\n\\t "}': "empty_prompt",
    b'{"id": "long", "body": "' + b"word " * 20_000 + b'"}': "prompt_too_long",
}


def test_bad_documents_are_one_failure_each_and_change_no_other_answer(folder: JobFolder) -> None:
    good = make_documents(40)
    folder.write_documents(good)
    folder.run()
    undisturbed = select(folder, "select document_id, output from answers order by document_id")

    other = JobFolder(make_folder(folder.path / "other"))
    lines = other.write_documents(good).read_bytes().splitlines()
    for position, line in enumerate(BAD_LINES):
        lines.insert(position * 4, line)
    other.input.write_bytes(b"\n".join(lines) + b"\n")
    report = other.run()
    assert report.exit_code is ExitCode.OK, report.error
    assert documents_of(report)["failed_by_code"] == {
        "empty_prompt": 2,
        "missing_field": 2,
        "prompt_too_long": 1,
        "unreadable_row": 5,
    }
    assert select(other, "select document_id, output from answers order by document_id") == undisturbed
    rows = {line: position * 4 + 1 for position, line in enumerate(BAD_LINES)}
    assert sorted(select(other, "select row, code from failures")) == sorted(
        (rows[line], code) for line, code in BAD_LINES.items()
    )
    counted = "select count(*) from documents d {} join (select document_hash from {}) o using (document_hash)"
    assert select(other, counted.format("", "results")) == [(40,)]
    assert select(other, counted.format("", "failures")) == [(10,)]
    assert select(other, "select count(*) from documents") == [(50,)]


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_numbers_and_nested_fields_are_documents(folder: JobFolder) -> None:
    folder.write_documents([{"id": "n", "body": 42}, {"id": "l", "body": [1, {"a": "b"}]}])
    assert documents_of(folder.run())["succeeded"] == 2


def test_failed_documents_are_only_tried_again_when_asked(folder: JobFolder) -> None:
    folder.write_documents([*make_documents(5), {"id": "bad", "body": "please FAIL"}])
    failing = with_fault(folder, "FAIL", "reject", 1)
    assert documents_of(folder.run(engine=failing))["failed_by_code"] == {"engine_rejected": 1}
    again = folder.run()
    assert (documents_of(again)["succeeded"], documents_of(again)["already_done"]) == (0, 6)
    retried = folder.run(RunOptions(only=Only.FAILED))
    assert (documents_of(retried)["succeeded"], documents_of(retried)["failed"]) == (1, 0)
    assert select(folder, "select count(*) from answers") == [(6,)]
    assert select(folder, "select count(*) from open_failures") == [(0,)]


def test_what_the_engine_fails_on_is_asked_again_in_the_same_run(folder: JobFolder) -> None:
    folder.write_documents([*make_documents(5), {"id": "bad", "body": "please FAIL"}])
    report = folder.run(engine=with_fault(folder, "FAIL", "error", 2))
    assert (report.exit_code, documents_of(report)["succeeded"], documents_of(report)["failed"]) == (ExitCode.OK, 6, 0)
    attempts = "select document_id, attempts from answers where attempts > 1"
    assert select(folder, attempts) == [("bad", 3)]
    assert select(folder, "select count(*) from failures") == [(0,)]


def test_what_the_engine_always_fails_on_is_one_failure_and_the_next_run_asks_again(folder: JobFolder) -> None:
    folder.write_documents([*make_documents(5), {"id": "bad", "body": "please FAIL"}])
    failing = with_fault(folder, "FAIL", "error", None)
    for num_runs in (1, 2):
        report = folder.run(engine=failing)
        assert documents_of(report)["failed_by_code"] == {"engine_error": 1}
        assert documents_of(report)["already_done"] == (0 if num_runs == 1 else 5)
        assert (
            select(folder, "select document_id, code, attempts, retryable from failures")
            == [("bad", "engine_error", 3, True)] * num_runs
        )
    mended = folder.run()
    assert (documents_of(mended)["succeeded"], documents_of(mended)["already_done"]) == (1, 5)
    assert select(folder, "select count(*) from answers") == [(6,)]
    assert select(folder, "select count(*) from open_failures") == [(0,)]


def test_only_failed_counts_what_was_never_asked(folder: JobFolder) -> None:
    """8 of 50 different documents are answered and 2 failed; 5 of the other 40 stand there twice."""
    documents = make_documents(50)
    for document in documents[3:5]:
        document["body"] += "FAIL"
    folder.write_documents([*documents, *documents[40:45]])
    folder.run(RunOptions(limit=10), engine=with_fault(folder, "FAIL", "reject", None))
    report = folder.run(RunOptions(only=Only.FAILED))
    assert report.exit_code is ExitCode.OK, report.error
    assert documents_of(report) == {
        "read": 55,
        "distinct": 50,
        "duplicates": 5,
        "already_done": 8,
        "succeeded": 2,
        "failed": 0,
        "failed_by_code": {},
        "failed_rows": 0,
        "not_asked": 40,
        "not_finished": 0,
    }
    rest = documents_of(folder.run())
    assert (rest["succeeded"], rest["already_done"], rest["not_asked"]) == (40, 10, 0)


def test_only_failed_where_nothing_failed_has_nothing_to_do(folder: JobFolder) -> None:
    """A scheduler may well follow each run by one over its failures."""
    folder.write_documents(make_documents(3))
    folder.run()
    report = folder.run(RunOptions(only=Only.FAILED))
    assert report.exit_code is ExitCode.OK, report.error
    assert (documents_of(report)["succeeded"], documents_of(report)["failed"]) == (0, 0)
    assert not started_engine(folder)


def test_only_failed_of_a_task_that_never_ran_is_refused_and_hides_no_answer(folder: JobFolder) -> None:
    folder.write_documents(make_documents(3))
    folder.run()
    with pytest.raises(JobError, match="nothing has failed with these settings"):
        folder.run(RunOptions(only=Only.FAILED), prompt={"user": "Another: {{ body }}"})
    assert select(folder, "select count(*) from answers") == [(3,)]
    assert select(folder, "select status, exit_code from run_ends") == [("completed", 0)]


def test_truncated_answers_are_failures_with_their_text(folder: JobFolder) -> None:
    folder.write_documents([*make_documents(5), {"id": "cut", "body": "CUT me"}])
    faults = [{"match": "CUT", "kind": "truncate", "times": None}]
    report = folder.run(engine={"simulated": {**folder.spec["engine"]["simulated"], "faults": faults}})
    assert documents_of(report)["failed_by_code"] == {"truncated": 1}
    [(code, raw)] = select(folder, "select code, raw_output from failures")
    assert code == "truncated"
    assert isinstance(raw, str)
    assert raw


def test_limit_asks_so_many_documents_and_the_next_run_goes_on(folder: JobFolder) -> None:
    folder.write_documents(make_documents(50))
    assert documents_of(folder.run(RunOptions(limit=10)))["succeeded"] == 10
    assert select(folder, "select max(row) from answers") == [(10,)]
    assert documents_of(folder.run(RunOptions(limit=10)))["succeeded"] == 10
    assert documents_of(folder.run())["succeeded"] == 30
    assert select(folder, "select count(*), count(distinct row) from answers") == [(50, 50)]


@pytest.mark.parametrize(
    ("limit", "num_bad", "expected"),
    [
        (0, 0, ExitCode.OK),
        (0, 1, ExitCode.TOO_MANY_FAILURES),
        (3, 3, ExitCode.OK),
        (3, 4, ExitCode.TOO_MANY_FAILURES),
        ("10%", 10, ExitCode.OK),
        ("10%", 11, ExitCode.TOO_MANY_FAILURES),
        ("100%", 100, ExitCode.TOO_MANY_FAILURES),
    ],
)
def test_max_failures_decides_the_exit_code_now_and_later(
    folder: JobFolder, limit: int | str, num_bad: int, expected: ExitCode
) -> None:
    lines = folder.write_documents(make_documents(100)).read_bytes().splitlines()
    folder.input.write_bytes(b"\n".join([*lines[num_bad:], *(b"broken %d" % number for number in range(num_bad))]))
    report = folder.run(limits={"max_failures": limit})
    assert report.exit_code is expected, report.error
    assert documents_of(report)["succeeded"] == (100 - num_bad if expected is ExitCode.OK or "%" in str(limit) else 0)
    assert folder.run(limits={"max_failures": limit}).exit_code is expected


def test_equal_rows_that_fail_count_as_often_as_they_stand_there(folder: JobFolder) -> None:
    folder.write_documents([*make_documents(40), *({"id": f"n{number}", "body": None} for number in range(60))])
    report = folder.run()
    assert isinstance(report.error, TooManyFailures)
    assert "60 of 100" in str(report.error)
    assert documents_of(report)["failed"] == 1


def test_unreadable_rows_of_a_shard_do_not_end_the_run_before_the_first_answer(folder: JobFolder) -> None:
    lines = folder.write_documents(make_documents(9_700)).read_bytes().splitlines()
    folder.input.write_bytes(b"\n".join([*(b"broken %d" % number for number in range(300)), *lines]))
    report = folder.run(limits={"max_failures": "5%"})
    assert report.exit_code is ExitCode.OK, report.error


@pytest.mark.parametrize(("num_long", "expected"), [(300, ExitCode.OK), (600, ExitCode.TOO_MANY_FAILURES)])
def test_documents_that_are_too_long_come_first_and_are_no_sample_of_the_rest(
    folder: JobFolder, num_long: int, expected: ExitCode
) -> None:
    long = [{"id": f"l{number}", "body": f"{number} " + "word " * 100} for number in range(num_long)]
    folder.write_documents([*make_documents(10_000 - num_long), *long])
    report = folder.run(limits={"max_failures": "5%", "max_context_tokens": 100})
    assert report.exit_code is expected, report.error
    if expected is ExitCode.OK:
        assert documents_of(report)["failed_by_code"] == {"prompt_too_long": num_long}
        assert documents_of(report)["succeeded"] == 10_000 - num_long


def test_a_run_in_which_the_engine_fails_all_stops_early(folder: JobFolder) -> None:
    folder.write_documents(make_documents(5_000))
    simulated = {
        **folder.spec["engine"]["simulated"],
        "faults": [{"match": "document", "kind": "error", "times": None}],
    }
    report = folder.run(limits={"max_failures": "5%"}, engine={"simulated": simulated})
    assert isinstance(report.error, TooManyFailures)
    assert 200 <= documents_of(report)["failed"] < 400


def test_a_run_whose_longest_documents_fail_goes_on_to_the_shorter_ones(folder: JobFolder) -> None:
    """The longest go first: by themselves they say nothing of the share that fails."""
    documents = make_documents(2_000)
    for document in documents[::8]:
        document["body"] += " CUT" * 10
    folder.write_documents(documents)
    faults = [{"match": "CUT", "kind": "truncate", "times": None}]
    simulated = {**folder.spec["engine"]["simulated"], "faults": faults}
    report = folder.run(limits={"max_failures": "20%"}, engine={"simulated": simulated})
    assert report.exit_code is ExitCode.OK, report.error
    assert (documents_of(report)["succeeded"], documents_of(report)["failed"]) == (1_750, 250)


def test_a_run_that_stopped_early_is_resumed_under_a_higher_limit_and_asks_nothing_twice(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[bytes] = Counter()
    add = SimulatedEngine.add

    def count_and_add(engine: SimulatedEngine, request: EngineRequest) -> Rejection | None:
        asked[request.document_hash] += 1
        return add(engine, request)

    monkeypatch.setattr(SimulatedEngine, "add", count_and_add)
    documents = make_documents(2_000)
    for document in documents[::10]:
        document["body"] += " BAD"
    folder.write_documents(documents)
    simulated = {"clock": "virtual", "faults": [{"match": "BAD", "kind": "reject", "times": None}]}
    stopped = folder.run(limits={"max_failures": 20}, engine={"simulated": simulated})
    assert (type(stopped.error), stopped.exit_code) == (TooManyFailures, ExitCode.TOO_MANY_FAILURES)
    before = documents_of(stopped)
    assert before["not_finished"] > 1_000
    assert 20 < before["failed"] < 40
    assert before["succeeded"] > 0
    assert sum(asked.values()) == before["succeeded"] + before["failed"], "what was in flight has finished"
    assert select(folder, "select status, exit_code from run_ends") == [("failed", 5)]

    resumed = folder.run(limits={"max_failures": 200}, engine={"simulated": simulated})
    assert resumed.exit_code is ExitCode.OK, resumed.error
    after = documents_of(resumed)
    assert after["already_done"] == before["succeeded"] + before["failed"]
    assert (before["succeeded"] + after["succeeded"], before["failed"] + after["failed"]) == (1_800, 200)
    assert (len(asked), set(asked.values())) == (2_000, {1})
    assert select(folder, "select count(*), count(distinct document_hash) from results") == [(1_800, 1_800)]


def test_max_concurrency_and_max_queue_size_are_never_exceeded(folder: JobFolder) -> None:
    folder.write_documents(make_documents(300))
    simulated = {"clock": "virtual", "seconds_per_output_token": 0.01, "seconds_per_prompt_token": 0}
    report = folder.run(
        limits={"max_concurrency": 3, "max_queue_size": 5}, engine={"kind": "simulated", "simulated": simulated}
    )
    engine = report.summary["engine"]
    assert isinstance(engine, dict)
    assert (engine["peak_active"], engine["peak_queue_size"]) == (3, 5)
    progress = [event for event in folder.events if isinstance(event, Progress)]
    assert max(event.num_queued for event in progress) <= 5
    assert max(event.num_in_flight for event in progress) <= 6


def test_very_long_documents_do_not_fill_the_queue(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "MAX_QUEUE_CHARS", 1_000)
    folder.write_documents([{"id": f"{number}", "body": f"{number:03}" * 100} for number in range(40)])
    simulated = {"clock": "virtual", "seconds_per_output_token": 0.01, "seconds_per_prompt_token": 0}
    report = folder.run(
        limits={"max_concurrency": 1, "max_queue_size": 30}, engine={"kind": "simulated", "simulated": simulated}
    )
    assert report.exit_code is ExitCode.OK
    engine = report.summary["engine"]
    assert isinstance(engine, dict)
    assert engine["peak_queue_size"] == 4, "of 300 characters each: the fourth reaches the bound"


def test_documents_beyond_max_context_tokens_are_refused_by_themselves(folder: JobFolder) -> None:
    folder.write_documents([{"id": "short", "body": "word"}, {"id": "long", "body": "word " * 200}])
    report = folder.run(limits={"max_context_tokens": 64})
    assert documents_of(report)["failed_by_code"] == {"prompt_too_long": 1}
    [(message,)] = select(folder, "select message from failures")
    assert "64" in str(message)
    assert "max_context_tokens" in str(message)


def test_an_engine_that_dies_is_started_again_and_nothing_is_lost(folder: JobFolder) -> None:
    folder.write_documents([*make_documents(30), {"id": "killer", "body": "DIE once"}])
    faults = [{"match": "DIE", "kind": "die", "times": 1}]
    report = folder.run(engine={"simulated": {**folder.spec["engine"]["simulated"], "faults": faults}})
    assert documents_of(report)["succeeded"] == 31
    assert [event.num_in_flight > 0 for event in folder.events if isinstance(event, EngineRestarting)] == [True]
    assert select(folder, "select max(attempts) from results") == [(2,)]


def test_an_engine_that_keeps_dying_ends_the_run_with_what_it_finished(folder: JobFolder) -> None:
    folder.write_documents([*make_documents(30), {"id": "killer", "body": "DIE " * 10}])
    simulated = {**folder.spec["engine"]["simulated"], "faults": [{"match": "DIE", "kind": "die", "times": None}]}
    report = folder.run(engine={"simulated": simulated, "max_restarts": 0})
    assert isinstance(report.error, EngineError)
    assert report.exit_code is ExitCode.ENGINE
    assert select(folder, "select count(*) from failures") == [(0,)]
    assert select(folder, "select status, exit_code from run_ends") == [("failed", 3)]
    folder.run()
    assert select(folder, "select count(*), count(distinct document_hash) from results") == [(31, 31)]


@pytest.mark.parametrize("position", [0, 100, 199])
def test_a_document_that_ends_the_engine_each_time_is_found_and_the_others_are_answered(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    monkeypatch.setattr("bulkinfer.runner.window.restart_wait_s", lambda attempt: 0.01)
    documents = make_documents(200)
    documents[position]["body"] += " KILLER"
    folder.write_documents(documents)
    failing = with_fault(folder, "KILLER", "die", None)
    report = folder.run(limits={"max_concurrency": 8, "max_failures": 1}, engine=failing)
    assert report.exit_code is ExitCode.OK, report.error
    assert (documents_of(report)["succeeded"], documents_of(report)["failed_by_code"]) == (199, {"engine_killer": 1})
    [(document_id, code, attempts, retryable)] = select(
        folder, "select document_id, code, attempts, retryable from failures"
    )
    assert (document_id, code, retryable) == (f"d{position}", "engine_killer", False)
    engine = report.summary["engine"]
    assert isinstance(engine, dict)
    assert isinstance(attempts, int)
    assert engine["restarts"] == attempts <= 7, "16 in flight: all, all again, and a halving each"
    assert select(folder, "select count(*), count(distinct document_hash) from results") == [(199, 199)]

    again = folder.run(limits={"max_concurrency": 8, "max_failures": 1}, engine=failing)
    assert (again.exit_code, documents_of(again)["already_done"]) == (ExitCode.OK, 200)
    assert not started_engine(folder), "it is not asked again"


def test_the_counts_of_a_run_whose_engine_died_are_those_on_disk(folder: JobFolder) -> None:
    documents = make_documents(300)
    documents[17]["body"] = documents[17]["body"][:-4] + "DIE"  # of middle length: others come before and behind
    lines = folder.write_documents([*documents, *documents[:20]]).read_bytes().splitlines()
    folder.input.write_bytes(b"\n".join([b"broken", *lines, b"also broken"]))
    report = folder.run(engine=with_fault(folder, "DIE", "die", None) | {"max_restarts": 0})
    assert (type(report.error), report.exit_code) == (EngineError, ExitCode.ENGINE)
    documents_told = documents_of(report)
    [(num_results, num_failures)] = select(
        folder, "select (select count(*) from results), (select count(*) from failures)"
    )
    assert isinstance(num_results, int)
    assert 50 < num_results < 299
    assert num_failures == 2
    assert documents_told == {
        "read": 322,
        "distinct": 302,
        "duplicates": 20,
        "already_done": 0,
        "succeeded": num_results,
        "failed": 2,
        "failed_by_code": {"unreadable_row": 2},
        "failed_rows": 2,
        "not_asked": 0,
        "not_finished": 300 - num_results,
    }
    assert select(folder, "select sum(rows), sum(failed) from commits") == [(num_results, 2)]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf\n"])
def test_an_input_without_rows_is_an_error(folder: JobFolder, content: bytes) -> None:
    folder.input.write_bytes(content)
    report = folder.run(input={"id": None})
    assert isinstance(report.error, InputError)
    assert "in.jsonl" in str(report.error)


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"prompt": {"user": "{{ bdy }}"}}, ["bdy", "body"]),
        ({"input": {"id": "idd"}}, ["idd", "id"]),
        ({"prompt": {"user": "{{ body "}}, ["prompt.user"]),
        ({"input": {"path": "missing.jsonl"}}, ["missing.jsonl"]),
        ({"model": {"path": "./nowhere"}}, ["nowhere"]),
    ],
)
def test_what_can_be_refused_beforehand_is(
    folder: JobFolder, sections: dict[str, Any], expected: Sequence[str]
) -> None:
    folder.write_documents(make_documents(3))
    with pytest.raises((JobError, InputError)) as caught:
        folder.run(**sections)
    for part in expected:
        assert part in str(caught.value)
    assert not folder.database.exists()


def test_a_field_with_a_default_may_be_absent(folder: JobFolder) -> None:
    folder.write_documents(make_documents(3))
    report = folder.run(prompt={"user": "{{ tone | default('neutral') }}: {{ body }}{% if extra %}!{% endif %}"})
    assert documents_of(report)["succeeded"] == 3


def test_a_damaged_input_is_answered_as_far_as_it_goes(folder: JobFolder) -> None:
    path = folder.write_documents(make_documents(500))
    whole = gzip.compress(path.read_bytes(), mtime=0)
    (folder.path / "in.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    report = folder.run(input={"path": "in.jsonl.gz"})
    assert isinstance(report.error, InputError)
    assert documents_of(report)["succeeded"] > 100
    assert report.exit_code is ExitCode.USAGE


def test_all_documents_failing_is_never_a_success(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": ""}, {"id": "b", "body": " "}])
    report = folder.run(limits={"max_failures": "100%"})
    assert isinstance(report.error, TooManyFailures)
    assert not started_engine(folder)


def test_shards_are_ordered_longest_first(folder: JobFolder) -> None:
    folder.write_documents(make_documents(60))
    folder.run(limits={"max_concurrency": 1}, engine={"simulated": {"clock": "virtual", "output_tokens": 4}})
    in_order = "select prompt_tokens, lag(prompt_tokens) over (order by rowid) as before from results"
    assert select(folder, f"select count(*) from ({in_order}) where prompt_tokens > before") == [(0,)]
    assert select(folder, "select count(distinct prompt_tokens) > 10 from results") == [(True,)]


def test_a_run_that_can_have_no_socket_says_so_and_goes_on(folder: JobFolder) -> None:
    folder.write_documents(make_documents(5))
    (folder.path / "out.duckdb.sock").mkdir()
    assert folder.run().exit_code is ExitCode.OK
    [warning] = [event.message for event in folder.events if isinstance(event, Warned)]
    assert "out.duckdb.sock: no socket can be made" in warning
    assert "work after the run" in warning
    kinds = [type(event) for event in folder.events]
    assert kinds.index(RunStarted) < kinds.index(Warned), "so that a log line of it names the run"


def test_shards_join_without_a_dip(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    shards: list[Future[Shard | None]] = []

    def prepare(iterator: Iterator[Shard]) -> Future[Shard | None]:
        shards.append(prepare_next(iterator))
        return shards[-1]

    class Patient(SimulatedEngine):
        """Takes no step before the next shard is there: no model is quicker than the planner."""

        def step(self) -> list[Completion | Rejection]:
            shards[-1].result(timeout=30)
            return super().step()

    monkeypatch.setattr("bulkinfer.runner.parts.MAX_SHARD_DOCUMENTS", 10)
    monkeypatch.setattr("bulkinfer.runner.loop.prepare_next", prepare)
    monkeypatch.setattr("bulkinfer.engines.SimulatedEngine", Patient)
    folder.write_documents(make_documents(400))
    report = folder.run(engine={"simulated": {"clock": "virtual", "seconds_per_output_token": 0.001}})
    assert documents_of(report)["succeeded"] == 400
    assert len(shards) > 40
    engine = report.summary["engine"]
    assert isinstance(engine, dict)
    assert engine["full_step_share"] == 1.0
    assert 0 < engine["full_steps"] < engine["steps"]  # the tail
    assert engine["idle_s"] == 0.0


def test_the_engine_is_fed_before_the_store_is_waited_for(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    fleets: list[Fleet] = []
    in_flight: list[int] = []
    """Requests that the engine has whenever the store may make the loop wait."""

    class Watched(Fleet):
        def feed(self, *, may_grow: bool, num_behind: int = 0) -> None:
            fleets[:] = [self]
            super().feed(may_grow=may_grow, num_behind=num_behind)

    class Behind(Store):
        def add(self, outcomes: Sequence[Outcome]) -> None:
            in_flight.extend(fleets[0].num_in_flight for _ in outcomes)
            super().add(outcomes)

    monkeypatch.setattr("bulkinfer.runner.loop.Fleet", Watched)
    monkeypatch.setattr("bulkinfer.runner.parts.Store", Behind)
    folder.write_documents(make_documents(200))
    report = folder.run(engine={"simulated": {"clock": "virtual", "seconds_per_output_token": 0.001}})
    assert documents_of(report)["succeeded"] == len(in_flight) == 200
    assert set(in_flight[:-8]) == {8}  # the whole window: 4 slots, twice


def test_a_run_that_has_lost_an_outcome_never_says_that_it_is_complete(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Losing(Fleet):
        def poll(self, timeout_s: float) -> list[Returned]:
            return [one for one in super().poll(timeout_s) if one.flight.request.origin.document_id != "d3"]

    folder.write_documents(make_documents(20))
    with monkeypatch.context() as patch:
        patch.setattr("bulkinfer.runner.loop.Fleet", Losing)
        with pytest.raises(AssertionError, match="1 documents have no outcome"):
            folder.run()
    assert select(folder, "select status from run_ends") == []
    report = folder.run()
    assert (report.exit_code, documents_of(report)["succeeded"]) == (ExitCode.OK, 1)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_short_queue_does_not_keep_the_engine_from_having_a_full_window(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch, replicas: int
) -> None:
    in_flight: list[int] = []
    """Requests that the engines have whenever the loop begins to wait for them."""

    class Watched(Fleet):
        def poll(self, timeout_s: float) -> list[Returned]:
            in_flight.append(self.num_in_flight)
            return super().poll(timeout_s)

    monkeypatch.setattr("bulkinfer.runner.loop.Fleet", Watched)
    folder.write_documents(make_documents(300))
    simulated = {"clock": "virtual", "seconds_per_output_token": 0.001}
    report = folder.run(
        engine={"replicas": replicas, "simulated": simulated}, limits={"max_concurrency": 32, "max_queue_size": 5}
    )
    assert documents_of(report)["succeeded"] == 300
    first = next(count for count in in_flight if count)
    assert first == max(in_flight) == 64 * replicas
