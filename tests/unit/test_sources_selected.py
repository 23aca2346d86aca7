"""Rows that a job chooses: the same of every format, with their numbers, and none lost."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyarrow import ipc
from pyarrow import parquet as pq

from bulkinfer.errors import InputError
from bulkinfer.job import InputSpec
from bulkinfer.records import Document, JsonValue, Origin, Selection, SourceFile, UnreadableRow
from bulkinfer.sources import find_source_files, keys, open_source, selected
from bulkinfer.sources.choosing import choose_rows
from bulkinfer.sources.keys import file_key, find_bar, row_keys

ROWS = [
    {"id": f"k{number}", "n": number, "lang": "de" if number % 3 else "en", "text": f"text {number % 50}"}
    for number in range(5000)
]
NAMES = ["in.parquet", "in.arrow", "in.jsonl", "in.csv"]
each_format = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(autouse=True)
def searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let DuckDB search Parquet files however small they are, as it does those of a megabyte and more."""
    monkeypatch.setattr(selected, "_MIN_SEARCHED_BYTES", 0)


def write(path: Path, rows: Sequence[Mapping[str, object]]) -> SourceFile:
    match path.suffix:
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=1000)
        case ".arrow":
            table = pa.Table.from_pylist(list(rows))
            with ipc.new_file(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=700)
        case ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        case _:
            with path.open("w", newline="", encoding="utf-8") as stream:
                table_writer = csv.DictWriter(stream, list(rows[0]))
                table_writer.writeheader()
                table_writer.writerows(rows)
    (file,) = find_source_files([path.name], path.parent)
    return file


def read(
    file: SourceFile, selection: Selection | None, wanted: Iterator[int] | None = None
) -> list[Document | UnreadableRow]:
    return list(open_source(replace(file, selection=selection), frozenset({"text"}), "id").iter_rows(wanted))


@each_format
@pytest.mark.parametrize(
    "where", ["n::int % 7 = 0 and lang = 'en'", "LANG <> 'en' and n::int > 4990", "n::int < 0", "n::int >= 0"]
)
def test_a_condition_chooses_the_same_rows_of_every_format(name: str, where: str, tmp_path: Path) -> None:
    file = write(tmp_path / name, ROWS)
    rows = read(file, None)
    holds = {
        "n::int % 7 = 0 and lang = 'en'": [number for number in range(5000) if number % 21 == 0],
        "LANG <> 'en' and n::int > 4990": [number for number in range(4991, 5000) if number % 3],
        "n::int < 0": [],
        "n::int >= 0": [*range(5000)],
    }[where]
    assert read(file, Selection(where=where)) == [rows[number] for number in holds]
    assert all(row.fields.keys() == {"text"} for row in rows if isinstance(row, Document))


