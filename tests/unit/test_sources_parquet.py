"""Parquet: every type as a JSON value, and what is the fault of a row, of a column or of the file."""

import os
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from bulkinfer.errors import InputError
from bulkinfer.records import Document, Origin, UnreadableRow
from bulkinfer.sources import Source, find_source_files, open_source


def open_file(path: Path, *fields: str, id_field: str | None = None) -> Source:
    (file,) = find_source_files([path.name], path.parent)
    return open_source(file, frozenset(fields), id_field)


def read_values(folder: Path, array: pa.Array) -> list[object]:
    """Write a column and read it back; None for a row without the field."""
    pq.write_table(pa.table({"a": array}), folder / "in.parquet")
    rows = list(open_file(folder / "in.parquet", "a").iter_rows())
    return [row.fields["a"] if isinstance(row, Document) else row.reason for row in rows]


NOON = datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC)
LOCAL = NOON.replace(tzinfo=None)
STRINGS = ["one", None, "", "zwei \u00fc \N{WAVING HAND SIGN} \0"]


@pytest.mark.parametrize(
    ("array", "values"),
    [
        (pa.array(STRINGS), STRINGS),
        (pa.array(STRINGS, pa.large_string()), STRINGS),
        (pa.array(STRINGS, pa.string_view()), STRINGS),
        (pa.array(STRINGS).dictionary_encode(), STRINGS),
        (pa.array([b"caf\xc3\xa9", None], pa.binary()), ["caf\u00e9", None]),
        (pa.array([b"abc"], pa.large_binary()), ["abc"]),
        (pa.array([b"abc"], pa.binary(3)), ["abc"]),
        (pa.array([b"abc"], pa.binary_view()), ["abc"]),
        (pa.array([True, None, False]), [True, None, False]),
        (pa.array([2**64 - 1, None], pa.uint64()), [18446744073709551615, None]),
        (pa.array([-(2**63)], pa.int64()), [-9223372036854775808]),
        (pa.array([None, None], pa.null()), [None, None]),
        (pa.array([0.1, float("nan"), float("inf"), -float("inf"), None]), [0.1, None, None, None, None]),
        (
            pa.array([4.99, 0.1, 16777216.0, 3.4028235e38, float("nan"), 0.0], pa.float32()),
            [4.99, 0.1, 16777216.0, 3.4028235e38, None, 0.0],
        ),
        (pa.array([4.99, 65504.0, None], pa.float16()), [4.99, 65500.0, None]),
        (
            pa.array([Decimal("12.30"), Decimal("0E-10"), None], pa.decimal128(20, 10)),
            ["12.3000000000", "0.0000000000", None],
        ),
        (
            pa.array([Decimal("1234567890123456789012345678901234567890.5")], pa.decimal256(50, 1)),
            ["1234567890123456789012345678901234567890.5"],
        ),
        (
            pa.array([date(2026, 3, 1), date(1, 1, 1), date(9999, 12, 31), None]),
            ["2026-03-01", "0001-01-01", "9999-12-31", None],
        ),
        (pa.array([date(2026, 3, 1)], pa.date64()), ["2026-03-01"]),
        (pa.array([time(23, 5, 9)], pa.time32("s")), ["23:05:09"]),
        (pa.array([time(23, 5, 9, 1000)], pa.time32("ms")), ["23:05:09.001000"]),
        (pa.array([1], pa.time64("ns")), ["00:00:00.000000001"]),
        (pa.array([LOCAL, None], pa.timestamp("ms")), ["2026-03-01T12:00:05", None]),
        (pa.array([LOCAL.replace(microsecond=500_000)], pa.timestamp("ms")), ["2026-03-01T12:00:05.500000"]),
        (pa.array([LOCAL.replace(microsecond=7)], pa.timestamp("us")), ["2026-03-01T12:00:05.000007"]),
        (pa.array([-1], pa.timestamp("ns")), ["1969-12-31T23:59:59.999999999"]),
        (pa.array([NOON], pa.timestamp("us", tz="UTC")), ["2026-03-01T12:00:05+00:00"]),
        (
            pa.array([NOON.astimezone(ZoneInfo("UTC"))], pa.timestamp("ns", tz="Europe/Berlin")),
            ["2026-03-01T12:00:05+00:00"],
        ),
        (pa.array([timedelta(minutes=2), timedelta(milliseconds=1500)], pa.duration("ms")), [120, 1.5]),
        (pa.array([UUID(int=1).bytes], pa.uuid()), ["00000000-0000-0000-0000-000000000001"]),
        (pa.array([["a", None], None, []]), [["a", None], None, []]),
        (pa.array([[date(2026, 3, 1)]], pa.list_(pa.date32())), [["2026-03-01"]]),
        (pa.array([[1.5, float("nan")]], pa.large_list(pa.float64())), [[1.5, None]]),
        (pa.array([["a", "b"]], pa.list_(pa.string(), 2)), [["a", "b"]]),
        (
            pa.array(
                [{"x": "a", "y": {"z": LOCAL}}, None],
                pa.struct({"x": pa.string(), "y": pa.struct({"z": pa.timestamp("ns")})}),
            ),
            [{"x": "a", "y": {"z": "2026-03-01T12:00:05"}}, None],
        ),
        (pa.array([{"x": "a"}], pa.struct({"x": pa.dictionary(pa.int32(), pa.string())})), [{"x": "a"}]),
        (pa.array([[("k", 1), ("l", None)]], pa.map_(pa.string(), pa.int64())), [{"k": 1, "l": None}]),
        (pa.array([[(1, Decimal("2.5"))]], pa.map_(pa.int64(), pa.decimal128(5, 1))), [[[1, "2.5"]]]),
        (pa.array([[]], pa.map_(pa.string(), pa.int64())), [{}]),
    ],
    ids=str,
)
def test_every_type_becomes_a_json_value(tmp_path: Path, array: pa.Array, values: list[object]) -> None:
    found = read_values(tmp_path, array)
    assert found == values
    assert list(map(type, found)) == list(map(type, values))


