"""Documents that are too long, cut instead of refused: what is asked, what stands on the row, what a plan says."""

from typing import Any

import orjson
import pytest

from bulkinfer.errors import ExitCode
from bulkinfer.job import load_job
from bulkinfer.records import Only
from bulkinfer.runner import RunOptions, forecast_run, plan_run
from tests.conftest import JobFolder, make_documents
from tests.integration.test_run import documents_of, select

LIMITS = {"max_context_tokens": 120, "max_failures": "90%"}
PROMPT = {"system": "You summarise.", "user": "{{ title }}\n{{ body }}\nOne sentence."}
POLICIES = ["truncate_head", "truncate_middle", "truncate_tail"]
NUM_SHORT, NUM_LONG = 30, 5


@pytest.fixture
def mixed(folder: JobFolder) -> JobFolder:
    """Short documents, and long ones among them."""
    folder.spec |= {"prompt": PROMPT, "limits": folder.spec["limits"] | LIMITS}
    documents = [document | {"title": "T"} for document in make_documents(NUM_SHORT)]
    documents += [
        {"id": f"long{number}", "title": "T", "body": f"{number} " + "word " * 900} for number in range(NUM_LONG)
    ]
    folder.write_documents(documents)
    return folder


def forecast(folder: JobFolder) -> Any:  # noqa: ANN401 - JSON
    """What `plan --json` prints of the job as it is written."""
    return forecast_run(plan_run(load_job(folder.job_path)), folder.events.append)


def told_of(folder: JobFolder, document_id: str) -> Any:  # noqa: ANN401 - JSON
    """`details` of one row."""
    ((details,),) = select(folder, f"select details::varchar from answers where document_id = '{document_id}'")
    return None if details is None else orjson.loads(str(details))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_document_is_answered_and_the_row_says_what_was_cut(mixed: JobFolder, policy: str) -> None:
    failing = mixed.run()
    assert documents_of(failing)["failed_by_code"] == {"prompt_too_long": NUM_LONG}
    report = mixed.run(limits={"overlong": policy})
    assert (report.exit_code, documents_of(report)["succeeded"]) == (ExitCode.OK, NUM_SHORT + NUM_LONG)
    told = told_of(mixed, "long3")["overlong"]
    assert told == {"policy": policy, "tokens_before": 1_142, "tokens_after": told["tokens_after"], "parts": 1}
    assert 102 <= told["tokens_after"] <= 104  # 120 without the 16 of the answer
    assert told_of(mixed, "d7") is None
    assert select(mixed, "select max(prompt_tokens) from answers where document_id like 'long%'") <= [(104,)]


def test_in_a_child_process_it_is_the_same(mixed: JobFolder) -> None:
    mixed.spec["engine"] = {
        "kind": "simulated",
        "simulated": {"in_child": True, "seconds_per_prompt_token": 0, "seconds_per_output_token": 0},
    }
    report = mixed.run(limits={"overlong": "truncate_tail"})
    assert documents_of(report)["succeeded"] == NUM_SHORT + NUM_LONG
    assert told_of(mixed, "long0")["overlong"]["policy"] == "truncate_tail"


def test_each_policy_is_a_task_of_its_own_and_fail_is_the_one_that_was(mixed: JobFolder) -> None:
    fingerprints = [mixed.run(limits={"overlong": policy}).summary["task_fingerprint"] for policy in POLICIES]
    assert len(set(fingerprints)) == len(POLICIES)
    assert mixed.run().summary["task_fingerprint"] == mixed.run(limits={"overlong": "fail"}).summary["task_fingerprint"]


def test_a_document_that_the_job_s_own_text_leaves_no_room_for_fails_all_the_same(mixed: JobFolder) -> None:
    report = mixed.run(prompt={"user": "Be brief. " * 50 + "{{ body }}"}, limits={"overlong": "truncate_tail"})
    assert documents_of(report)["failed_by_code"] == {"prompt_too_long": NUM_SHORT + NUM_LONG}
    messages = select(mixed, "select distinct message from failures where document_id = 'long0'")
    assert "the job's own text alone has 137 tokens, and 104 are free" in str(messages)
    assert "word word" not in str(messages)


def test_failures_of_the_other_policy_are_not_in_the_way(mixed: JobFolder) -> None:
    mixed.run(limits={"overlong": "truncate_tail", "max_context_tokens": 30})
    again = mixed.run(RunOptions(only=Only.FAILED), limits={"overlong": "truncate_tail"})
    assert again.exit_code is ExitCode.OK
    assert select(mixed, "select count(*) from answers") == [(NUM_SHORT + NUM_LONG,)]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_plan_says_how_many_will_be_cut(mixed: JobFolder, policy: str) -> None:
    mixed.write_job(limits={"overlong": policy})
    found = forecast(mixed)
    assert found["overlong"] == {"policy": policy, "documents": NUM_LONG, "cut": NUM_LONG, "parts": 0, "is_exact": True}
    assert found["expected_failures"] == {}
    assert found["documents"]["to_ask"] == NUM_SHORT + NUM_LONG
    assert not found["tokens"]["is_exact"]
    tokens = mixed.run_as_written().summary["tokens"]
    assert isinstance(tokens, dict)
    assert tokens["prompt"] <= found["tokens"]["prompt"] <= tokens["prompt"] + 2 * NUM_LONG


def test_a_plan_says_what_cutting_does_not_help(mixed: JobFolder) -> None:
    mixed.write_job(prompt={"user": "Be brief. " * 50 + "{{ body }}"}, limits={"overlong": "truncate_tail"})
    found = forecast(mixed)
    num_all = NUM_SHORT + NUM_LONG
    assert found["overlong"] == {
        "policy": "truncate_tail",
        "documents": num_all,
        "cut": 0,
        "parts": 0,
        "is_exact": True,
    }
    assert found["expected_failures"] == {"prompt_too_long": {"documents": num_all, "is_exact": True}}
