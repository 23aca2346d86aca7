"""Documents that are split: each part asked once, all joined into one answer, one outcome for each row."""

import signal
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pytest

from bulkinfer.errors import ExitCode, JobError, StoreError
from bulkinfer.job import load_job
from bulkinfer.records import Only
from bulkinfer.runner import RunOptions, RunReport, forecast_run, plan_run
from bulkinfer.store import open_reader
from tests.cli_support import bulkinfer, start, wait_until
from tests.conftest import JobFolder, make_documents
from tests.integration.test_run import documents_of, select

NUM_SHORT, NUM_LONG = 20, 3
COMBINE = "{% for part in parts %}- {{ part }}\n{% endfor %}Join these on {{ title }}."
LIMITS = {"max_context_tokens": 160, "overlong": "split", "overlap_tokens": 10, "max_failures": "90%"}


@pytest.fixture
def long(folder: JobFolder) -> JobFolder:
    """Short documents, and some that are split into about a dozen parts."""
    folder.spec |= {
        "prompt": {"system": "Be brief.", "user": "{{ title }}\n{{ body }}\nSummarise.", "combine": COMBINE},
        "limits": folder.spec["limits"] | LIMITS,
    }
    write(folder, [long_body(number) for number in range(NUM_LONG)])
    return folder


def long_body(number: int, num_sentences: int = 120) -> str:
    return "".join(f"Sentence {line} of text {number} goes on for a while. " for line in range(num_sentences))


def write(folder: JobFolder, bodies: list[str]) -> None:
    documents = [document | {"title": "T"} for document in make_documents(NUM_SHORT)]
    documents += [{"id": f"long{number}", "title": "T", "body": body} for number, body in enumerate(bodies)]
    folder.write_documents(documents)


def with_fault(folder: JobFolder, match: str, kind: str, times: int | None = None, **more: object) -> dict[str, Any]:
    fault = {"match": match, "kind": kind, "times": times}
    return {"simulated": folder.spec["engine"]["simulated"] | {"faults": [fault]} | more}


def told_of(folder: JobFolder, document_id: str) -> Any:  # noqa: ANN401 - JSON
    """`details.overlong` of one row."""
    ((details,),) = select(folder, f"select details::varchar from answers where document_id = '{document_id}'")
    return orjson.loads(str(details))["overlong"]


def select_live(folder: JobFolder, sql: str) -> list[tuple[Any, ...]]:
    """Ask the database, or the run that has it."""
    with open_reader(folder.database) as reader:
        return list(reader.query(sql).rows)


def parts_of(report: RunReport) -> Any:  # noqa: ANN401 - JSON
    return report.summary["parts"]


def test_every_document_has_one_answer_and_parts_are_counted_apart(long: JobFolder) -> None:
    report = long.run()
    assert (report.exit_code, report.error) == (ExitCode.OK, None)
    num_all = NUM_SHORT + NUM_LONG
    documents = documents_of(report)
    assert (documents["read"], documents["succeeded"], documents["distinct"]) == (num_all, num_all, num_all)
    for table in ("answers", "results"):
        assert select(long, f"select count(*), count(distinct document_hash) from {table}") == [(num_all, num_all)]
    ((num_parts, num_different),) = select(long, "select count(*), count(distinct part_hash) from parts")
    assert parts_of(report) == {"answered": num_parts, "reused": 0}
    assert num_parts == num_different
    told = [told_of(long, f"long{number}") for number in range(NUM_LONG)]
    assert all(one["policy"] == "split" and 8 <= one["parts"] <= 30 for one in told)
    assert all(one["tokens_before"] > 1_200 and one["tokens_after"] <= 144 for one in told)
    # Every part, and at least one question that joins them.
    assert num_parts >= sum(one["parts"] for one in told) + NUM_LONG
    assert select(long, "select count(*) from commits") == select(long, "select count(*) from commits where rows >= 0")
    assert select(long, "select sum(rows) from commits") == [(num_all,)]


def test_tokens_of_a_document_are_those_of_all_that_was_asked_for_it(long: JobFolder) -> None:
    tokens = long.run().summary["tokens"]
    assert isinstance(tokens, dict)
    sums = select(long, "select sum(prompt_tokens), sum(output_tokens) from results")
    assert sums == [(tokens["prompt"], tokens["output"])]
    assert select(long, "select count(*) from results where queue_s > first_token_s or first_token_s > total_s") == [
        (0,)
    ]


