"""Every input row once, in input order, with all its columns and what it ended with; the file is whole or not there."""

import csv
import gzip
import json
import math
import os
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from bulkinfer.errors import JobError
from bulkinfer.export import Exported, ExportOptions, export_job, parse_target
from bulkinfer.job import load_job
from bulkinfer.records import ExportFormat, Only, SourceFile
from bulkinfer.runner import RunOptions
from bulkinfer.store import open_reader
from bulkinfer.store.runs import identify_file
from tests.conftest import JobFolder
from tests.integration.test_formats import documents_of

DOCUMENTS: list[dict[str, Any]] = [
    {"id": "a", "body": "first", "tags": ["x", "y"], "priority": 2},
    {"id": "bad", "body": None, "note": 'he said, "no"\nthen left;'},
    {"id": "b", "body": "first", "priority": 2.5},
    {"id": "c", "body": "third"},
]
ANSWER_COLUMNS = [
    "document_id",
    "source",
    "row",
    "status",
    "output",
    "value",
    "finish_reason",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "queue_s",
    "first_token_s",
    "total_s",
    "attempts",
    "completed_at",
    "failure_code",
    "failure_message",
    "details",
    "document_hash",
]


def export(
    folder: JobFolder, name: str, columns: tuple[str, ...] | None = None, *, is_only_answered: bool = False
) -> Exported:
    """Export the job into a file of its folder."""
    job = load_job(folder.job_path)
    with open_reader(job.database_path) as reader:
        return export_job(reader, job, parse_target(folder.path / name), ExportOptions(columns, is_only_answered))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file."""
    content = path.read_bytes()
    return [orjson.loads(line) for line in (gzip.decompress(content) if path.suffix == ".gz" else content).splitlines()]


def age(folder: JobFolder) -> None:
    """Make the input so old that its times prove that it did not change."""
    for path in [*folder.path.glob("*.jsonl"), *folder.path.glob("*.parquet")]:
        os.utime(path, ns=(1_700_000_000_123_456_789,) * 2)


@pytest.fixture(params=["by row", "by content"])
def done(folder: JobFolder, request: pytest.FixtureRequest) -> JobFolder:
    """A job that ran, over a file that is as it was, and over one that was touched since."""
    folder.write_documents(DOCUMENTS)
    age(folder)
    folder.run()
    if request.param == "by content":
        os.utime(folder.input)
    return folder


def test_jsonl_has_every_row_with_all_its_columns(done: JobFolder) -> None:
    exported = export(done, "out.jsonl")
    assert (exported.num_rows, dict(exported.by_status)) == (4, {"answered": 3, "failed": 1})
    rows = read_lines(done.path / "out.jsonl")
    assert [{key: row[key] for key in DOCUMENTS[n]} for n, row in enumerate(rows)] == DOCUMENTS
    assert [list(row) for row in rows] == [[*document, *ANSWER_COLUMNS] for document in DOCUMENTS]
    assert [(row["document_id"], row["row"], row["status"], row["failure_code"]) for row in rows] == [
        ("a", 1, "answered", None),
        ("bad", 2, "failed", "missing_field"),
        ("b", 3, "answered", None),
        ("c", 4, "answered", None),
    ]
    assert rows[0]["output"] == rows[2]["output"] != rows[3]["output"]
    assert rows[0]["document_hash"] == rows[2]["document_hash"]
    assert {row["source"] for row in rows} == {"in.jsonl"}


@pytest.mark.parametrize("ending", ["parquet", "arrow", "feather"])
def test_tables_have_every_row_with_all_its_columns(done: JobFolder, ending: str) -> None:
    export(done, f"out.{ending}")
    path = done.path / f"out.{ending}"
    table = pq.read_table(path) if ending == "parquet" else pa.ipc.open_file(path).read_all()
    assert table.schema.names == ["id", "body", "tags", "priority", "note", *ANSWER_COLUMNS]
    assert table.column("tags").to_pylist() == ['["x","y"]', None, None, None]
    assert table.column("priority").to_pylist() == [2.0, None, 2.5, None]
    assert table.column("status").to_pylist() == ["answered", "failed", "answered", "answered"]
    assert table.schema.field("completed_at").type == pa.timestamp("us", "UTC")
    assert table.column("note").to_pylist()[1] == DOCUMENTS[1]["note"]


def test_csv_has_every_row_with_all_its_columns(done: JobFolder) -> None:
    export(done, "out.csv")
    with (done.path / "out.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["id"], row["status"], row["priority"], row["tags"]) for row in rows] == [
        ("a", "answered", "2", '["x","y"]'),
        ("bad", "failed", "", ""),
        ("b", "answered", "2.5", ""),
        ("c", "answered", "", ""),
    ]
    assert rows[1]["note"] == DOCUMENTS[1]["note"]


def test_packed_lines_are_the_same_lines(done: JobFolder) -> None:
    export(done, "out.jsonl")
    export(done, "out.jsonl.gz")
    assert read_lines(done.path / "out.jsonl.gz") == read_lines(done.path / "out.jsonl")


def run_on_parquet(folder: JobFolder, columns: dict[str, Any]) -> None:
    """Run the job over one Parquet file."""
    pq.write_table(pa.table(columns), folder.path / "in.parquet", row_group_size=2)
    age(folder)
    folder.run(input={"path": "in.parquet", "id": None})


TYPED = {
    "body": pa.array(["x", "y", "z"]),
    "day": pa.array([date(2026, 1, 2), None, date(2026, 1, 3)]),
    "price": pa.array([Decimal("1.20"), None, Decimal("3.00")]),
    "word": pa.array(["red", "blue", "red"]).dictionary_encode(),
    "parts": pa.array([[1, 2], None, []], pa.list_(pa.int64())),
    "raw": pa.array([b"text", b"\xff\x00", None]),
}


def test_parquet_keeps_the_types_of_parquet(folder: JobFolder) -> None:
    run_on_parquet(folder, TYPED)
    export(folder, "out.parquet")
    table = pq.read_table(folder.path / "out.parquet")
    for name in ("day", "price", "parts", "raw"):
        assert table.column(name).combine_chunks() == TYPED[name], name
    assert table.column("word").to_pylist() == ["red", "blue", "red"]


def test_types_that_a_format_lacks_become_text(folder: JobFolder) -> None:
    run_on_parquet(folder, TYPED)
    export(folder, "out.jsonl")
    export(folder, "out.csv")
    first, second, _ = read_lines(folder.path / "out.jsonl")
    assert (first["day"], first["price"], first["parts"], first["raw"]) == ("2026-01-02", "1.20", [1, 2], "text")
    assert (second["day"], second["parts"], second["raw"]) == (None, None, "/wA=")
    with (folder.path / "out.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["day"], row["price"], row["parts"], row["raw"]) for row in rows] == [
        ("2026-01-02", "1.20", "[1,2]", "text"),
        ("", "", "", "/wA="),
        ("2026-01-03", "3.00", "[]", ""),
    ]


def test_names_that_the_input_has_already_are_told(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "x", "Status": "open", "output": 7, "bulkinfer_output": 8}])
    folder.run()
    exported = export(folder, "out.jsonl")
    [row] = read_lines(folder.path / "out.jsonl")
    assert (row["Status"], row["output"], row["bulkinfer_output"]) == ("open", 7, 8)
    assert row["bulkinfer_status"] == "answered"
    assert isinstance(row["bulkinfer_bulkinfer_output"], str)
    assert exported.notes == [
        "the input has a column status: the answers' is called bulkinfer_status",
        "the input has a column output: the answers' is called bulkinfer_bulkinfer_output",
    ]


def test_only_what_is_wanted(done: JobFolder) -> None:
    exported = export(done, "out.jsonl", columns=("body", "output", "row"), is_only_answered=True)
    assert exported.num_rows == 3
    rows = read_lines(done.path / "out.jsonl")
    assert [list(row) for row in rows] == [["body", "row", "output"]] * 3
    assert [row["row"] for row in rows] == [1, 3, 4]
    export(done, "out.parquet", columns=("body", "output", "row"), is_only_answered=True)
    assert pq.read_table(done.path / "out.parquet").to_pylist() == rows
    export(done, "answers.jsonl", columns=("output",))
    assert [list(row) for row in read_lines(done.path / "answers.jsonl")] == [["output"]] * 4


def test_an_unknown_column_is_the_users_error(done: JobFolder) -> None:
    with pytest.raises(JobError, match="--columns ouput: there is no such column; did you mean output"):
        export(done, "out.jsonl", columns=("ouput",))


def test_rows_that_no_run_has_come_to_are_pending(folder: JobFolder) -> None:
    folder.write_documents([{"id": str(number), "body": f"text {number}"} for number in range(30)])
    age(folder)
    folder.run(RunOptions(limit=10))
    for name in ("out.jsonl", "out.parquet"):
        assert dict(export(folder, name).by_status) == {"answered": 10, "pending": 20}
    rows = read_lines(folder.path / "out.jsonl")
    assert [row["row"] for row in rows] == list(range(1, 31))
    assert (rows[20]["id"], rows[20]["document_id"], rows[20]["output"]) == ("20", "20", None)
    assert list(rows[20]) == list(rows[0])
    assert [row["status"] for row in pq.read_table(folder.path / "out.parquet").to_pylist()] == [
        row["status"] for row in rows
    ]


def test_a_file_that_changed_gets_its_answers_by_content(folder: JobFolder) -> None:
    documents = [{"id": str(number), "body": f"text {number}"} for number in range(5)]
    folder.write_documents(documents)
    folder.run()
    export(folder, "before.jsonl")
    outputs = {row["body"]: row["output"] for row in read_lines(folder.path / "before.jsonl")}
    new = {"id": "new", "body": "new"}
    folder.write_documents([new, *reversed(documents[1:]), {"id": "0", "body": "edited"}])
    exported = export(folder, "after.jsonl")
    assert "in.jsonl: it changed since the run read it" in exported.notes[0]
    rows = read_lines(folder.path / "after.jsonl")
    assert [row["body"] for row in rows] == ["new", "text 4", "text 3", "text 2", "text 1", "edited"]
    assert [row["output"] for row in rows] == [outputs.get(row["body"]) for row in rows]
    assert [row["status"] for row in rows] == ["pending", *["answered"] * 4, "pending"]


def test_a_file_that_changed_with_the_prompt_is_refused(folder: JobFolder) -> None:
    folder.write_documents(DOCUMENTS)
    folder.run()
    os.utime(folder.input)
    folder.write_job(prompt={"user": "{{ id }}"})
    with pytest.raises(JobError, match="run the job first"):
        export(folder, "out.jsonl")
    assert not (folder.path / "out.jsonl").exists()


def export_ids(folder: JobFolder, **section: Any) -> dict[str, str]:  # noqa: ANN401 - values of a section
    """Of each row of an export what it has, after the job's section `input` was changed."""
    folder.write_job(input={"path": "in", "id": "id", **section})
    notes = export(folder, "out.jsonl").notes
    assert all("changed since the run read it" in note for note in notes)
    return {row["id"]: row["status"] for row in read_lines(folder.path / "out.jsonl")}


