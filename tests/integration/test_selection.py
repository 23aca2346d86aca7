"""input.where, sample and limit in whole runs: they choose documents, and nothing that is answered is asked again."""

import json
from typing import Any

import pytest

from bulkinfer import shards
from bulkinfer.errors import JobError
from bulkinfer.job import load_job
from bulkinfer.runner import plan_run
from bulkinfer.sources import describe_columns
from bulkinfer.store import runs
from tests.cli_support import call
from tests.conftest import JobFolder, make_documents
from tests.integration.test_formats import documents_of, select
from tests.integration.test_known_files import ALWAYS_SETTLED, Reading


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Reading:
    """What is read from now on; every file is settled."""
    counted = Reading()
    monkeypatch.setattr(shards, "open_source", counted.open)
    monkeypatch.setattr(runs, "TICK_NS", ALWAYS_SETTLED)
    monkeypatch.setattr(runs, "COARSE_TICK_NS", ALWAYS_SETTLED)
    return counted


def run(folder: JobFolder, **section: Any) -> dict[str, Any]:  # noqa: ANN401 - values of a section of the job file
    return documents_of(folder.run(input=section))


def test_a_condition_chooses_documents_and_is_no_part_of_the_task(folder: JobFolder, reading: Reading) -> None:
    folder.write_documents([{"id": f"d{n}", "body": f"text {n}", "n": n} for n in range(100)])
    assert run(folder, where="n < 30")["succeeded"] == 30
    assert select(folder, "select count(*), max(row) from documents") == [(30, 30)]
    reading.rows.clear()
    again = run(folder, where="n < 30")
    assert (again["read"], again["already_done"], reading.rows) == (30, 30, {}), "it was read again"
    more = run(folder, where="n between 20 and 49")
    assert (more["read"], more["already_done"], more["succeeded"]) == (30, 10, 20)
    assert run(folder)["succeeded"] == 50
    assert select(folder, "select count(*) from tasks") == [(1,)]


def test_a_condition_on_the_time_of_day_looks_at_all_rows_each_time(folder: JobFolder, reading: Reading) -> None:
    folder.write_documents([{"id": "a", "body": "x", "at": "2020-01-01"}, {"id": "b", "body": "y", "at": "2999-01-01"}])
    for num_new in (1, 0):
        assert run(folder, where='"at"::timestamp < now()::timestamp')["succeeded"] == num_new
        assert reading.rows == {"in.jsonl": 1}


def test_a_limit_is_of_the_whole_input(folder: JobFolder, reading: Reading) -> None:
    (folder.path / "many").mkdir()
    for number in range(3):
        documents = [{"id": f"{number}-{n}", "body": f"text {number} {n}"} for n in range(10)]
        folder.write_documents(documents, f"many/{number}.jsonl")
    assert run(folder, path="many", limit=15)["read"] == 15
    assert select(folder, "select source, count(*) from documents group by all order by 1") == [
        ("many/0.jsonl", 10),
        ("many/1.jsonl", 5),
    ]
    reading.rows.clear()
    assert run(folder, path="many", limit=15)["already_done"] == 15
    assert reading.rows == {}
    assert run(folder, path="many", limit=18)["succeeded"] == 3
    assert run(folder, path="many", limit=1000)["succeeded"] == 12
    assert run(folder, path="many", limit=3)["read"] == 3
    assert select(folder, "select count(*) from documents") == [(3,)]


def test_a_sample_of_a_number_and_of_a_share(folder: JobFolder) -> None:
    documents = make_documents(1000)
    folder.write_documents(documents)
    assert run(folder, sample=100)["read"] == 100
    first = select(folder, "select document_id from documents order by 1")
    assert run(folder, sample=100)["already_done"] == 100
    assert select(folder, "select document_id from documents order by 1") == first
    assert run(folder, sample=300)["already_done"] == 100, "a larger sample holds the smaller"
    assert run(folder, sample="10%")["read"] == pytest.approx(100, abs=40)
    assert run(folder, sample=100, sample_seed=1)["already_done"] < 60
    assert run(folder, sample=5000)["read"] == 1000
    folder.write_documents([*documents, *make_documents(1100)[1000:]])
    assert run(folder, sample="10%")["read"] == pytest.approx(110, abs=40)