@pytest.mark.parametrize("name", ["parquet", "arrow", "jsonl", "csv"])
def test_many_small_files_are_judged_in_one_database(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    opened = []
    connect = duckdb.connect

    def count(*arguments: Any, **options: Any) -> duckdb.DuckDBPyConnection:  # noqa: ANN401 - as they come
        opened.append(arguments)
        return connect(*arguments, **options)

    monkeypatch.setattr(duckdb, "connect", count)
    files = [write(tmp_path / f"{number}.{name}", ROWS[number : number + 3]) for number in range(20)]
    found = [row.origin.document_id for file in files for row in read(file, Selection(where="n::int % 20 = 19"))]
    assert found == ["k19"] * 3
    assert len(opened) <= 1


@each_format
@pytest.mark.parametrize("where", ["true", "''", "false"])
def test_a_condition_that_names_no_column(name: str, where: str, tmp_path: Path) -> None:
    rows = read(write(tmp_path / name, ROWS), Selection(where=where))
    assert len(rows) == (0 if where == "false" else 5000)
    assert any(isinstance(row, UnreadableRow) for row in rows) is (where == "''")


@each_format
@pytest.mark.parametrize(
    "selection",
    [
        Selection(where="n::int % 7 = 0"),
        Selection(sample_bar=2**60),
        Selection(last_row=777),
        Selection("n::int % 7 = 0", sample_bar=2**62, sample_seed=5, last_row=4000),
        Selection(sample_bar=0),
    ],
)
def test_wanted_rows_of_a_selection_are_the_same_as_among_all(name: str, selection: Selection, tmp_path: Path) -> None:
    file = write(tmp_path / name, ROWS)
    chosen = read(file, selection)
    numbers = [row.origin.row for row in chosen]
    for wanted in (numbers[::3], numbers[:1], numbers[-2:], [*range(1, 6000)]):
        expected = [row for row in chosen if row.origin.row in set(wanted)]
        assert read(file, selection, iter(wanted)) == expected


@each_format
def test_a_sample_is_the_same_each_time_and_of_another_seed_another(name: str, tmp_path: Path) -> None:
    file = write(tmp_path / name, ROWS)
    drawn = [row.origin.row for row in read(file, Selection(sample_bar=2**64 // 10))]
    assert drawn == [row.origin.row for row in read(file, Selection(sample_bar=2**64 // 10))]
    assert 400 < len(drawn) < 600
    other = [row.origin.row for row in read(file, Selection(sample_bar=2**64 // 10, sample_seed=1))]
    assert len(set(drawn) & set(other)) < 100


def test_keys_are_spread_evenly_and_differ_by_file_and_seed() -> None:
    keys = row_keys(file_key("a", 0), range(1, 100_001))
    assert len(set(keys.tolist())) == 100_000
    shares = [int((keys < (part << 60)).sum()) / 100_000 for part in range(1, 16)]
    assert max(abs(share - part / 16) for part, share in enumerate(shares, 1)) < 0.01
    assert keys[0] != row_keys(file_key("b", 0), [1])[0]
    assert keys[0] != row_keys(file_key("a", 1), [1])[0]
    assert keys[41] == row_keys(file_key("a", 0), [42])[0]


@pytest.mark.parametrize("max_held", [1 << 22, 7])
@pytest.mark.parametrize("size", [1, 8, 999, 50_000, 99_999, 100_000, 200_000])
def test_the_bar_of_a_number_of_rows_is_the_key_of_the_last(
    monkeypatch: pytest.MonkeyPatch, size: int, max_held: int
) -> None:
    """Whether all keys that count are held, or the keys are read twice because they are too many."""
    monkeypatch.setattr(keys, "MAX_HELD_KEYS", max_held)
    found = row_keys(file_key("a", 0), range(1, 100_001))
    blocks = [found[start : start + 777] for start in range(0, len(found), 777)]
    assert find_bar(lambda: blocks, size) == (sorted(found.tolist())[size - 1] if size < 100_000 else None)


@each_format
def test_a_row_that_cannot_be_judged_fails_and_the_others_are_judged(name: str, tmp_path: Path) -> None:
    rows = [{"id": str(number), "text": f"t{number}", "price": "x" if number == 5 else number} for number in range(10)]
    if name != "in.jsonl":
        rows = [{**row, "price": str(row["price"])} for row in rows]
    file = write(tmp_path / name, rows)
    found = read(file, Selection(where="price::int >= 3"))
    assert [row.origin.document_id for row in found] == ["3", "4", "5", "6", "7", "8", "9"]
    (fault,) = [row for row in found if isinstance(row, UnreadableRow)]
    assert fault.reason.endswith("input.where cannot be evaluated for it")
    assert "x" not in fault.reason.replace("input.where", "").partition(": ")[2].replace("expected", "")


@each_format
@pytest.mark.parametrize("where", ["lang = 'en' and price::int >= 3", "price::int >= 3 and lang = 'en'"])
def test_a_row_is_judged_alike_in_every_format_and_whatever_is_read_beside_it(
    name: str, where: str, tmp_path: Path
) -> None:
    """German rows need no price; of the English ones each third has none that is a number."""
    rows = [
        {"id": f"k{n}", "text": f"t{n}", "lang": "de" if n % 2 else "en", "price": "x" if n % 3 == 0 else str(n)}
        for n in range(2500)
    ]
    file = write(tmp_path / name, rows)
    chosen = read(file, Selection(where=where))
    lines = {row.origin.document_id: row.origin.row for row in read(file, None)}
    assert [row.origin.row for row in chosen] == [
        lines[f"k{n}"] for n in range(2500) if n % 2 == 0 and (n % 3 == 0 or n >= 3)
    ]
    assert [isinstance(row, UnreadableRow) for row in chosen[:4]] == [True, False, True, False]
    for part in (chosen[::5], chosen[-1:], [row for row in chosen if isinstance(row, UnreadableRow)]):
        assert read(file, Selection(where=where), iter([row.origin.row for row in part])) == part


@pytest.mark.parametrize("name", ["in.jsonl", "in.csv"])
def test_a_row_that_cannot_be_read_is_kept(name: str, tmp_path: Path) -> None:
    file = write(tmp_path / name, ROWS[:4])
    path = tmp_path / name
    path.write_bytes(path.read_bytes() + b'"broken\n')
    (file,) = find_source_files([name], tmp_path)
    (row,) = read(file, Selection(where="n::int < 0"))
    assert isinstance(row, UnreadableRow)


def test_json_values_of_many_kinds(tmp_path: Path) -> None:
    lines = [
        {"id": 1, "v": 1, "meta": {"lang": "en"}, "tags": ["a", "b"], "ok": True},
        {"id": 2, "v": 2.5, "meta": {"lang": "de"}, "tags": [], "ok": False},
        {"id": 3, "v": None, "meta": None, "tags": ["b"]},
        {"id": 4, "v": 9007199254740993, "tags": ["c", 1]},
        {"id": 5},
    ]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (file,) = find_source_files(["in.jsonl"], tmp_path)

    def ids(where: str) -> list[str]:
        return [row.origin.document_id for row in read(file, Selection(where=where))]

    assert ids("v > 2") == ["2", "4"]
    assert ids("v is null") == ["3", "5"]
    assert ids("meta->>'lang' = 'en'") == ["1"]
    assert ids("ok") == ["1"]
    assert ids("ok is not false") == ["1", "3", "4", "5"]


def test_what_is_judged_of_a_row_does_not_depend_on_those_read_beside_it(tmp_path: Path) -> None:
    """The first thousand rows say that v is a whole number; later ones have others."""
    lines: list[dict[str, object]] = [{"id": number, "v": number} for number in range(2000)]
    lines[1500:1503] = [{"id": 1500, "v": 1500.5}, {"id": 1501, "v": "text"}, {"id": 1502, "v": True}]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (file,) = find_source_files(["in.jsonl"], tmp_path)
    selection = Selection(where="v between 1499 and 1504")
    chosen = read(file, selection)
    for row in chosen:
        assert read(file, selection, iter([row.origin.row])) == [row]
    assert [row.origin.row for row in chosen] == [1500, 1501, 1502, 1504, 1505]
    assert isinstance(chosen[2], UnreadableRow), "a text is not between two numbers"


@pytest.mark.parametrize("min_bytes", [0, 1 << 20])
def test_types_are_the_same_whether_duckdb_reads_a_file_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, min_bytes: int
) -> None:
    monkeypatch.setattr(selected, "_MIN_SEARCHED_BYTES", min_bytes)
    table = pa.table(
        {
            "id": ["k0", "k1"],
            "text": ["x", "y"],
            "took": pa.array([5, 7_000_000], pa.duration("us")),
            "moment": pa.array([1, 86_400_000], pa.timestamp("ms")),
            "kind": pa.array(["b", "a"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    (file,) = find_source_files(["in.parquet"], tmp_path)
    for where in (
        "took::varchar = '00:00:07'",
        "took > interval 1 second",
        "moment >= '1970-01-02'",
        "moment::varchar like '1970-01-02 %'",
        "kind < 'b'",
    ):
        assert [row.origin.row for row in read(file, Selection(where=where))] == [2], where


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_column_that_is_there_twice_cannot_be_named(tmp_path: Path, ending: str) -> None:
    table = pa.Table.from_arrays([pa.array([1, 2]), pa.array([2, 1]), pa.array(["a", "b"])], ["n", "n", "text"])
    path = tmp_path / f"in.{ending}"
    if ending == "parquet":
        pq.write_table(table, path)
    else:
        with ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    (file,) = find_source_files([path.name], tmp_path)
    with pytest.raises(InputError, match=r"two columns are named 'n'\. Rename one of them"):
        choose_rows([file], InputSpec(path=("in",), where="n = 1"))
    (chosen,) = choose_rows([file], InputSpec(path=("in",), where="text = 'b'"))
    assert [row.origin.row for row in read(chosen, chosen.selection)] == [2]


def test_rows_of_nested_lists_are_judged_a_few_at_a_time() -> None:
    """So that memory is bounded, wherever in a row its texts are."""
    deep: JsonValue = "x" * 100_000
    for _ in range(2000):
        deep = [deep]
    rows: list[Document | UnreadableRow] = [Document(Origin("in", n, ""), {"deep": deep}) for n in range(100)]
    assert max(len(block) for block in selected.iter_blocks(iter(rows))) < 45


def test_the_name_of_a_folder_does_not_stand_for_a_column(tmp_path: Path) -> None:
    folder = tmp_path / "year=2024"
    folder.mkdir()
    file = write(folder / "in.parquet", [{"id": f"k{year}", "year": year, "text": "x"} for year in (2001, 2024)])
    assert [row.origin.document_id for row in read(file, Selection(where="year = 2024"))] == ["k2024"]


def test_texts_of_a_mixed_column_are_judged_as_they_stand(tmp_path: Path) -> None:
    file = write(
        tmp_path / "in.jsonl", [{"id": f"k{n}", "c": c, "text": "x"} for n, c in enumerate(["x", 1, {"a": 2}])]
    )
    assert [row.origin.document_id for row in read(file, Selection(where="c = 'x'"))] == ["k0"]
    assert [row.origin.document_id for row in read(file, Selection(where="c = '1'"))] == ["k1"]


def test_a_whole_number_is_not_rounded_where_others_are_not_whole(tmp_path: Path) -> None:
    rows = [{"id": f"k{n}", "n": number, "text": "x"} for n, number in enumerate([2**53 + 1, 1.5])]
    file = write(tmp_path / "in.jsonl", rows)
    assert read(file, Selection(where=f"n = {2**53}")) == []
    assert [row.origin.document_id for row in read(file, Selection(where=f"n = {2**53 + 1}"))] == ["k0"]