def test_a_job_that_chooses_other_rows_than_the_run_did_gets_the_answers_that_there_are(folder: JobFolder) -> None:
    (folder.path / "in").mkdir()
    folder.write_documents([{"id": f"a{n}", "body": f"a {n}"} for n in range(4)], "in/a.jsonl")
    folder.write_documents([{"id": f"b{n}", "body": f"b {n}"} for n in range(4)], "in/b.jsonl")
    for path in (folder.path / "in").iterdir():
        os.utime(path, ns=(1_700_000_000_123_456_789,) * 2)
    folder.run(input={"path": "in", "limit": 6})
    answered, pending = "answered", "pending"
    first = dict.fromkeys(["a0", "a1", "a2", "a3", "b0", "b1"], answered)
    assert export_ids(folder, limit=6) == first
    assert export_ids(folder, limit=7) == {**first, "b2": pending}
    assert export_ids(folder, limit=3) == dict.fromkeys(["a0", "a1", "a2"], answered), "no row of in/b.jsonl"
    assert export_ids(folder) == {**first, "b2": pending, "b3": pending}
    assert export_ids(folder, where="id like '%2'") == {"a2": answered, "b2": pending}
    assert export_ids(folder, sample="100%", where="id <> 'a0'").keys() == first.keys() - {"a0"} | {"b2", "b3"}
    assert export_ids(folder, format="jsonl") == {**first, "b2": pending, "b3": pending}
    folder.write_job(input={"path": "in", "limit": 3}, prompt={"user": "{{ id }}"})
    with pytest.raises(JobError, match=r"what the job chooses of it .* changed .* and so did the fields"):
        export(folder, "out.jsonl")