def test_all_three_and_a_list_of_formats(folder: JobFolder) -> None:
    folder.write_documents([{"id": f"j{n}", "body": f"text {n}", "n": n} for n in range(500)])
    (folder.path / "in.csv").write_text(
        "id,body,n\n" + "".join(f"c{n},csv {n},{n}\n" for n in range(500)), encoding="utf-8"
    )
    documents = run(folder, path=["in.jsonl", "in.csv"], where="n::int % 2 = 0", sample="50%", limit=300)
    assert documents["read"] == pytest.approx(250, abs=50)
    assert select(folder, "select count(*) from documents where substr(document_id, 2)::int % 2 = 1") == [(0,)]
    assert select(folder, "select count(distinct source) from documents") == [(2,)]


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (
            {"where": "boddy = 'x'"},
            ['input.where: Referenced column "boddy" not', "Columns of in.jsonl: body, id"],
        ),
        ({"where": "body ="}, ["input.where: syntax error"]),
        ({"where": ""}, ["input.where", "text that is not empty"]),
        ({"sample": "0%"}, ["input.sample", 'a share such as "5%"']),
        ({"sample": 0}, ["input.sample"]),
        ({"sample": 0.5}, ["input.sample"]),
        ({"sample": True}, ["input.sample"]),
        ({"limit": 0}, ["input.limit", "at least 1"]),
    ],
)
def test_what_is_wrong_is_told_before_anything_runs(
    folder: JobFolder, section: dict[str, Any], words: list[str]
) -> None:
    folder.write_documents(make_documents(3))
    folder.write_job(input=section)
    called = call("run", str(folder.job_path), "--json")
    assert called.exit_code == 2
    error = json.loads(called.stdout)["error"]
    for word in words:
        assert word in str(error)
    assert not folder.database.exists()


def test_no_row_that_fits_is_told_as_an_empty_input(folder: JobFolder) -> None:
    folder.write_documents(make_documents(3))
    folder.write_job(input={"where": "body is null"})
    called = call("run", str(folder.job_path))
    assert called.exit_code == 2
    assert "no documents" in called.stderr


def test_plan_and_columns_see_what_is_chosen(folder: JobFolder) -> None:
    folder.write_documents(make_documents(20))
    folder.write_job(input={"where": "id in ('d3', 'd4')"})
    found = json.loads(call("plan", str(folder.job_path), "--json").stdout)
    assert found["documents"]["read"] == 2
    (file,) = plan_run(load_job(folder.job_path)).files
    assert [column.examples for column in describe_columns(file) if column.name == "id"] == [("d3", "d4")]


def test_a_condition_that_fits_only_some_files_is_null_in_the_others(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "x", "lang": "en"}], "a.jsonl")
    folder.write_documents([{"id": "b", "body": "y"}], "b.jsonl")
    assert run(folder, path=["a.jsonl", "b.jsonl"], where="lang is null")["read"] == 1
    with pytest.raises(JobError, match="not found"):
        run(folder, path=["b.jsonl"], where="lang is null")


def test_a_query_makes_the_documents(folder: JobFolder, reading: Reading) -> None:
    documents = [{"id": f"d{n}", "body": f"text {n}", "topic": n % 10} for n in range(100)]
    path = folder.write_documents(documents)
    path.write_bytes(path.read_bytes() + b"[broken\n")
    sql = "select 'topic ' || topic as id, string_agg(body, ' ') as body from input group by topic order by topic"
    first = run(folder, sql=sql)
    assert (first["read"], first["succeeded"], first["failed_by_code"]) == (11, 10, {"unreadable_row": 1})
    assert select(folder, "select source, row, document_id from answers order by row limit 2") == [
        ("input.sql", 1, "topic 0"),
        ("input.sql", 2, "topic 1"),
    ]
    assert select(folder, "select row, document_id from open_failures") == [(11, "in.jsonl:101")]
    reading.rows.clear()
    again = run(folder, sql=sql)
    assert (again["read"], again["already_done"], reading.rows) == (11, 11, {})
    folder.write_documents([*documents, {"id": "new", "body": "new", "topic": 3}])
    changed = run(folder, sql=sql)
    assert (changed["read"], changed["succeeded"]) == (10, 1)
    assert run(folder, sql=sql, limit=2)["read"] == 2


def test_a_condition_and_a_query_exclude_each_other(folder: JobFolder) -> None:
    folder.write_documents(make_documents(1))
    with pytest.raises(JobError, match="either where or sql"):
        run(folder, where="true", sql="select * from input")
