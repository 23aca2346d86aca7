"""input.sql: its rows as documents, whatever the formats of the input; and what never reached it."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather
from pyarrow import parquet as pq

from bulkinfer.errors import InputError, JobError
from bulkinfer.records import Document, UnreadableRow
from bulkinfer.sources import describe_columns, find_source_files, open_source
from bulkinfer.sources.querying import query_input
from bulkinfer.store.runs import identify_file, is_settled

MISFIT = "in.jsonl, row 1052: a value of another type than its column has in the first rows; input.sql cannot take it"


def query(folder: Path, sql: str, *names: str) -> list[object]:
    file = query_input(find_source_files(names, folder), sql)
    rows = list(open_source(file, None, None).iter_rows())
    assert [row.origin.row for row in rows] == [*range(1, len(rows) + 1)]
    return [dict(row.fields) if isinstance(row, Document) else (row.origin.document_id, row.reason) for row in rows]


def write_lines(path: Path, *lines: object) -> None:
    path.write_text(
        "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), encoding="utf-8"
    )


def test_a_query_over_parquet(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": ["x", "y", "x"], "n": [1, 2, 3]}), tmp_path / "one [1].parquet")
    pq.write_table(pa.table({"a": ["y"], "more": [True]}), tmp_path / "two.parquet")
    sql = "select a, sum(n)::int as total, count(*) as num from input group by a order by a"
    assert query(tmp_path, sql, "one [1].parquet", "two.parquet") == [
        {"a": "x", "total": 4, "num": 2},
        {"a": "y", "total": 2, "num": 2},
    ]


def test_names_of_files_are_no_globs_for_a_query(tmp_path: Path) -> None:
    for number, name in enumerate(["a*.parquet", "ab.parquet", "z[1].parquet", "it's.parquet"]):
        pq.write_table(pa.table({"n": [number]}), tmp_path / name)
    names = ["a*.parquet", "ab.parquet", "z[1].parquet", "it's.parquet"]
    found = query(tmp_path, "select n from input order by n", *names)
    assert found == [{"n": number} for number in range(4)]
    assert query(tmp_path, "select n from input", "a*.parquet") == [{"n": 0}]


def test_the_file_that_a_query_cannot_read_is_named(tmp_path: Path) -> None:
    for name in ("a.parquet", "b[1].parquet"):
        table = pa.table({"n": range(1000), "text": [f"text {number}" for number in range(1000)]})
        pq.write_table(table, tmp_path / name, row_group_size=100)
    path = tmp_path / "b[1].parquet"
    column = pq.ParquetFile(path).metadata.row_group(3).column(1)
    with path.open("r+b") as file:
        file.seek(column.dictionary_page_offset or column.data_page_offset)
        file.write(b"\xff" * 64)
    with pytest.raises(InputError, match=r"^b\[1\]\.parquet: rows 301 to 400, in row group 4, cannot be read"):
        query(tmp_path, "select max(text) as text from input", "a.parquet", "b[1].parquet")


def test_a_query_over_mixed_formats_that_reads_the_input_twice(tmp_path: Path) -> None:
    feather.write_feather(pa.table({"a": ["x", "y"], "n": [1, 2]}), tmp_path / "one.feather")
    write_lines(tmp_path / "two.jsonl", {"a": "z", "n": 2.5}, {"a": "w", "tags": ["p"]})
    (tmp_path / "three.csv").write_text("a,n\nv,7\n", encoding="utf-8")
    sql = "select i.a, n::double as n, tags from input i join (select max(a) as a from input) m on i.a <= m.a"
    assert query(tmp_path, sql, "one.feather", "two.jsonl", "three.csv") == [
        {"a": "x", "n": 1.0, "tags": None},
        {"a": "y", "n": 2.0, "tags": None},
        {"a": "z", "n": 2.5, "tags": None},
        {"a": "w", "n": None, "tags": ["p"]},
        {"a": "v", "n": 7.0, "tags": None},
    ]


@pytest.mark.parametrize(
    ("kind", "long"), [(pa.int64(), 2**53 + 1), (pa.int64(), -(2**60) - 1), (pa.uint64(), 2**63 + 5)]
)
def test_whole_numbers_of_several_widths_stay_what_they_are(tmp_path: Path, kind: pa.DataType, long: int) -> None:
    feather.write_feather(pa.table({"n": pa.array([7], pa.int32())}), tmp_path / "one.feather")
    feather.write_feather(pa.table({"n": pa.array([long], kind)}), tmp_path / "two.feather")
    write_lines(tmp_path / "three.jsonl", {"n": -3})
    found = query(tmp_path, "select n::varchar as n from input", "one.feather", "two.feather", "three.jsonl")
    assert found == [{"n": "7"}, {"n": str(long)}, {"n": "-3"}]


def test_rows_that_never_reached_the_query_stand_behind_its_rows(tmp_path: Path) -> None:
    lines = [{"a": number} for number in range(1100)]
    write_lines(tmp_path / "in.jsonl", *lines[:1050], "[broken", {"a": "text"}, *lines[1050:])
    rows = query(tmp_path, "select max(a) as top from input", "in.jsonl")
    assert rows == [
        {"top": 1099},
        ("in.jsonl:1051", "in.jsonl, line 1051: broken JSON at column 2"),
        (
            "in.jsonl:1052",
            MISFIT,
        ),
    ]


def test_the_same_rows_are_the_same_file_and_others_are_another(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", {"a": 1}, {"a": 2})
    files = find_source_files(["in.jsonl"], tmp_path)
    one = query_input(files, "select a from input")
    same = query_input(files, "select a from input where a > 0")
    other = query_input(files, "select a from input where a > 1")
    assert identify_file(same, "") == identify_file(one, "") != identify_file(other, "")
    assert is_settled(one, 1_700_000_000_000_000_000)
    assert [row.origin.row for row in open_source(one, frozenset({"a"}), None).iter_rows(iter([2]))] == [2]


def test_columns_of_a_query_are_described_without_our_own(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", {"a": 1}, "broken")
    file = query_input(find_source_files(["in.jsonl"], tmp_path), "select a, a::varchar as text from input")
    assert [(column.name, column.type) for column in describe_columns(file)] == [("a", "number"), ("text", "text")]
    assert open_source(file, frozenset(), None).read_field_names() == {"a", "text"}
    (bad,) = [row for row in open_source(file, frozenset({"a"}), "a").iter_rows() if isinstance(row, UnreadableRow)]
    assert bad.origin.document_id == "in.jsonl:2"


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("select nothing from input", 'Referenced column "nothing" not found'),
        ("select * from other", "other does not exist"),
        ("select * from read_csv('/etc/passwd')", "it may read nothing but the input"),
        ("select * from '/etc/passwd'", "does not exist"),
        ("select a::int from input", "try_cast makes null|while its rows were read"),
        ("copy input to 'x.csv'", "expected one SELECT statement, found another"),
        ("select 1; select 2", "one SELECT statement"),
        ("selec", "syntax error"),
        ("attach 'x.duckdb'", "expected one SELECT statement, found another"),
        ("select a as bulkinfer_reason from input", "bulkinfer's own"),
        ("select a, 1 as a from input", "two columns are named a; give one of them another name with AS"),
    ],
)
@pytest.mark.parametrize("name", ["in.jsonl", "in.parquet"])
def test_what_is_wrong_with_a_query_is_told_without_values(tmp_path: Path, name: str, sql: str, words: str) -> None:
    write_lines(tmp_path / "in.jsonl", {"a": "secret"})
    pq.write_table(pa.table({"a": ["secret"]}), tmp_path / "in.parquet")
    with pytest.raises(JobError, match=f"^input.sql: .*({words})") as caught:
        query(tmp_path, sql, name)
    assert "secret" not in str(caught.value)


def test_a_broken_parquet_file_is_told_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "in.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match=r"^in\.parquet: "):
        query(tmp_path, "select 1 as a from input", "in.parquet")