@pytest.mark.parametrize("section", [{"where": "now() > '2020-01-01'"}, {"sample": 3, "sample_seed": 1}])
def test_a_choice_that_depends_on_the_day_or_on_other_files_is_exported(
    folder: JobFolder, section: dict[str, Any]
) -> None:
    folder.write_documents([{"id": f"a{n}", "body": f"a {n}"} for n in range(4)], "a.jsonl")
    age(folder)
    folder.run(input={"path": "*.jsonl", **section})
    exported = export(folder, "out.parquet")
    assert exported.notes == []
    assert {row["status"] for row in read_rows(folder)} == {"answered"}
    folder.write_documents([{"id": f"b{n}", "body": f"b {n}"} for n in range(4)], "b.jsonl")
    export(folder, "out.parquet")
    found = {row["id"]: row["status"] for row in read_rows(folder)}
    assert len(found) == section.get("sample", 8)
    assert {key for key, status in found.items() if status == "answered"} == {key for key in found if key[0] == "a"}


def test_rows_that_were_chosen_by_an_older_rule_are_chosen_anew(folder: JobFolder) -> None:
    """A condition may hold for other rows than it did for the code that listed them."""
    folder.write_documents([{"id": f"a{n}", "body": f"a {n}"} for n in range(4)])
    age(folder)
    folder.run(input={"where": "id = 'a0'"})
    with duckdb.connect(folder.database) as connection:
        ((layout,),) = connection.execute("select layout from scans").fetchall()
        fields, said = layout[: layout.index("{")], json.loads(layout[layout.index("{") :])
        old = fields + json.dumps({"where": "id = 'a0'", "at": said["at"]}, separators=(",", ":"))
        connection.execute("update scans set layout = ?", [old])
        connection.execute("update document_rows set row = 3")
    folder.write_job(input={"path": "in.jsonl", "where": "id = 'a0'"})
    assert export(folder, "out.parquet").notes == []
    assert {row["id"]: row["status"] for row in read_rows(folder)} == {"a0": "answered"}
    folder.write_job(input={"path": "in.jsonl", "where": "id = 'a1'"})
    assert "input.where" in export(folder, "out.parquet").notes[0]
    assert documents_of(folder.run(input={"where": "id = 'a0'"}))["already_done"] == 1


