"""`run --only`: documents that failed are asked again, in their own task where a change cannot alter an answer."""

from collections.abc import Sequence
from typing import Any

import pytest

from bulkinfer.errors import ExitCode, JobError, TooManyFailures
from bulkinfer.events import Warned
from bulkinfer.job import load_job
from bulkinfer.records import FailureCode, Only
from bulkinfer.runner import RunOptions, RunReport, plan_run, run_job
from bulkinfer.store import Reader
from tests.conftest import JobFolder, make_documents

CUT = [{"id": f"cut{number}", "body": f"CUT {number}"} for number in range(4)]


def with_faults(folder: JobFolder, *faults: tuple[str, str]) -> dict[str, Any]:
    """The section `engine` with faults that always happen."""
    told = [{"match": match, "kind": kind, "times": None} for match, kind in faults]
    return {"simulated": {**folder.spec["engine"]["simulated"], "faults": told}}


def run(folder: JobFolder, only: Only, *overrides: str, limit: int | None = None) -> RunReport:
    """Run the job file as it stands, with `--only` and `--set`."""
    folder.events = []
    plan = plan_run(load_job(folder.job_path, overrides), only)
    return run_job(plan, RunOptions(only=only, limit=limit), folder.events.append)


def counts_of(report: RunReport) -> tuple[object, object]:
    """Succeeded and failed."""
    documents = report.summary["documents"]
    assert isinstance(documents, dict)
    return documents["succeeded"], documents["failed"]


def select(folder: JobFolder, sql: str) -> list[tuple[object, ...]]:
    """Ask the job's database."""
    with Reader.open(folder.database) as reader:
        return list(reader.query(sql).rows)


def warnings_of(folder: JobFolder) -> Sequence[str]:
    """What the last run warned of."""
    return [event.message for event in folder.events if isinstance(event, Warned)]


@pytest.fixture
def cut(folder: JobFolder) -> JobFolder:
    """A job that ran: 10 answered, 4 cut, 1 refused. The engine cuts nothing any more."""
    folder.write_documents([*make_documents(10), *CUT, {"id": "no", "body": "REFUSE"}])
    folder.run(engine=with_faults(folder, ("CUT", "truncate"), ("REFUSE", "reject")))
    folder.write_job(engine=with_faults(folder, ("REFUSE", "reject")))
    return folder


def test_more_tokens_go_into_the_task_that_failed(cut: JobFolder) -> None:
    before = select(cut, "select * from results order by all")
    report = run(cut, Only.TRUNCATED, "sampling.max_tokens=32", "limits.max_concurrency=2", "output.stall_timeout_s=60")
    assert (report.exit_code, counts_of(report)) == (ExitCode.OK, (4, 0))
    assert report.summary["selection"] == {
        "only": "truncated",
        "changed": ["sampling.max_tokens", "limits.max_concurrency", "output.stall_timeout_s"],
        "failed_task": report.summary["task_fingerprint"],
        "is_new_task": False,
    }
    assert warnings_of(cut) == []
    assert select(cut, "select count(distinct task_fingerprint) from results") == [(1,)]
    assert set(before) < set(select(cut, "select * from results order by all"))
    assert select(cut, "select count(*) from answers") == [(14,)]
    assert select(cut, "select document_id, code from open_failures") == [("no", "engine_rejected")]
    assert select(cut, "select code, count(*) from failures group by code order by code") == [
        ("engine_rejected", 1),
        ("truncated", 4),
    ]
    again = cut.run_as_written()
    assert (again.exit_code, counts_of(again)) == (ExitCode.OK, (0, 0))
    assert again.summary["task_fingerprint"] == report.summary["task_fingerprint"]


def test_fewer_tokens_are_a_new_task_beside_the_old(cut: JobFolder) -> None:
    report = run(cut, Only.TRUNCATED, "sampling.max_tokens=8")
    assert (report.exit_code, counts_of(report)) == (ExitCode.OK, (4, 0))
    selection = report.summary["selection"]
    assert isinstance(selection, dict)
    assert selection["is_new_task"] is True
    assert selection["failed_task"] != report.summary["task_fingerprint"]
    [warning] = warnings_of(cut)
    assert "sampling.max_tokens" in warning
    assert "new task" in warning
    assert select(cut, "select document_id from answers order by row") == [(document["id"],) for document in CUT]
    assert select(cut, "select count(*) from results") == [(14,)]
    again = run(cut, Only.TRUNCATED, "sampling.max_tokens=8")
    assert counts_of(again) == (0, 0)
    old = cut.run_as_written()
    assert counts_of(old) == (0, 0)
    assert select(cut, "select count(*) from answers") == [(10,)]
    assert select(cut, "select count(*) from open_failures") == [(5,)]


