"""Every input row once, in input order, in each format; and the file is whole or not there."""

import csv
import gzip
from pathlib import Path

import orjson
import pyarrow.parquet
import pytest

from bulkinfer.errors import JobError, StoreError
from bulkinfer.records import Failure, FailureCode, Only, Result
from bulkinfer.store import Reader, Store, export_answers
from tests.unit.store_support import TASK, make_failure, make_file, make_result, make_rows, make_run, run_job


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Two files, the later name first; answers, a failure, a row not reached, equal documents, hostile text."""
    path = tmp_path / "a.duckdb"
    texts = ["x", "bad", 'he said, "no"\nthen left;', "x"]
    store = Store.open(path)
    later, earlier = store.begin_run(make_run(), TASK, [make_file("b.jsonl"), make_file("a.jsonl")], "body")
    store.add_rows(make_rows(earlier, ["y"]))
    store.add_rows(make_rows(later, texts))
    store.add([make_result("x", value='{"b": [1, "ü"]}'), make_failure("bad", FailureCode.INVALID_OUTPUT)])
    store.add([make_result(texts[2], output=texts[2])])
    store.close()
    return path


ROWS = [
    ("b.jsonl", 1, "answered", "answer to x", None),
    ("b.jsonl", 2, "failed", None, "invalid_output"),
    ("b.jsonl", 3, "answered", 'he said, "no"\nthen left;', None),
    ("b.jsonl", 4, "answered", "answer to x", None),
    ("a.jsonl", 1, "unanswered", None, None),
]
COLUMNS = ("source", "row", "status", "output", "failure_code")


def export(database: Path, file: Path) -> int:
    """Export the job's answers."""
    with Reader.open(database) as reader:
        return export_answers(reader, "job", file)


def test_parquet_has_every_row_in_order(database: Path, tmp_path: Path) -> None:
    assert export(database, tmp_path / "out.parquet") == 5
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert [tuple(row[column] for column in COLUMNS) for row in table.to_pylist()] == ROWS
    assert table.column("value").to_pylist() == ['{"b": [1, "ü"]}', None, None, '{"b": [1, "ü"]}', None]
    assert table.column("failure_message").to_pylist() == [None, "cut at 3 tokens", None, None, None]


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
def test_jsonl_has_every_row_in_order(database: Path, tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"out.{ending}"
    assert export(database, file) == 5
    content = file.read_bytes()
    rows = [
        orjson.loads(line) for line in (gzip.decompress(content) if ending.endswith("gz") else content).splitlines()
    ]
    assert [tuple(row[column] for column in COLUMNS) for row in rows] == ROWS
    assert rows[0]["value"] == {"b": [1, "ü"]}
    assert rows[0]["completed_at"] == "2026-01-02T03:04:05.678901Z"
    assert (rows[0]["queue_s"], rows[0]["attempts"], rows[1]["attempts"], rows[4]["attempts"]) == (0.5, 1, 1, None)
    assert rows[0]["document_hash"] == "2d711642-b726-b044-0162-7ca9fbac32f5"


def test_csv_has_every_row_in_order(database: Path, tmp_path: Path) -> None:
    assert export(database, tmp_path / "out.csv") == 5
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    expected = [tuple("" if value is None else str(value) for value in row) for row in ROWS]
    assert [tuple(row[column] for column in COLUMNS) for row in rows] == expected


def test_empty_input_gives_a_file_without_rows(tmp_path: Path) -> None:
    run_job(tmp_path / "a.duckdb", {"a.jsonl": []})
    for ending in ("parquet", "jsonl", "csv"):
        assert export(tmp_path / "a.duckdb", tmp_path / f"out.{ending}") == 0
    assert pyarrow.parquet.read_table(tmp_path / "out.parquet").num_rows == 0
    assert (tmp_path / "out.jsonl").read_bytes() == b""
    assert (tmp_path / "out.csv").read_text().count("\n") == 1


@pytest.mark.parametrize("name", ["it's; drop table results; --.csv", 'a"b.jsonl', "übung 東京.parquet", "{a}$b.csv"])
def test_any_file_name_is_only_a_name(database: Path, tmp_path: Path, name: str) -> None:
    assert export(database, tmp_path / name) == 5
    assert (tmp_path / name).stat().st_size > 0


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("out.xlsx", "must be .parquet, .jsonl, .jsonl.gz or .csv"),
        ("out", "must be"),
        ("out.csv.gz", "must be"),
        ("missing/out.csv", "No such file or directory"),
        ("a.duckdb/out.csv", "Not a directory"),
        ("folder.csv", "Is a directory"),
    ],
)
def test_place_that_cannot_be_written_is_the_users_error(
    database: Path, tmp_path: Path, path: str, message: str
) -> None:
    (tmp_path / "folder.csv").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(JobError, match=message) as caught:
        export(database, tmp_path / path)
    assert str(tmp_path / path) in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before


def test_job_without_a_run_is_the_users_error(database: Path, tmp_path: Path) -> None:
    with Reader.open(database) as reader, pytest.raises(JobError, match="no run of a job named 'other'"):
        export_answers(reader, "other", tmp_path / "out.csv")


def test_older_export_stays_until_the_new_one_is_whole(database: Path, tmp_path: Path) -> None:
    (tmp_path / "out.csv").write_text("older")
    with Reader.open(database) as reader:
        reader.close()
        with pytest.raises(StoreError, match="reading failed"):
            export_answers(reader, "job", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "older"
    assert export(database, tmp_path / "out.csv") == 5
    assert (tmp_path / "out.csv").read_text().startswith('"document_id","source","row","status"')


def test_live_run_can_be_exported(database: Path, tmp_path: Path) -> None:
    store = Store.open(database)
    reader = store.create_reader()
    assert export_answers(reader, "job", tmp_path / "out.csv") == 5
    reader.close()
    store.close()


def test_retried_failure_is_exported_once_with_its_newest_code(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    codes = iter([FailureCode.TRUNCATED, FailureCode.ENGINE_ERROR])

    def fail(text: str) -> Result | Failure:
        return make_failure(text, next(codes))

    run_job(database, {"a.jsonl": ["bad"]}, decide=fail)
    run_job(database, {"a.jsonl": ["bad"]}, decide=fail, only=Only.FAILED)
    assert export(database, tmp_path / "out.jsonl") == 1
    assert orjson.loads((tmp_path / "out.jsonl").read_bytes())["failure_code"] == "engine_error"