def test_a_database_of_a_run_with_a_choice_is_known_as_it_was_written() -> None:
    """What identifies a file in databases that exist must stay the same text."""
    file = SourceFile(
        Path("a"), "a", 1, 2, 3, 4, layout='{"format":"csv"}', choice='{"where":"x","at":""}{"last_row":3}'
    )
    layout = '[["body"],"id"]{"format":"csv"}{"where":"x","at":""}{"last_row":3}'
    assert identify_file(file, '[["body"],"id"]') == ("a", layout, 1, 2, 3, 4)


@pytest.mark.parametrize("ending", ["parquet", "arrow", "jsonl"])
def test_columns_of_a_query_keep_their_types(folder: JobFolder, ending: str) -> None:
    path = folder.write_documents([{"id": f"d{n}", "body": f"text {n}", "n": n} for n in range(3)])
    path.write_bytes(path.read_bytes() + b"[broken\n")
    sql = """
        select id, body, date '2024-02-29' + n::int as day, (n / 4)::decimal(9, 2) as price, [n, n] as numbers,
            {'n': n}::json as doc, n::tinyint as short, null as nothing, '00:00:01'::time as at
        from input order by n
    """
    folder.run(input={"path": path.name, "sql": sql, "id": "id"})
    export(folder, f"out.{ending}")
    if ending == "jsonl":
        rows = read_lines(folder.path / "out.jsonl")
        assert (rows[1]["day"], rows[1]["numbers"], rows[1]["short"]) == ("2024-03-01", [1, 1], 1)
    else:
        out = folder.path / f"out.{ending}"
        table = pq.read_table(out) if ending == "parquet" else pa.ipc.open_file(out).read_all()
        assert table.schema.field("day").type == pa.date32()
        assert table.schema.field("price").type == pa.decimal128(9, 2)
        assert table.schema.field("short").type == pa.int8()
        rows = table.to_pylist()
        assert (rows[1]["day"], rows[1]["price"]) == (date(2024, 3, 1), Decimal("0.25"))
        assert (rows[1]["numbers"], rows[1]["short"]) == ([1, 1], 1)
    assert [row.get("id") for row in rows] == ["d0", "d1", "d2", None]
    assert [row["status"] for row in rows] == ["answered", "answered", "answered", "failed"]
    assert not any("bulkinfer_" in name for name in rows[0])


