"""Conditions: what is one, what they may name, and which rows they hold for."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from bulkinfer.errors import JobError
from bulkinfer.sql import CannotMatch, Condition, Judge, ParquetFile, iter_matching_parquet

TABLE = pa.table({"a": ["x", "5", None], "n": [1, 2, 3]})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = ", "syntax error"),
        (" ", "found nothing"),
        ("a = 1; drop table input", "more than one|Only SELECT|syntax error"),
        ("1 = 1) or (1 = 1", None),
        ("a = 1) group by (a", "more than one condition"),
        ("a = 1) order by (a", "more than one condition"),
        ("1 = 1) union select 1 from other where (1 = 1", "more than one condition"),
        ("a in (select a from input)", "a subquery .* input.sql"),
        ("exists (from read_csv('/etc/passwd'))", "a subquery"),
        ("#1 = 3", "its place, such as #1, is another one in each format"),
        ("random() < 0.1", r"random\(\) would choose other rows each time; input.sample"),
    ],
)
def test_what_is_a_condition(text: str, words: str | None) -> None:
    if words is None:
        Condition.parse(text)
        return
    with pytest.raises(JobError, match=f"^input.where: .*({words})"):
        Condition.parse(text)


@pytest.mark.parametrize(
    ("text", "names", "is_stable"),
    [
        ("a = 'x' -- comment", ("a",), True),
        ("input.a = 1 and \"odd name\" is null and meta.lang = 'en'", ("a", "odd name", "meta"), True),
        ("len(list_filter(tags, lambda t: t = n)) > 0", ("tags", "t", "n"), True),
        ("created > now() - interval 7 day", ("created",), False),
        ("created > current_date", ("created",), False),
    ],
)
def test_what_it_names(text: str, names: tuple[str, ...], is_stable: bool) -> None:
    condition = Condition.parse(text)
    assert (condition.names, condition.is_stable) == (names, is_stable)


def test_columns_are_found_in_upper_and_lower_case() -> None:
    condition = Condition.parse("price > 1 and LANG = 'en' and gone is null")
    assert condition.find_columns(["Price", "lang", "other"]) == (["Price", "lang"], ["gone"])
    assert condition.find_columns(["PRICE", "price"]) == (["price"], ["LANG", "gone"])
    assert Condition.parse("columns(*) is null").find_columns(["a", "b"]) == (["a", "b"], [])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("b = 1", 'Referenced column "b" not found'),
        ("nosuch(a)", "nosuch does not exist"),
        ("a > 3", "an explicit cast is required"),
        ("sum(n) > 1", "WHERE clause cannot contain aggregates"),
        ("getenv('HOME') = 'x'", "getenv does not exist"),
        ("input is not null", "input stands for the whole row; name columns"),
    ],
)
def test_columns_that_do_not_fit_are_told(text: str, words: str) -> None:
    with pytest.raises(JobError, match=f"^input.where: .*{words}"):
        Condition.parse(text).check(TABLE.schema)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("n >= 2", {1: True, 2: True}),
        ("a = 'x'", {0: True}),
        ("a is null", {2: True}),
        ("a::int > 3", {0: False, 1: True}),
        ("a > 3", {0: False, 1: False, 2: False}),
        ("a > 3 or n = 2", {0: False, 1: True, 2: False}),
        ("n % 2 = 1 -- odd", {0: True, 2: True}),
        ("false", {}),
        ("true", {0: True, 1: True, 2: True}),
        ("columns(*) is not null", {0: True, 1: True}),
        ("columns(*)::int > 1", {1: True}),
        ("case when n > 1 and a::int > 3 then true else false end", {1: True}),
    ],
)
def test_which_rows_it_holds_for(text: str, kept: dict[int, bool]) -> None:
    with Judge(Condition.parse(text)) as judge:
        assert judge.judge(TABLE) == kept
        assert judge.judge(TABLE.slice(0, 0)) == {}


GUARDED = pa.table({"k": ["x", "5", "x", None, "1"], "g": ["no", "yes", "yes", "yes", None]})


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("g = 'yes' and k::int > 3", {1: True, 2: False}),
        ("k::int > 3 and g = 'yes'", {1: True, 2: False}),
        ("g = 'no' or k::int > 3", {0: True, 1: True, 2: False}),
        ("k::int > 3 or g <> 'yes'", {0: True, 1: True, 2: False}),
        ("not (g = 'no' or k::int > 3)", {2: False}),
        ("not (g = 'no' or k::int > 3) or g is null", {2: False, 4: True}),
        ("not (g = 'yes' and not (k::int > 3 and g = 'yes'))", {0: True, 1: True, 2: False}),
        ("case when g = 'yes' then k::int > 3 else false end", {1: True, 2: False}),
        ("(g = 'yes' and k::int > 3) is true", {0: False, 1: True, 2: False}),
        ("g like 'y%' escape '!' and k::int > 3", {1: True, 2: False}),
    ],
)
def test_a_row_is_judged_alike_whatever_stands_beside_it(text: str, kept: dict[int, bool]) -> None:
    """Where a clause cannot be evaluated, the others may still say what the row is, in any order."""
    with Judge(Condition.parse(text)) as judge:
        for first in range(GUARDED.num_rows):
            for size in range(1, GUARDED.num_rows - first + 1):
                found = judge.judge(GUARDED.slice(first, size))
                expected = {place - first: holds for place, holds in kept.items() if first <= place < first + size}
                assert found == expected, (first, size)


def test_a_column_may_have_the_name_that_numbers_rows() -> None:
    table = pa.table({"bulkinfer_row": [5, 6], "bulkinfer_row_": [7, 8]})
    with Judge(Condition.parse("bulkinfer_row = 5 and bulkinfer_row_ = 7")) as judge:
        assert judge.judge(table) == {0: True}


def test_a_value_of_a_row_is_not_in_the_message() -> None:
    with (
        Judge(Condition.parse("json_extract(a, '$.x') is not null")) as judge,
    ):
        assert judge.judge(pa.table({"a": ["secret"], "n": [1]})) == {0: False}


def test_parquet_is_matched_by_duckdb_itself_without_row_groups_that_cannot_match(tmp_path: Path) -> None:
    """The proof that they are not read: they cannot be."""
    path = tmp_path / "in [1].parquet"
    table = pa.table({"n": range(3000), "a": [f"text {number}" for number in range(3000)]})
    pq.write_table(table, path, row_group_size=1000)
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    with path.open("r+b") as file:
        file.seek(column.dictionary_page_offset or column.data_page_offset)
        file.write(b"\xff" * 64)
    condition = Condition.parse("n between 1500 and 1502 or n = 2999")
    assert list(iter_matching_parquet(ParquetFile(str(path), table.schema), condition)) == [1501, 1502, 1503, 3000]
    with pytest.raises(CannotMatch):
        list(iter_matching_parquet(ParquetFile(str(path), table.schema), Condition.parse("n % 2 = 0")))


def test_names_that_a_parquet_file_lacks_are_null(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "in.parquet")
    condition = Condition.parse("Gone is null and n > 1")
    assert list(
        iter_matching_parquet(ParquetFile(str(tmp_path / "in.parquet"), pa.schema([("n", pa.int64())])), condition)
    ) == [2]


def test_parquet_that_cannot_be_judged_row_by_row_is_given_up(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": ["1", "x"]}), tmp_path / "in.parquet")
    with pytest.raises(CannotMatch):
        list(
            iter_matching_parquet(
                ParquetFile(str(tmp_path / "in.parquet"), pa.schema([("a", pa.string())])),
                Condition.parse("a::int >= 1"),
            )
        )