def make_text(values: list[bytes | None], text_type: pa.DataType) -> pa.Array:
    """Bytes that claim to be text, as careless writers leave them."""
    array = pa.array(values, pa.binary() if text_type == pa.string() else pa.large_binary())
    return pa.Array.from_buffers(text_type, len(array), array.buffers())


BAD_TEXT: list[bytes | None] = [b"good", None, b"bad \xff", b"good too"]
NOT_UTF8 = "in.parquet, row 3: column 'a' holds bytes that are not UTF-8"


@pytest.mark.parametrize(
    ("array", "values"),
    [
        (make_text(BAD_TEXT, pa.string()), ["good", None, NOT_UTF8, "good too"]),
        (make_text(BAD_TEXT, pa.large_string()), ["good", None, NOT_UTF8, "good too"]),
        (pa.array(BAD_TEXT, pa.binary()), ["good", None, NOT_UTF8, "good too"]),
        (
            pa.ListArray.from_arrays([0, 1, 2, 4], make_text([b"x", b"y", b"z", b"\xff"], pa.string())),
            [["x"], ["y"], NOT_UTF8],
        ),
        (
            pa.StructArray.from_arrays([make_text([b"x", b"y", b"\xff"], pa.string())], ["s"]),
            [{"s": "x"}, {"s": "y"}, NOT_UTF8],
        ),
        (
            pa.array([0, 2**31 - 1], pa.date32()),
            ["1970-01-01", "in.parquet, row 2: column 'a' holds a day outside the years 1 to 9999"],
        ),
        (
            pa.array([2**60], pa.timestamp("ms")),
            ["in.parquet, row 1: column 'a' holds a day outside the years 1 to 9999"],
        ),
    ],
)
def test_a_value_that_is_no_text_makes_its_own_row_unreadable(
    tmp_path: Path, array: pa.Array, values: list[object]
) -> None:
    assert read_values(tmp_path, array) == values


def read_digests(folder: Path, table: pa.Table, *fields: str) -> list[bytes]:
    pq.write_table(table, folder / "in.parquet")
    rows = open_file(folder / "in.parquet", *fields).iter_rows()
    return [row.digest for row in rows if isinstance(row, UnreadableRow)]


def test_the_digest_of_an_unreadable_row_is_that_of_its_needed_values(tmp_path: Path) -> None:
    bad, other = [b"\xff", b"\xff", b"\xfe"], ["x", "y", "x"]
    one, two, three = read_digests(tmp_path, pa.table({"a": bad, "b": other}), "a")
    assert len(one) == 16
    assert one == two != three
    one, two, three = read_digests(tmp_path, pa.table({"a": bad, "b": other}), "a", "b")
    assert len({one, two, three}) == 3
    moved = pa.table({"b": ["z", "x"], "c": [1, 2], "a": pa.array([b"fine", b"\xff"], pa.binary())})
    assert read_digests(tmp_path, moved, "a", "b") == [one]


def test_only_needed_columns_are_kept_and_absent_ones_are_absent(tmp_path: Path) -> None:
    pq.write_table(pa.table({"key": [5, None], "a": ["x", None], "c": [1, 2]}), tmp_path / "in.pq")
    source = open_file(tmp_path / "in.pq", "a", "gone", id_field="key")
    assert list(source.iter_rows()) == [
        Document(Origin("in.pq", 1, "5"), {"a": "x"}),
        Document(Origin("in.pq", 2, "in.pq:2"), {"a": None}),
    ]
    assert source.read_field_names() == {"key", "a", "c"}


def test_rows_without_a_needed_column_are_still_documents(tmp_path: Path) -> None:
    pq.write_table(pa.table({"c": range(3000)}), tmp_path / "in.pq")
    rows = list(open_file(tmp_path / "in.pq", "gone", id_field="gone too").iter_rows())
    assert len(rows) == 3000
    assert rows[2999] == Document(Origin("in.pq", 3000, "in.pq:3000"), {})