def test_files_that_came_and_went_are_told(folder: JobFolder) -> None:
    folder.spec["input"]["path"] = ["*.jsonl"]
    folder.write_documents([{"id": "a", "body": "x"}], "a.jsonl")
    folder.write_documents([{"id": "b", "body": "y"}], "b.jsonl")
    folder.run()
    (folder.path / "a.jsonl").unlink()
    folder.write_documents([{"id": "c", "body": "z"}], "c.jsonl")
    exported = export(folder, "out.parquet")
    assert [(row["id"], row["document_id"], row["source"], row["status"]) for row in read_rows(folder)] == [
        ("b", "b", "b.jsonl", "answered"),
        ("c", "c", "c.jsonl", "pending"),
        (None, "a", "a.jsonl", "answered"),
    ]
    assert [note.partition(":")[0] for note in exported.notes] == ["c.jsonl", "a.jsonl"]


def read_rows(folder: JobFolder) -> list[dict[str, Any]]:
    """The rows of out.parquet."""
    rows: list[dict[str, Any]] = pq.read_table(folder.path / "out.parquet").to_pylist()
    return rows


def test_answers_outlive_their_input(done: JobFolder) -> None:
    done.input.unlink()
    exported = export(done, "out.parquet")
    assert [(row["document_id"], row["status"]) for row in read_rows(done)] == [
        ("a", "answered"),
        ("bad", "failed"),
        ("b", "answered"),
        ("c", "answered"),
    ]
    assert "does not exist" in exported.notes[0]


def test_files_of_several_formats_have_common_columns(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "x", "size": "large", "number": 1}], "a.jsonl")
    pq.write_table(pa.table({"body": ["y"], "size": [7], "number": [2.5]}), folder.path / "b.parquet")
    folder.run(input={"path": ["a.jsonl", "b.parquet"], "id": None})
    export(folder, "out.parquet")
    assert [(row["id"], row["size"], row["number"]) for row in read_rows(folder)] == [
        ("a", "large", 1.0),
        (None, "7", 2.5),
    ]
    export(folder, "out.jsonl")
    assert [row["size"] for row in read_lines(folder.path / "out.jsonl")] == ["large", 7]


@pytest.mark.parametrize("ending", ["csv", "arrow"])
def test_columns_of_other_formats_come_along(folder: JobFolder, ending: str) -> None:
    table = pa.table({"id": ["a", "b"], "body": ["first", "second"], "size": [1, None]})
    path = folder.path / f"in.{ending}"
    if ending == "arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    else:
        path.write_text("id,body,size\na,first,1\nb,second,\n")
    folder.run(input={"path": path.name})
    export(folder, "out.jsonl")
    size = 1 if ending == "arrow" else "1"
    found = [(row["id"], row["size"], row["status"]) for row in read_lines(folder.path / "out.jsonl")]
    assert found == [("a", size, "answered"), ("b", None if ending == "arrow" else "", "answered")]
    export(folder, "out.parquet")
    assert [row["size"] for row in read_rows(folder)] == [row[1] for row in found]


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
@pytest.mark.parametrize("is_touched", [False, True])
def test_only_the_rows_that_the_job_chooses(folder: JobFolder, ending: str, is_touched: bool) -> None:
    table = pa.table({"id": [f"d{number}" for number in range(40)], "body": ["even", "odd"] * 20})
    path = folder.path / f"in.{ending}"
    match ending:
        case "jsonl":
            path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in table.to_pylist()))
        case "parquet":
            pq.write_table(table, path, row_group_size=7)
        case _:
            path.write_text("id,body\n" + "".join(f"{row['id']},{row['body']}\n" for row in table.to_pylist()))
    os.utime(path, ns=(1_700_000_000_123_456_789,) * 2)
    folder.run(RunOptions(limit=9), input={"path": path.name, "where": "body = 'odd'"})
    if is_touched:
        os.utime(path)
    exported = export(folder, "out.parquet")
    rows = read_rows(folder)
    assert [row["id"] for row in rows] == [f"d{number}" for number in range(1, 40, 2)]
    assert [row["document_id"] for row in rows] == [row["id"] for row in rows]
    assert exported.num_rows == 20
    if not is_touched:  # equal rows that no run has come to have an answer only by content
        assert dict(exported.by_status)["answered"] >= 1


