"""`documents`, `answers` and `open_failures` show the input as it is now, while it changes from run to run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from bulkinfer.records import FailureCode, Only
from tests.unit.store_support import OTHER_TASK, make_failure, make_result, run_job, select

Files = Mapping[str, Sequence[str]]


def read_answers(database: Path, name: str = "job") -> list[tuple[object, ...]]:
    """File, row and answer, in input order."""
    return select(database, f"select source, row, output from answers where name = '{name}' order by source, row")


@pytest.mark.parametrize(
    ("before", "after", "asked", "answers"),
    [
        pytest.param(
            {"a": ["x", "y"]},
            {"a": ["x", "y", "z"]},
            {"z"},
            [("a", 1, "answer to x"), ("a", 2, "answer to y"), ("a", 3, "answer to z")],
            id="grew",
        ),
        pytest.param({"a": ["x", "y"]}, {"a": ["x"]}, set(), [("a", 1, "answer to x")], id="shrank"),
        pytest.param(
            {"a": ["x", "y"]}, {"a": ["x", "Y"]}, {"Y"}, [("a", 1, "answer to x"), ("a", 2, "answer to Y")], id="edited"
        ),
        pytest.param(
            {"a": ["x", "y"]},
            {"a": ["y", "x"]},
            set(),
            [("a", 1, "answer to y"), ("a", 2, "answer to x")],
            id="re-ordered",
        ),
        pytest.param({"a": ["x"], "b": ["y"]}, {"b": ["y"]}, set(), [("b", 1, "answer to y")], id="file removed"),
        pytest.param(
            {"a": ["x"]},
            {"a": ["x"], "b": ["y"]},
            {"y"},
            [("a", 1, "answer to x"), ("b", 1, "answer to y")],
            id="new file",
        ),
        pytest.param({"a": ["x"]}, {"b": ["x"]}, set(), [("b", 1, "answer to x")], id="renamed"),
        pytest.param({"a": ["x"]}, {"a": ["x"]}, set(), [("a", 1, "answer to x")], id="unchanged"),
        pytest.param({"a": ["x"]}, {"a": []}, set(), [], id="emptied"),
        pytest.param(
            {"a": ["x", "x"]},
            {"a": ["x", "x"], "b": ["x"]},
            set(),
            [("a", 1, "answer to x"), ("a", 2, "answer to x"), ("b", 1, "answer to x")],
            id="equal documents",
        ),
    ],
)
def test_answers_follow_the_input(
    tmp_path: Path, before: Files, after: Files, asked: set[str], answers: list[tuple[object, ...]]
) -> None:
    database = tmp_path / "a.duckdb"
    run_job(database, before)
    assert run_job(database, after) == asked
    assert read_answers(database) == answers
    num_rows = sum(map(len, after.values()))
    assert select(database, "select count(*), count(distinct (source, row)) from documents") == [(num_rows, num_rows)]


def test_file_that_changes_back_is_shown_as_it_is_now(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    for texts in (["x"], ["y"], ["x"]):
        run_job(database, {"a": texts})
    assert read_answers(database) == [("a", 1, "answer to x")]


def test_unchanged_file_is_not_listed_again(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    for _ in range(3):
        run_job(database, {"a": ["x", "y"]})
    assert select(database, "select count(*) from scans") == [(1,)]
    assert select(database, "select count(*) from document_rows") == [(2,)]
    assert select(database, "select count(*) from run_inputs") == [(3,)]


def test_other_fields_make_a_new_listing(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    run_job(database, {"a": ["x"]}, layout="body")
    run_job(database, {"a": ["x"]}, layout="subject, body")
    assert select(database, "select layout from scans order by rowid") == [("body",), ("subject, body",)]
    assert read_answers(database) == [("a", 1, "answer to x")]


def test_jobs_of_two_names_share_results_but_not_input(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    assert run_job(database, {"a": ["x", "y"]}, name="one") == {"x", "y"}
    assert run_job(database, {"a": ["x"]}, name="two") == set()
    assert read_answers(database, "one") == [("a", 1, "answer to x"), ("a", 2, "answer to y")]
    assert read_answers(database, "two") == [("a", 1, "answer to x")]
    assert select(database, "select count(*) from tasks") == [(2,)]
    assert select(database, "select count(*) from results") == [(2,)]


def test_changed_task_is_answered_beside_the_old_one_and_shown(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    run_job(database, {"a": ["x"]})
    asked = run_job(database, {"a": ["x"]}, task=OTHER_TASK, decide=lambda text: make_result(text, output="new"))
    assert asked == {"x"}
    assert read_answers(database) == [("a", 1, "new")]
    assert select(database, "select output from results order by output") == [("answer to x",), ("new",)]
    run_job(database, {"a": ["x"]})
    assert read_answers(database) == [("a", 1, "answer to x")]


def test_row_is_answered_or_failed_never_both(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    run_job(database, {"a": ["x", "bad", "bad"]})
    assert read_answers(database) == [("a", 1, "answer to x")]
    failures = "select source, row, document_id, code, attempts from open_failures order by row"
    assert select(database, failures) == [("a", 2, "bad@2", "truncated", 1), ("a", 3, "bad@3", "truncated", 1)]
    assert run_job(database, {"a": ["x", "bad", "bad"]}) == set()
    assert run_job(database, {"a": ["x", "bad", "bad"]}, only=Only.FAILED, decide=make_result) == {"bad"}
    assert len(read_answers(database)) == 3
    assert select(database, failures) == []
    assert select(database, "select count(*) from failures") == [(1,)]


def test_newest_failure_is_shown(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    run_job(database, {"a": ["bad"]})
    run_job(
        database, {"a": ["bad"]}, only=Only.FAILED, decide=lambda text: make_failure(text, FailureCode.INVALID_OUTPUT)
    )
    assert select(database, "select code from open_failures") == [("invalid_output",)]
    assert select(database, "select count(*) from failures") == [(2,)]


def test_failure_of_another_task_is_not_shown(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    run_job(database, {"a": ["bad"]}, task=OTHER_TASK)
    run_job(database, {"a": ["bad"]}, decide=make_result)
    assert select(database, "select * from open_failures") == []