def test_cut_answers_that_a_change_accepts_never_stand_in_the_task_that_accepts_none(cut: JobFolder) -> None:
    cut.write_job(engine=with_faults(cut, ("CUT", "truncate")))
    report = run(cut, Only.TRUNCATED, "output.accept_truncated=true")
    assert (report.exit_code, counts_of(report)) == (ExitCode.OK, (4, 0))
    assert isinstance(report.summary["selection"], dict)
    assert report.summary["selection"]["is_new_task"] is True
    assert "output.accept_truncated" in warnings_of(cut)[0]
    assert select(cut, "select count(*), any_value(finish_reason) from answers") == [(4, "length")]
    assert counts_of(cut.run_as_written()) == (0, 0)
    assert select(cut, "select count(*), any_value(finish_reason) from answers") == [(10, "stop")]
    assert select(cut, "select count(*) from open_failures where code = 'truncated'") == [(4,)]


def test_a_new_task_takes_over_its_own_failures(cut: JobFolder) -> None:
    cut.write_job(engine=with_faults(cut, ("CUT 1", "truncate")))
    assert counts_of(run(cut, Only.TRUNCATED, "sampling.temperature=0.5")) == (3, 1)
    cut.write_job()
    report = run(cut, Only.TRUNCATED, "sampling.temperature=0.5", "sampling.max_tokens=64")
    assert counts_of(report) == (1, 0)
    assert warnings_of(cut) == []


def test_a_new_task_that_was_interrupted_goes_on_where_it_was(cut: JobFolder) -> None:
    cut.write_job(engine=with_faults(cut, ("CUT 1", "truncate"), ("CUT 0", "truncate")))
    first = run(cut, Only.TRUNCATED, "sampling.temperature=0.5", limit=2)
    assert sum(map(int, map(str, counts_of(first)))) == 2
    second = run(cut, Only.TRUNCATED, "sampling.temperature=0.5")
    assert select(cut, "select count(*) from answers") == [(2,)]
    assert counts_of(second)[0] == 2 - int(str(counts_of(first)[0]))
    cut.write_job()
    assert counts_of(run(cut, Only.TRUNCATED, "sampling.temperature=0.5")) == (2, 0)


def test_a_new_task_asks_its_own_failures_too_where_old_ones_are_left(cut: JobFolder) -> None:
    """Of the old task one is no more in the input, so nobody will ever come to it."""
    cut.write_documents([*make_documents(10), {"id": "d10", "body": "another"}])
    cut.write_job(engine=with_faults(cut, ("another", "truncate")))
    assert counts_of(run(cut, Only.NEW, "sampling.temperature=0.5")) == (10, 1)
    cut.write_job()
    for only in (Only.TRUNCATED, Only.FAILED):
        report = run(cut, only, "sampling.temperature=0.5")
        assert counts_of(report) == ((1, 0) if only is Only.TRUNCATED else (0, 0))


def test_a_prompt_with_other_fields_cannot_tell_what_failed(cut: JobFolder) -> None:
    with pytest.raises(JobError, match="nothing has failed with these settings"):
        run(cut, Only.TRUNCATED, "prompt.user={{ body }} {{ id }}")
    assert select(cut, "select count(*) from answers") == [(10,)]


def test_a_policy_that_brings_other_fields_cannot_tell_what_failed_and_hides_no_answer(cut: JobFolder) -> None:
    with pytest.raises(JobError, match="nothing has failed with these settings"):
        run(cut, Only.FAILED, "limits.overlong=split", "prompt.combine={{ id }} {{ parts | join(' ') }}")
    assert select(cut, "select count(*) from answers") == [(10,)]


def test_each_code_selects_its_own(cut: JobFolder) -> None:
    cut.write_job()
    assert counts_of(run(cut, Only.INVALID_OUTPUT)) == (0, 0)
    assert counts_of(run(cut, Only.ENGINE_REJECTED)) == (1, 0)
    assert counts_of(run(cut, Only.FAILED, limit=3)) == (3, 0)
    assert counts_of(run(cut, Only.FAILED)) == (1, 0)
    assert select(cut, "select count(*) from open_failures") == [(0,)]


def test_every_code_can_be_selected() -> None:
    assert set(Only) == {*FailureCode, Only.NEW, Only.FAILED, Only.INVALID}


def test_what_fails_again_is_weighed_by_the_whole_input(folder: JobFolder) -> None:
    """220 of 5,000 fail again: all of the run over them, and 4.4 % of the input."""
    documents = [{"id": str(number), "body": f"CUT {number}"} for number in range(220)]
    folder.write_documents([*documents, *make_documents(4_780)])
    limits = {"max_failures": "5%", "max_concurrency": 64}
    assert folder.run(engine=with_faults(folder, ("CUT", "truncate")), limits=limits).exit_code is ExitCode.OK
    report = run(folder, Only.TRUNCATED, "sampling.max_tokens=20")
    assert (report.exit_code, counts_of(report)) == (ExitCode.OK, (0, 220))
    over = run(folder, Only.TRUNCATED, "sampling.max_tokens=20", "limits.max_failures=100")
    assert isinstance(over.error, TooManyFailures)