def test_vectors_are_lists_of_one_length(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "x"}, {"id": "bad", "body": None}, {"id": "b", "body": "y"}])
    del folder.spec["sampling"], folder.spec["prompt"]
    folder.spec |= {"task": {"kind": "embed"}, "prompt": {"text": "{{ body }}"}}
    folder.run()
    for name in ("out.parquet", "out.arrow", "out.csv", "out.jsonl"):
        export(folder, name)
    table = pq.read_table(folder.path / "out.parquet")
    vectors = table.column("vector").to_pylist()
    assert table.schema.field("vector").type == pa.list_(pa.float32(), len(vectors[0]))
    assert (vectors[1], len(vectors[2])) == (None, len(vectors[0]))
    assert pa.ipc.open_file(folder.path / "out.arrow").read_all().column("vector").to_pylist() == vectors
    lines = [row["vector"] for row in read_lines(folder.path / "out.jsonl")]
    assert lines[0] == pytest.approx(vectors[0])
    assert lines[1] is None
    with (folder.path / "out.csv").open(newline="", encoding="utf-8") as file:
        texts = [row["vector"] for row in csv.DictReader(file)]
    assert (orjson.loads(texts[2]), texts[1]) == (pytest.approx(vectors[2]), "")


def test_lines_that_are_broken_or_blank_keep_their_place(folder: JobFolder) -> None:
    huge = 10**30
    lines = [b'{"id": "a", "body": "x", "n": %d}' % huge, b"", b"broken", b"[1]", b"{ }", b'{"id": "b", "body": "y"}']
    folder.input.write_bytes(b"\r\n".join(lines) + b"\r\n")
    folder.run(limits={"max_failures": "100%"})
    export(folder, "out.jsonl")
    rows = read_lines(folder.path / "out.jsonl")
    assert [(row["row"], row["status"], row["failure_code"], row.get("id")) for row in rows] == [
        (1, "answered", None, "a"),
        (3, "failed", "unreadable_row", None),
        (4, "failed", "unreadable_row", None),
        (5, "failed", "missing_field", None),
        (6, "answered", None, "b"),
    ]
    assert b'"n": %d' % huge in (folder.path / "out.jsonl").read_bytes()
    export(folder, "out.parquet")
    assert [row["n"] for row in read_rows(folder)] == [str(huge), None, None, None, None]


@pytest.mark.parametrize("name", ["it's; drop table results; --.csv", 'a"b.jsonl', "übung 東京.parquet", "{a}$b.csv"])
def test_any_file_name_is_only_a_name(done: JobFolder, name: str) -> None:
    assert export(done, name).num_rows == 4
    assert (done.path / name).stat().st_size > 0


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("out.xlsx", "must be .parquet, .jsonl, .jsonl.gz or .csv"),
        ("out", "must be"),
        ("out.csv.gz", "must be"),
        ("missing/out.csv", "No such file or directory"),
        ("out.duckdb/out.csv", "Not a directory"),
        ("folder.csv", "Is a directory"),
    ],
)
def test_place_that_cannot_be_written_is_the_users_error(done: JobFolder, path: str, message: str) -> None:
    (done.path / "folder.csv").mkdir()
    before = sorted(done.path.iterdir())
    with pytest.raises(JobError, match=message) as caught:
        export(done, path)
    assert str(done.path / path) in str(caught.value)
    assert sorted(done.path.iterdir()) == before


def test_job_without_a_run_is_the_users_error(done: JobFolder) -> None:
    done.spec["name"] = "other"
    done.write_job()
    with pytest.raises(JobError, match="no run of a job named 'other'"):
        export(done, "out.csv")


def test_an_older_export_stays_when_the_input_turns_out_damaged(folder: JobFolder) -> None:
    run_on_parquet(folder, {"body": [f"text {number}" for number in range(10)]})
    (folder.path / "out.csv").write_text("older")
    damaged = (folder.path / "in.parquet").read_bytes()[:-50]
    (folder.path / "in.parquet").write_bytes(damaged)
    with pytest.raises(Exception, match="cut off"):
        export(folder, "out.csv")
    assert (folder.path / "out.csv").read_text() == "older"


def test_empty_input_gives_a_file_without_rows(folder: JobFolder) -> None:
    folder.write_documents([])
    folder.run()
    for ending in ("parquet", "jsonl", "csv", "arrow"):
        assert export(folder, f"out.{ending}").num_rows == 0
    assert pq.read_table(folder.path / "out.parquet").schema.names == ANSWER_COLUMNS
    assert (folder.path / "out.jsonl").read_bytes() == b""
    assert (folder.path / "out.csv").read_text().count("\n") == 1


def test_retried_failure_is_exported_once_with_its_newest_code(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "FAIL"}])
    for kind, only in (("truncate", Only.NEW), ("reject", Only.FAILED)):
        simulated = {**folder.spec["engine"]["simulated"], "faults": [{"match": "FAIL", "kind": kind, "times": None}]}
        folder.run(RunOptions(only=only), engine={"simulated": simulated})
    assert export(folder, "out.jsonl").num_rows == 1
    assert read_lines(folder.path / "out.jsonl")[0]["failure_code"] == "engine_rejected"


