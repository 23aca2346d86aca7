"""Whole runs over each format: every row has one outcome, and a second run adds nothing."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import feather, ipc

from bulkinfer.errors import InputError, JobError
from bulkinfer.runner import RunReport
from bulkinfer.store import Reader
from tests.cli_support import call
from tests.conftest import JobFolder, make_documents


def documents_of(report: RunReport) -> dict[str, Any]:
    documents = report.summary["documents"]
    assert isinstance(documents, dict)
    return documents


def select(folder: JobFolder, sql: str) -> list[tuple[object, ...]]:
    with Reader.open(folder.database) as reader:
        return [tuple(row) for row in reader.select(sql, {})]


def check_again(folder: JobFolder, num_rows: int) -> None:
    """A second run finds all done and leaves everything as it is."""
    before = select(folder, "select source, row, document_id from documents order by all")
    documents = documents_of(folder.run_as_written())
    assert (documents["read"], documents["succeeded"], documents["failed"]) == (num_rows, 0, 0)
    assert select(folder, "select source, row, document_id from documents order by all") == before


CSV = b"""id;body;n
a;"one
line more";1
b;two;2;3
c;three;3
d;"four" x;4
e;caf\xe9;5
f;three;6
"""


def test_csv_with_bad_rows_gives_one_outcome_a_row(folder: JobFolder) -> None:
    (folder.path / "in.csv").write_bytes(CSV)
    report = folder.run(input={"path": "in.csv"}, limits={"max_failures": "100%"})
    documents = documents_of(report)
    assert (report.exit_code, documents["read"], documents["succeeded"], documents["duplicates"]) == (0, 6, 2, 1)
    assert documents["failed_by_code"] == {"unreadable_row": 3}
    assert select(folder, "select row, document_id from answers order by row") == [(2, "a"), (5, "c"), (8, "f")]
    failures = select(folder, "select row, document_id, message from open_failures order by row")
    assert failures == [
        (4, "in.csv:4", "in.csv, line 4: 4 values where the header has 3"),
        (
            6,
            "in.csv:6",
            "in.csv, line 6: a quote that nothing closes, or with more behind it before the next delimiter",
        ),
        (7, "in.csv:7", "in.csv, line 7: bytes that are no text in the file's encoding; see input.csv.encoding"),
    ]
    check_again(folder, 6)


@pytest.mark.parametrize("name", ["in.csv", "in.tsv"])
def test_two_columns_of_one_name_are_exported_and_chosen_by(folder: JobFolder, name: str) -> None:
    table = "id,body,n,n,\n1,x,a,b,e\n2,y,c,d,f\n3,z\n"
    (folder.path / name).write_text(table if name == "in.csv" else table.replace(",", "\t"))
    section: dict[str, Any] = {"path": name}
    assert documents_of(folder.run(input=section))["succeeded"] == 2
    assert call("export", str(folder.job_path), "--to", str(folder.path / "out.jsonl")).exit_code == 0
    rows = [json.loads(line) for line in (folder.path / "out.jsonl").read_text().splitlines()]
    assert [[row.get(key) for key in ("id", "n", "n_2", "column_5")] for row in rows] == [
        ["1", "a", "b", "e"],
        ["2", "c", "d", "f"],
        [None] * 4,
    ]
    documents = documents_of(folder.run(input={**section, "where": "n_2 = 'd'"}))
    assert (documents["read"], documents["already_done"]) == (2, 2), "the second row, and the one that cannot be read"
    report = folder.run(input={"path": name, "id": "n_2", "sql": "select body, n_2, column_5 from input order by 1"})
    assert select(folder, "select document_id from answers order by 1") == [("b",), ("d",)]
    assert report.exit_code == 0
    with pytest.raises(InputError, match="two columns are named 'n'"):
        folder.run(prompt={"user": "{{ n }}"}, input=section)
    report = folder.run(input={**section, "where": "n = 'a'"})
    assert (report.exit_code, str(report.error).partition(". ")[0]) == (2, f"{name}: two columns are named 'n'")
    assert call("init", str(folder.path / name), "--to", str(folder.path / "new.yaml")).exit_code == 0


def test_what_stands_in_place_of_a_header_is_not_quoted_at_length(folder: JobFolder) -> None:
    (folder.path / "in.csv").write_text("7," + "a long text of a document " * 9 + "\n8,b\n")
    with pytest.raises(JobError, match=r"in\.csv has 7, <233 characters>"):
        folder.run(input={"path": "in.csv"})


def test_an_edited_csv_row_is_asked_alone_and_the_encoding_reads_the_file_anew(folder: JobFolder) -> None:
    path = folder.path / "in.csv"
    path.write_bytes(CSV)
    sections: dict[str, Any] = {"input": {"path": "in.csv"}, "limits": {"max_failures": "100%"}}
    folder.run(**sections)
    path.write_bytes(CSV.replace(b"b;two;2;3", b"b;two;2"))
    documents = documents_of(folder.run(**sections))
    assert (documents["read"], documents["succeeded"], documents["already_done"]) == (6, 1, 4)
    sections["input"]["csv"] = {"encoding": "latin-1"}
    documents = documents_of(folder.run(**sections))
    assert (documents["succeeded"], documents["failed"]) == (1, 0)
    check_again(folder, 6)


def test_a_folder_of_texts(folder: JobFolder) -> None:
    (folder.path / "texts").mkdir()
    for name, content in (("a.txt", b"alpha"), ("b.md", b"beta"), ("c.txt", b""), ("d.txt", b"\xff\xfe\xff")):
        (folder.path / "texts" / name).write_bytes(content)
    report = folder.run(
        input={"path": "texts", "id": "name"}, prompt={"user": "{{ text }}"}, limits={"max_failures": "100%"}
    )
    assert documents_of(report)["failed_by_code"] == {"empty_prompt": 1, "unreadable_row": 1}
    assert select(folder, "select document_id from answers order by 1") == [("a.txt",), ("b.md",)]
    check_again(folder, 4)


def test_a_dataset_and_other_formats_in_one_list(folder: JobFolder) -> None:
    table = pa.Table.from_pylist(make_documents(40))
    (folder.path / "ds").mkdir()
    with ipc.new_stream(folder.path / "ds/data-00000-of-00001.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    (folder.path / "ds/state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    feather.write_feather(table.slice(0, 10), folder.path / "in.feather")
    folder.write_documents(make_documents(45))
    (folder.path / "in.csv").write_text("id,body\nx,another\n", encoding="utf-8")
    report = folder.run(input={"path": ["ds", "in.feather", "in.jsonl", "in.csv"]})
    documents = documents_of(report)
    assert (documents["read"], documents["distinct"], documents["succeeded"]) == (96, 46, 46)
    check_again(folder, 96)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"format": "xlsx"}, ["input.format", "'auto'", "found the text 'xlsx'"]),
        ({"csv": {"encoding": "klingon"}}, ["input.csv.encoding", "the name of a text encoding", "'klingon'"]),
        ({"csv": {"encoding": "base64"}}, ["input.csv.encoding", "the name of a text encoding"]),
        ({"csv": {"delimiter": ",,"}}, ["input.csv.delimiter", "at most 1 characters"]),
        ({"csv": {"delimiter": "'", "quote": "'"}}, ["input.csv", "different characters"]),
        ({"csv": {"columns": ["a", "a"]}}, ["input.csv", "different names"]),
        ({"csv": {"seperator": ","}}, ["input.csv.seperator", "unknown key"]),
        ({"text": {"encoding": ""}}, ["input.text.encoding"]),
    ],
)
def test_what_is_wrong_in_the_section_is_told_with_the_job(
    folder: JobFolder, section: dict[str, Any], words: list[str]
) -> None:
    folder.write_documents(make_documents(1))
    with pytest.raises(JobError) as caught:
        folder.run(input=section)
    for word in words:
        assert word in str(caught.value)


def test_a_prompt_that_a_csv_cannot_fill_is_told_before_anything_runs(folder: JobFolder) -> None:
    (folder.path / "in.csv").write_text("id,boddy\n1,x\n", encoding="utf-8")
    with pytest.raises(JobError, match=r"the field body, which the input lacks .* did you mean boddy\?"):
        folder.run(input={"path": "in.csv"})


def test_describing_columns(folder: JobFolder) -> None:
    from bulkinfer.sources import Column, describe_columns, find_source_files

    lines = [{"id": 1, "text": "abc", "tags": ["x"]}, {"id": 2, "text": "", "extra": None}, {"id": 3, "text": "defgh"}]
    path = folder.write_documents(lines)
    path.write_bytes(path.read_bytes() + b"[broken\n")
    (file,) = find_source_files(["in.jsonl"], Path(folder.path))
    assert describe_columns(file) == (
        Column("id", "number", (1, 2, 3), num_values=3, num_different=3, num_rows=3, mean_chars=0.0),
        Column("text", "text", ("abc", "defgh"), num_values=2, num_different=2, num_rows=3, mean_chars=4.0),
        Column("tags", "list", (["x"],), num_values=1, num_different=1, num_rows=3, mean_chars=0.0),
        Column("extra", "empty", (), num_values=0, num_different=0, num_rows=3, mean_chars=0.0),
    )