def test_running_again_asks_nothing(long: JobFolder) -> None:
    long.run()
    again = long.run()
    assert (documents_of(again)["already_done"], documents_of(again)["succeeded"]) == (NUM_SHORT + NUM_LONG, 0)
    assert "parts" not in again.summary


def test_parts_come_in_the_order_of_the_text_and_cover_it(long: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    from bulkinfer.runner import assemblies

    make = assemblies._request_part

    def watch(document: Any, messages: Any) -> Any:  # noqa: ANN401
        asked.append(messages[-1].content)
        return make(document, messages)

    monkeypatch.setattr(assemblies, "_request_part", watch)
    body = long_body(7, num_sentences=400)
    write(long, [body])
    long.run()
    num_parts = told_of(long, "long0")["parts"]
    texts = [content.removeprefix("T\n").removesuffix("\nSummarise.") for content in asked[:num_parts]]
    assert body.startswith(texts[0])
    assert body.endswith(texts[-1])
    reached = 0
    for text in texts:
        place = body.index(text)
        assert place <= reached < place + len(text), "no part begins behind the end of the one before"
        reached = place + len(text)
    assert all(text.rstrip().endswith(".") for text in texts), "they end with a sentence"
    joins = asked[num_parts:]
    assert all(content.endswith("Join these on T.") for content in joins)
    assert len(joins) > 1, "the answers are too long together: groups are joined first"
    assert sum(content.count("\n") for content in joins[1:-1]) >= num_parts


def test_equal_parts_of_two_documents_are_asked_once(long: JobFolder) -> None:
    shared = long_body(0)
    write(long, [shared, shared + "One more sentence. " * 20])
    report = long.run()
    assert documents_of(report)["succeeded"] == NUM_SHORT + 2
    parts = parts_of(report)
    assert parts["reused"] >= told_of(long, "long0")["parts"] - 2
    assert select(long, "select count(*), count(distinct part_hash) from parts") == [(parts["answered"],) * 2]


def test_equal_parts_of_an_earlier_run_are_not_asked_again(long: JobFolder) -> None:
    write(long, [long_body(0)])
    long.run()
    num_before = told_of(long, "long0")["parts"]
    write(long, [long_body(0) + "It goes on with something new. " * 20])
    parts = parts_of(long.run())
    assert parts["reused"] >= num_before - 2
    assert parts["answered"] < num_before


@pytest.mark.parametrize(
    ("kind", "code"), [("truncate", "truncated"), ("empty", "invalid_output"), ("reject", "engine_rejected")]
)
def test_a_part_that_fails_fails_its_document_with_its_code_and_number(long: JobFolder, kind: str, code: str) -> None:
    report = long.run(engine=with_fault(long, "Sentence 77 of text 1 ", kind))
    assert documents_of(report)["failed_by_code"] == {code: 1}
    assert documents_of(report)["succeeded"] == NUM_SHORT + NUM_LONG - 1
    ((document_id, message, details),) = select(long, "select document_id, message, details::varchar from failures")
    assert document_id == "long1"
    assert str(message).startswith("part ")
    assert " of " in str(message)
    assert orjson.loads(str(details))["overlong"]["parts"] >= 8
    # Its other parts need not be asked again.
    again = long.run(RunOptions(only=Only.FAILED))
    assert documents_of(again)["succeeded"] == 1
    assert parts_of(again)["reused"] > 0


def test_a_document_of_cut_answers_says_so_and_is_none_where_they_do_not_count(long: JobFolder) -> None:
    write(long, [long_body(0)])
    engine = with_fault(long, "Sentence 77 of text 0 ", "truncate")
    accepting = long.run(engine=engine, output={"accept_truncated": True})
    assert documents_of(accepting)["failed"] == 0
    assert select(long, "select finish_reason from answers where document_id = 'long0'") == [("length",)]
    assert told_of(long, "long0")["parts_cut"] == 1
    assert select(long, "select count(*) from parts where finish_reason = 'length'") == [(1,)]
    strict = long.run(engine=engine)
    assert documents_of(strict)["failed_by_code"] == {"truncated": 1}
    assert parts_of(strict)["reused"] == 0
    assert select(long, "select count(*) from answers where finish_reason = 'length'") == [(0,)]


def test_parts_stored_before_it_was_known_whether_they_were_cut_are_asked_again(long: JobFolder) -> None:
    write(long, [long_body(0)])
    first = parts_of(long.run())
    answers = select(long, "select document_id, output from answers order by 1")
    with duckdb.connect(long.database) as connection:
        connection.execute("alter table parts drop column finish_reason")
        connection.execute("alter table parts drop column repairs")
        connection.execute("delete from results")
    assert parts_of(long.run()) == first
    assert select(long, "select document_id, output from answers order by 1") == answers


def test_repairs_of_parts_are_told_with_their_part_in_a_later_run_too(long: JobFolder) -> None:
    write(long, [long_body(0)])
    engine = with_fault(long, "Sentence 77 of text 0 ", "truncate", 1)
    report = long.run(engine=engine, output={"repair": "retry"})
    asked = "select (details->'repairs')::varchar, attempts from answers where attempts > 1"
    ((repairs, attempts),) = select(long, asked)
    (repair,) = orjson.loads(str(repairs))
    assert (repair["code"], repair["then"], attempts) == ("truncated", "again", 2)
    assert 1 < repair["part"] < told_of(long, "long0")["parts"]
    assert select(long, "select count(*) from parts") == [(parts_of(report)["answered"],)], "each counts once"
    with duckdb.connect(long.database) as connection:
        connection.execute("delete from results")
    again = long.run()
    assert parts_of(again)["answered"] == 0
    assert select(long, asked) == [(repairs, attempts)]


def test_repairs_of_a_part_that_fails_are_told_with_its_document(long: JobFolder) -> None:
    engine = with_fault(long, "Sentence 77 of text 1 ", "truncate")
    report = long.run(engine=engine, output={"repair": "retry", "max_repairs": 2})
    assert documents_of(report)["failed_by_code"] == {"truncated": 1}
    ((message, repairs),) = select(long, "select message, details->'repairs' from failures")
    told = orjson.loads(str(repairs))
    assert [one["then"] for one in told] == ["again", "again"]
    assert all(str(message).startswith(f"part {one['part']} of ") for one in told)


def test_a_document_per_second_is_a_document_however_often_it_was_asked(long: JobFolder) -> None:
    report: Any = long.run(
        engine=with_fault(long, "Sentence 7", "truncate", 1), output={"repair": "retry"}, limits={"max_failures": 0}
    ).summary
    # Both rates are over the same time, however long that was.
    rates, num_tokens = report["throughput"], report["tokens"]["prompt"]
    num_answered = rates["documents_per_s"] / rates["prompt_tokens_per_s"] * num_tokens
    assert num_answered == pytest.approx(report["documents"]["succeeded"], rel=0.01)


def test_a_part_that_the_engine_fails_on_is_asked_again(long: JobFolder) -> None:
    report = long.run(engine=with_fault(long, "Sentence 77 of text 1 ", "error", 1))
    assert documents_of(report)["failed_by_code"] == {}
    assert select(
        long,
        "select attempts from answers where document_id = 'long1'",
    ) == [(2,)]


def test_a_part_that_ends_the_engine_is_found_and_its_document_set_aside(
    long: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bulkinfer.runner.window.restart_wait_s", lambda attempt: 0.01)
    report = long.run(engine=with_fault(long, "Sentence 77 of text 1 ", "raise"))
    assert documents_of(report)["failed_by_code"] == {"engine_killer": 1}
    assert documents_of(report)["succeeded"] == NUM_SHORT + NUM_LONG - 1
    assert report.error is None


def test_failures_are_counted_in_documents(long: JobFolder) -> None:
    write(long, [long_body(number) for number in range(NUM_LONG)])
    engine = with_fault(long, "of text 1 ", "truncate")
    report = long.run(engine=engine, limits={"max_failures": 1})
    assert (report.exit_code, documents_of(report)["failed"]) == (ExitCode.OK, 1)


def test_a_join_that_never_fits_fails_its_document_and_says_why(long: JobFolder) -> None:
    combine = "Join these with great care. " * 18 + "{% for part in parts %}{{ part }}\n{% endfor %}"
    report = long.run(prompt={"combine": combine})
    assert documents_of(report)["failed_by_code"] == {"prompt_too_long": NUM_LONG}
    messages = str(select(long, "select distinct message from failures"))
    assert "joining the answers to its" in messages
    assert "two answers cannot be joined" in messages


def test_what_must_be_known_before_a_model_loads_is_a_job_error(long: JobFolder) -> None:
    def fault_of(**sections: dict[str, Any]) -> str:
        with pytest.raises(JobError) as caught:
            plan_run(load_job(long.write_job(**sections)))
        return str(caught.value)

    assert "prompt.combine: it does not use parts" in fault_of(prompt={"combine": "Join."})
    assert "prompt.combine, line 1: the template does not parse" in fault_of(prompt={"combine": "{{ parts"})
    assert "the prompt prints the field author" in fault_of(prompt={"combine": "{{ parts }} by {{ author }}"})
    del long.spec["prompt"]["combine"]
    assert "prompt.combine" in fault_of()


def test_a_document_without_the_field_that_the_join_wants_fails_before_its_parts_are_asked(long: JobFolder) -> None:
    documents: list[dict[str, Any]] = [{"id": "a", "title": "T", "body": long_body(0)}]
    documents.append({"id": "b", "title": None, "body": long_body(1)})
    long.write_documents(documents)
    report = long.run(prompt={"user": "{{ body }}"})
    assert documents_of(report)["failed_by_code"] == {"missing_field": 1}
    assert select(long, "select count(distinct document_hash) from parts") == [(1,)]
    ((message,),) = select(long, "select message from failures")
    assert "prompt.combine" in str(message)
    assert "title" in str(message)


def test_a_document_of_too_many_parts_fails(long: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bulkinfer.prompt.fitting.MAX_PARTS", 5)
    report = long.run()
    assert documents_of(report)["failed_by_code"] == {"prompt_too_long": NUM_LONG}
    assert "more than" in str(select(long, "select distinct message from failures"))


@pytest.mark.parametrize("limits", [{"max_queue_size": 1, "max_concurrency": 1}, {"max_queue_size": 2}])
def test_a_short_queue_stops_nothing(long: JobFolder, limits: dict[str, int]) -> None:
    report = long.run(limits=limits)
    assert documents_of(report)["succeeded"] == NUM_SHORT + NUM_LONG
    engine = report.summary["engine"]
    assert isinstance(engine, dict)
    assert engine["peak_queue_size"] <= limits["max_queue_size"]


@pytest.mark.parametrize("replicas", [2, 3])
def test_several_engines_share_the_parts(long: JobFolder, replicas: int) -> None:
    alone = parts_of(long.run())
    answers = select(long, "select document_id, output from answers order by 1")
    long.database.unlink()
    together = long.run(engine={"replicas": replicas})
    assert documents_of(together)["succeeded"] == NUM_SHORT + NUM_LONG
    assert parts_of(together) == alone
    assert select(long, "select document_id, output from answers order by 1") == answers


def test_a_plan_counts_parts_and_documents_apart(long: JobFolder) -> None:
    long.write_job()
    found = forecast_run(plan_run(load_job(long.job_path)), long.events.append)
    overlong, documents = found["overlong"], found["documents"]
    assert isinstance(overlong, dict)
    assert isinstance(documents, dict)
    assert (overlong["documents"], overlong["cut"], documents["to_ask"]) == (NUM_LONG, NUM_LONG, NUM_SHORT + NUM_LONG)
    long.run()
    num_parts = sum(told_of(long, f"long{number}")["parts"] for number in range(NUM_LONG))
    assert overlong["parts"] == pytest.approx(num_parts, rel=0.15)


def test_a_killed_run_goes_on_with_the_parts_that_it_has(long: JobFolder, tmp_path: Path) -> None:
    write(long, [long_body(number) for number in range(8)])
    simulated = {"clock": "real", "seconds_per_prompt_token": 0.0, "seconds_per_output_token": 0.004}
    engine = {"kind": "simulated", "simulated": simulated}
    job = long.write_job(engine=engine, limits={"max_concurrency": 2})
    process = start("run", job, "--quiet")

    def has_parts() -> bool:
        assert process.poll() is None
        if not long.database.exists():
            return False
        try:
            ((num_parts,),) = select_live(long, "select count(*) from parts")
        except (StoreError, JobError):  # it has just begun
            return False
        return bool(num_parts > 10)

    wait_until(has_parts, "some parts to be on disk")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    resumed = bulkinfer("run", job, "--json", "--quiet")
    assert resumed.returncode == 0, resumed.stderr
    summary = orjson.loads(resumed.stdout)
    assert summary["parts"]["reused"] > 10
    assert select(long, "select count(*), count(distinct document_hash) from answers") == [(NUM_SHORT + 8,) * 2]
    ((num_parts, num_different),) = select(long, "select count(*), count(distinct part_hash) from parts")
    assert num_parts == num_different
    answers = select(long, "select document_id, output from answers order by 1")
    long.database.unlink()
    long.run(engine=long.spec["engine"])
    assert select(long, "select document_id, output from answers order by 1") == answers