def test_many_rows_are_in_order_across_batches(folder: JobFolder) -> None:
    num_rows = 45_000
    documents: Sequence[dict[str, Any]] = [
        {"id": f"d{number}", "body": f"{number % 20_001}"} for number in range(num_rows)
    ]
    folder.write_documents(documents)
    for is_old in (True, False):
        if is_old:
            age(folder)
            folder.run()
        else:
            os.utime(folder.input)
        export(folder, "out.parquet")
        table = pq.read_table(folder.path / "out.parquet", columns=["id", "document_id", "row", "body", "output"])
        assert table.column("id") == table.column("document_id")
        assert table.column("row").to_pylist() == list(range(1, num_rows + 1))
        assert (
            len(set(zip(table.column("body").to_pylist(), table.column("output").to_pylist(), strict=True))) == 20_001
        )


@pytest.mark.parametrize("target", ["in.jsonl", "link.jsonl", "job.yaml", "out.duckdb", "out.duckdb.wal"])
def test_an_export_writes_over_nothing_that_must_stay(folder: JobFolder, target: str) -> None:
    folder.write_documents(DOCUMENTS)
    folder.run()
    (folder.path / "link.jsonl").symlink_to("in.jsonl")
    job = load_job(folder.job_path)
    before = (folder.path / "in.jsonl").read_bytes()
    wanted = parse_target(
        folder.database.parent / target if "duckdb" in target else folder.path / target, ExportFormat.JSONL
    )
    with open_reader(job.database_path) as reader, pytest.raises(JobError, match="would be lost; name another file"):
        export_job(reader, job, wanted, ExportOptions())
    assert (folder.path / "in.jsonl").read_bytes() == before


@pytest.mark.parametrize("pattern", ["in.jsonl", "*.jsonl", ""])
def test_an_export_writes_over_no_input_that_a_url_names(folder: JobFolder, pattern: str) -> None:
    folder.write_documents(DOCUMENTS)
    folder.run(input={"path": f"file://{folder.path}/{pattern}"})
    job = load_job(folder.job_path)
    before = (folder.path / "in.jsonl").read_bytes()
    names = ["in.jsonl"] if pattern == "in.jsonl" else ["in.jsonl", "new.jsonl"]
    for name in names:
        wanted = parse_target(folder.path / name, ExportFormat.JSONL)
        with open_reader(job.database_path) as reader, pytest.raises(JobError, match=r"would be lost|takes in"):
            export_job(reader, job, wanted, ExportOptions())
    assert (folder.path / "in.jsonl").read_bytes() == before


def test_numbers_stay_what_they_are_where_files_and_rows_differ_in_type(folder: JobFolder) -> None:
    (folder.path / "many").mkdir()
    long = 2**53 + 1
    columns: dict[str, tuple[pa.Array, pa.Array]] = {
        "unsigned": (pa.array([2**63 + 5], pa.uint64()), pa.array([-1])),
        "short": (pa.array([7], pa.int16()), pa.array([long])),
        "at": (pa.array([253_370_764_800_000], pa.timestamp("ms")), pa.array([1], pa.timestamp("ns"))),
        "price": (pa.array([long]), pa.array([Decimal("1.25")])),
    }
    for number in range(2):
        named = {"id": [f"p{number}"], "body": [f"text {number}"]}
        table = pa.table({**named, **{name: pair[number] for name, pair in columns.items()}})
        pq.write_table(table, folder.path / f"many/{number}.parquet")
    folder.run(input={"path": "many"})
    export(folder, "out.parquet")
    first, second = pq.read_table(folder.path / "out.parquet").to_pylist()
    assert (first["unsigned"], second["unsigned"]) == (str(2**63 + 5), "-1")
    assert (first["short"], second["short"]) == (7, long)
    assert first["at"].startswith("9999-01-01")
    assert (first["price"], second["price"]) == (str(long), "1.25")


def test_a_whole_number_that_would_be_rounded_is_said_and_nothing_is_written(folder: JobFolder) -> None:
    (folder.path / "many").mkdir()
    for number, count in enumerate([2**53 + 1, 1.5]):
        table = pa.table({"id": [f"p{number}"], "body": [f"text {number}"], "counted": [count]})
        pq.write_table(table, folder.path / f"many/{number}.parquet")
    folder.run(input={"path": "many"})
    with pytest.raises(JobError, match="the column counted is int64 in one file of the input and becomes double"):
        export(folder, "out.parquet")
    assert not (folder.path / "out.parquet").exists()
    export(folder, "out.jsonl")
    assert [row["counted"] for row in read_lines(folder.path / "out.jsonl")] == [2**53 + 1, 1.5]