def test_rows_are_numbered_over_row_groups_and_batches(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": range(5000)}), tmp_path / "in.pq", row_group_size=1700)
    rows = list(open_file(tmp_path / "in.pq", "a").iter_rows())
    assert [(row.origin.row - 1, row.fields["a"]) for row in rows if isinstance(row, Document)] == [
        (number, number) for number in range(5000)
    ]


def test_a_name_with_a_dot_is_a_column_and_a_struct_is_taken_whole(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a.b": [1], "s": [{"x": 1, "y": "z"}], "a": [2]}), tmp_path / "in.pq")
    (row,) = open_file(tmp_path / "in.pq", "a.b", "s", "a").iter_rows()
    assert isinstance(row, Document)
    assert row.fields == {"a.b": 1, "s": {"x": 1, "y": "z"}, "a": 2}


def test_an_empty_table_has_no_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.string())}), tmp_path / "in.pq")
    source = open_file(tmp_path / "in.pq", "a")
    assert (list(source.iter_rows()), source.bytes_read()) == ([], 0)


def test_progress_is_a_share_of_the_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": range(4096)}), tmp_path / "in.pq")
    source = open_file(tmp_path / "in.pq", "a")
    readings = [source.bytes_read(), *(source.bytes_read() for _ in source.iter_rows())]
    assert readings == sorted(readings)
    assert readings[0] == 0
    assert readings[1] == (tmp_path / "in.pq").stat().st_size // 8
    assert readings[-1] == (tmp_path / "in.pq").stat().st_size


def make_file(num_rows: int = 4000) -> bytes:
    sink = pa.BufferOutputStream()
    texts = [f"{number:0100d}" for number in range(num_rows)]
    pq.write_table(pa.table({"a": texts}), sink, row_group_size=1000, compression="zstd", use_dictionary=False)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a Parquet file: it is empty"),
        (b"PA", "not a Parquet file: it does not begin as Parquet does"),
        (b"ticket_id,body\n1,hello\n", "not a Parquet file: it does not begin as Parquet does"),
        (b"PAR1", "the footer of the Parquet file cannot be read"),
        (make_file()[:-1000], "the Parquet file is cut off at"),
        (make_file()[:-200] + b"\xff" * 192 + b"PAR1", "the footer of the Parquet file cannot be read"),
        (b"PARE" + b"\0" * 100 + b"PARE", "the Parquet file is encrypted"),
    ],
)
def test_a_file_that_is_not_parquet_is_told_at_once(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "in.parquet").write_bytes(content)
    with pytest.raises(InputError, match=rf"^in\.parquet: {words}"):
        open_file(tmp_path / "in.parquet", "a")


def test_a_damaged_row_group_gives_the_rows_before_it(tmp_path: Path) -> None:
    content = bytearray(make_file())
    path = tmp_path / "in.parquet"
    path.write_bytes(content)
    begin = pq.read_metadata(path).row_group(2).column(0).data_page_offset
    content[begin + 40 : begin + 1000] = b"\xff" * 960
    path.write_bytes(content)
    rows = open_file(path, "a").iter_rows()
    found = [next(rows).origin.row for _ in range(2000)]
    assert found == list(range(1, 2001))
    with pytest.raises(InputError, match=r"^in\.parquet: rows 2001 to 2512, in row group 3, cannot be read"):
        next(rows)


def test_a_column_without_json_values_and_a_double_name_are_told(tmp_path: Path) -> None:
    twins = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"])
    pq.write_table(pa.table([pa.array([1]), pa.array([2]), twins], ["a", "a", "b"]), tmp_path / "in.pq")
    with pytest.raises(InputError, match=r"^in\.pq: two columns are named 'a'"):
        open_file(tmp_path / "in.pq", "a")
    with pytest.raises(InputError, match=r"^in\.pq: column 'b' has the type .* which has no JSON value"):
        open_file(tmp_path / "in.pq", "b")
    assert len(list(open_file(tmp_path / "in.pq", "c").iter_rows())) == 1


def truncate(path: Path) -> None:
    os.truncate(path, 20_000)


def rewrite(path: Path) -> None:
    path.write_bytes(make_file(3000))


@pytest.mark.parametrize("change", [truncate, rewrite, Path.unlink])
def test_a_file_that_changes_is_told(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = tmp_path / "in.parquet"
    path.write_bytes(make_file(200_000))
    source = open_file(path, "a")
    rows = source.iter_rows()
    next(rows)
    change(path)
    with pytest.raises(InputError, match=r"^in\.parquet: the file (changed|could be read)"):
        list(rows)
    with pytest.raises(InputError, match=r"^in\.parquet: the file (changed|could be read)"):
        next(source.iter_rows())