def test_whole_numbers_beside_others_stay_whole(folder: JobFolder) -> None:
    long = 2**53 + 1
    folder.write_documents([{"id": "a", "body": "x", "n": long}, {"id": "b", "body": "y", "n": 1.5}])
    folder.run()
    export(folder, "out.csv")
    with (folder.path / "out.csv").open(newline="") as stream:
        assert [row["n"] for row in csv.DictReader(stream)] == [str(long), "1.5"]


def test_of_two_columns_of_one_name_the_first_is_exported(folder: JobFolder) -> None:
    table = pa.Table.from_arrays(
        [pa.array(["a"]), pa.array(["x"]), pa.array([1]), pa.array([2])], ["id", "body", "n", "n"]
    )
    pq.write_table(table, folder.path / "in.parquet")
    folder.run(input={"path": "in.parquet"})
    export(folder, "out.parquet")
    assert pq.read_table(folder.path / "out.parquet").to_pylist()[0]["n"] == 1


def test_an_input_whose_ending_says_nothing_is_not_written_over_either(folder: JobFolder) -> None:
    folder.write_documents(DOCUMENTS, "in.dat")
    folder.run(input={"path": "in.dat", "format": "jsonl"})
    job = load_job(folder.job_path)
    wanted = parse_target(folder.path / "in.dat", ExportFormat.JSONL)
    with (
        open_reader(job.database_path) as reader,
        pytest.raises(JobError, match="a file of the input, and would be lost"),
    ):
        export_job(reader, job, wanted, ExportOptions())


def test_numbers_that_json_lacks_are_null_there_and_themselves_elsewhere(folder: JobFolder) -> None:
    table = pa.table({"id": ["a", "b"], "body": ["x", "y"], "n": [float("nan"), float("inf")], "l": [[1.0], [-np.inf]]})
    pq.write_table(table, folder.path / "in.parquet")
    folder.spec["input"] = {"path": "in.parquet", "id": "id"}
    folder.run()
    for name in ("out.jsonl", "out.csv", "out.parquet"):
        export(folder, name, ("n", "l"))
    assert read_lines(folder.path / "out.jsonl") == [{"n": None, "l": [1.0]}, {"n": None, "l": [None]}]
    assert (folder.path / "out.csv").read_text().splitlines()[1:] == ['nan,"[1.0]"', 'inf,"[null]"']
    written = pq.read_table(folder.path / "out.parquet").to_pydict()
    assert (math.isnan(written["n"][0]), written["n"][1], written["l"]) == (True, math.inf, [[1.0], [-math.inf]])


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet", "arrow"])
def test_run_lengths_are_written_out(folder: JobFolder, ending: str) -> None:
    packed = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["p", "q"]))
    table = pa.table({"id": ["a", "b", "c"], "body": ["x", "y", "z"], "packed": packed})
    with pa.ipc.new_file(folder.path / "in.arrow", table.schema) as writer:
        writer.write_table(table)
    folder.run(input={"path": "in.arrow"})
    export(folder, f"out.{ending}", ("packed",))
    path = folder.path / f"out.{ending}"
    match ending:
        case "jsonl":
            found = [row["packed"] for row in read_lines(path)]
        case "csv":
            found = path.read_text().replace('"', "").splitlines()[1:]
        case "parquet":
            found = pq.read_table(path).column("packed").to_pylist()
        case _:
            found = pa.ipc.open_file(path).read_all().column("packed").to_pylist()
    assert found == ["p", "p", "q"]


def test_a_time_beyond_what_parquet_holds_is_said_and_nothing_is_written(folder: JobFolder) -> None:
    table = pa.table({"id": ["a"], "body": ["x"], "at": pa.array([2**62], pa.timestamp("s"))})
    with pa.ipc.new_file(folder.path / "in.arrow", table.schema) as writer:
        writer.write_table(table)
    folder.run(input={"path": "in.arrow"})
    with pytest.raises(JobError, match=r"column at \(timestamp\[s\]\) is beyond what the format can hold"):
        export(folder, "out.parquet")
    assert not (folder.path / "out.parquet").exists()
    export(folder, "out.jsonl")
