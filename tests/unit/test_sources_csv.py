"""CSV and TSV: what is a row, what is none, what is unreadable, and what is the fault of the file."""

import csv
import gzip
import io
import tempfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from bulkinfer.errors import InputError
from bulkinfer.records import PLAIN_CSV, CsvDialect, Document, Origin, UnreadableRow
from bulkinfer.sources import Source, find_source_files, lines, open_source
from bulkinfer.sources.formats import FormatChoice


def open_file(
    path: Path, *fields: str, id_field: str | None = None, csv: CsvDialect = PLAIN_CSV, encoding: str | None = None
) -> Source:
    (file,) = find_source_files([path.name], path.parent, FormatChoice(csv=csv, csv_encoding=encoding))
    return open_source(file, frozenset(fields) or None, id_field)


def read(
    folder: Path, content: bytes, *fields: str, csv: CsvDialect = PLAIN_CSV, encoding: str | None = None
) -> list[Document | UnreadableRow]:
    path = folder / "in.csv"
    path.write_bytes(content)
    return list(open_file(path, *fields, csv=csv, encoding=encoding).iter_rows())


def tell(rows: list[Document | UnreadableRow]) -> list[tuple[int, object]]:
    """Row numbers, with the fields or with what is wrong."""
    return [
        (row.origin.row, dict(row.fields) if isinstance(row, Document) else row.reason.partition(": ")[2])
        for row in rows
    ]


def test_values_are_texts_and_only_the_needed_are_kept(tmp_path: Path) -> None:
    assert read(tmp_path, b"a,b,c\n1,,x\n", "a", "b", "gone") == [
        Document(Origin("in.csv", 2, "in.csv:2"), {"a": "1", "b": ""})
    ]


def test_the_id_column_names_the_document_unless_it_is_empty(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(b"key,a\nx-1,1\n,2\n")
    rows = list(open_file(tmp_path / "in.csv", "a", id_field="key").iter_rows())
    assert [row.origin.document_id for row in rows] == ["x-1", "in.csv:3"]
    assert [row.fields for row in rows if isinstance(row, Document)] == [{"a": "1"}, {"a": "2"}]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"a,b\n", []),
        (b"a,b", []),
        (b"\xef\xbb\xbfa,b\r\n1,2\r\n", [(2, {"a": "1", "b": "2"})]),
        (b"a,b\r1,2\r3,4", [(2, {"a": "1", "b": "2"}), (3, {"a": "3", "b": "4"})]),
        (b"a,b\n\n1,2\n  \n\n3,4\n", [(3, {"a": "1", "b": "2"}), (6, {"a": "3", "b": "4"})]),
        (b'a,b\n"x\ny","z"\n3,4\n', [(2, {"a": "x\ny", "b": "z"}), (4, {"a": "3", "b": "4"})]),
        (b'a,b\n"say ""hi""",2\n', [(2, {"a": 'say "hi"', "b": "2"})]),
        (b'a,b\nx"y,2\n', [(2, {"a": 'x"y', "b": "2"})]),
        (b'a\n""\nx\n', [(2, {"a": ""}), (3, {"a": "x"})]),
        (b"a,,b\n1,2,3\n", [(2, {"a": "1", "column_2": "2", "b": "3"})]),
        (b"a;b\n1,5;2\n2,5;3\n", [(2, {"a": "1,5", "b": "2"}), (3, {"a": "2,5", "b": "3"})]),
        (b"a|b\n1|2\n", [(2, {"a": "1", "b": "2"})]),
        ("a,b\nü,\U0001f419\n".encode("utf-16"), [(2, {"a": "ü", "b": "\U0001f419"})]),
        ("a,b\nü,2\n".encode("utf-16-be"), [(2, {"a": "ü", "b": "2"})]),
        ("a,b\nü,2\n".encode("utf-32"), [(2, {"a": "ü", "b": "2"})]),
    ],
)
def test_what_is_a_row(tmp_path: Path, content: bytes, expected: list[tuple[int, object]]) -> None:
    assert tell(read(tmp_path, content)) == expected


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"1", "1 value where the header has 2"),
        (b"1,2,3", "3 values where the header has 2"),
        (b'"1,2', "a quote that nothing closes, or with more behind it before the next delimiter"),
        (b'"1"x,2', "a quote that nothing closes, or with more behind it before the next delimiter"),
        (b"caf\xe9,2", "bytes that are no text in the file's encoding; see input.csv.encoding"),
    ],
)
def test_a_bad_row_is_one_failure_and_those_around_it_are_read(tmp_path: Path, line: bytes, reason: str) -> None:
    rows = read(tmp_path, b"a,b\n1,2\n" + line + b'\n3,4\n"5\n6",7\n')
    assert tell(rows) == [
        (2, {"a": "1", "b": "2"}),
        (3, reason),
        (4, {"a": "3", "b": "4"}),
        (5, {"a": "5\n6", "b": "7"}),
    ]
    bad = rows[1]
    assert isinstance(bad, UnreadableRow)
    assert bad.reason.startswith("in.csv, line 3: ")
    assert len(bad.digest) == 16


def test_a_row_of_several_lines_with_a_value_too_many_is_one_failure(tmp_path: Path) -> None:
    assert tell(read(tmp_path, b'a,b\n"x\ny",1,2\n3,4\n')) == [
        (2, "3 values where the header has 2"),
        (4, {"a": "3", "b": "4"}),
    ]


def test_every_line_after_an_open_quote_is_read_again(tmp_path: Path) -> None:
    body = "".join(f'{number},"text {number}"\n' for number in range(1000))
    rows = tell(read(tmp_path, f'a,b\n"open,1\n{body}'.encode()))
    assert rows[0][0] == 2
    assert rows[1:] == [(number + 3, {"a": str(number), "b": f"text {number}"}) for number in range(1000)]


def test_a_quote_that_opens_in_every_line_costs_no_more_than_the_file(tmp_path: Path) -> None:
    rows = tell(read(tmp_path, b"a,b\n" + b'"x,y\n' * 20_000))
    assert [row for row, _ in rows] == list(range(2, 20_002))


def test_a_row_beyond_the_limit_is_one_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_CHARS", 1000)
    rows = tell(read(tmp_path, b"a,b\n1," + b"x" * 5000 + b"\n2,3\n"))
    assert [row for row, _ in rows] == [2, 3]
    assert rows[1] == (3, {"a": "2", "b": "3"})


LONG = "longer than 16,777,216 characters or 100,000 lines"
OPEN = "a quote that nothing closes"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('a,b\n1,"x\n{more}y"\n2,z\n', [(2, LONG), (14, {"a": "2", "b": "z"})]),
        ('a,b\n"x\n{more}y",1\n2,z\n', [(2, LONG), (14, {"a": "2", "b": "z"})]),
        ('a,b\n1,"x ""y""\n{more}""y"""\n2,z\n', [(2, LONG), (14, {"a": "2", "b": "z"})]),
        ('a,b\n"x\n{more}y","p\nq"\n2,z\n', [(2, LONG), (15, {"a": "2", "b": "z"})]),
        ('a,b\n1,"x\n{more}y"', [(2, LONG)]),
        ('a,b\n1,"x\n{rows}2,"z"\n3,"y\n{more}"\n', [(2, OPEN), *[(n, "row") for n in range(3, 14)], (14, LONG)]),
        ('a,b\n1,"x\n{rows}', [(2, OPEN), *[(n, "row") for n in range(3, 13)]]),
        ('a,b\n1,"x\n{rows}2,"z",3\n4,5\n', [(2, OPEN), *[(n, "row") for n in range(3, 13)], (13, "3"), (14, "row")]),
    ],
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_text_beyond_all_limits_is_one_failure_and_an_open_quote_another(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: str,
    expected: list[tuple[int, object]],
    is_packed: bool,
) -> None:
    monkeypatch.setattr(lines, "MAX_ROW_LINES", 4)
    text = content.replace("{more}", "one, two\n" * 10).replace("{rows}", "8,9\n" * 10).encode()
    path = tmp_path / ("in.csv.gz" if is_packed else "in.csv")
    path.write_bytes(gzip.compress(text) if is_packed else text)
    found = tell(list(open_file(path).iter_rows()))
    assert [number for number, _ in found] == [number for number, _ in expected]
    for (_, row), (_, hoped) in zip(found, expected, strict=True):
        if hoped == "row":
            assert isinstance(row, dict)
        elif isinstance(hoped, str):
            assert str(row).startswith(hoped)
        else:
            assert row == hoped
    wanted = [number for number, _ in expected[1:]]
    assert tell(list(open_file(path).iter_rows(iter(wanted)))) == found[1:]


@given(
    st.lists(
        st.tuples(st.text(alphabet='a",\n ', max_size=12), st.text(alphabet='a",\n ', max_size=30)),
        min_size=1,
        max_size=8,
    )
)
def test_rows_that_are_too_long_are_one_failure_each_and_the_others_are_read(rows: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "MAX_ROW_LINES", 3)
        buffer = io.StringIO()
        writer = csv.writer(buffer, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerows([("a", "b"), *rows])
        path = Path(folder) / "in.csv"
        path.write_text(buffer.getvalue(), encoding="utf-8")
        number, expected = 2, []
        for row in rows:
            num_lines = 1 + sum(value.count("\n") for value in row)
            expected.append((number, dict(zip("ab", row, strict=True)) if num_lines <= 3 else LONG))
            number += num_lines
        assert tell(list(open_file(path, csv=CsvDialect(delimiter=",")).iter_rows())) == expected


def test_other_dialects(tmp_path: Path) -> None:
    assert tell(read(tmp_path, b"a;b\n'x;y';2\n", csv=CsvDialect(quote="'"))) == [(2, {"a": "x;y", "b": "2"})]
    assert tell(read(tmp_path, b'a,b\n"x,2\n', csv=CsvDialect(quote=""))) == [(2, {"a": '"x', "b": "2"})]
    assert tell(read(tmp_path, b'a,b\n"x\\"y",2\n', csv=CsvDialect(escape="\\"))) == [(2, {"a": 'x"y', "b": "2"})]
    assert tell(read(tmp_path, b"a^b\n1^2\n", csv=CsvDialect(delimiter="^"))) == [(2, {"a": "1", "b": "2"})]
    assert tell(read(tmp_path, b"1,2\n3\n", csv=CsvDialect(columns=("a", "b")))) == [
        (1, {"a": "1", "b": "2"}),
        (2, "1 value where the header has 2"),
    ]
    assert tell(read(tmp_path, "a,b\nü,2\n".encode("latin-1"), encoding="latin-1")) == [(2, {"a": "ü", "b": "2"})]


def test_a_tab_is_what_divides_tsv(tmp_path: Path) -> None:
    (tmp_path / "in.tsv").write_bytes(b"a\tb\n1,2,3\tx,y\n")
    assert tell(list(open_file(tmp_path / "in.tsv").iter_rows())) == [(2, {"a": "1,2,3", "b": "x,y"})]


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_packed_files_are_read_and_a_cut_one_is_an_error_after_its_rows(tmp_path: Path, kind: str) -> None:
    content = b"a,b\n" + b"".join(b"%d,%d\n" % (number, hash((number, 7))) for number in range(50_000))
    path = tmp_path / f"in.csv.{kind}"
    packed = gzip.compress(content) if kind == "gz" else zstandard.compress(content)
    path.write_bytes(packed)
    source = open_file(path, "a")
    assert len(list(source.iter_rows())) == 50_000
    assert source.bytes_read() == len(packed)
    path.write_bytes(packed[: len(packed) // 2])
    rows: list[Document | UnreadableRow] = []
    with pytest.raises(InputError, match="damaged or cut off after line"):
        rows.extend(open_file(path, "a").iter_rows())
    assert 20_000 < len(rows) < 30_000


def test_wanted_rows_are_found_by_their_line(tmp_path: Path) -> None:
    rows = read(tmp_path, b'a,b\n1,2\n\n"x\ny",4\nbad\n5,6\n', "a")
    source = open_file(tmp_path / "in.csv", "a")
    assert [row.origin.row for row in rows] == [2, 4, 6, 7]
    assert list(source.iter_rows(iter([4, 6]))) == rows[1:3]
    assert list(source.iter_rows(iter([7, 900]))) == rows[3:]
    assert list(source.iter_rows(iter([]))) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'"a,b\n', "in.csv: the header line cannot be read: a quote that nothing closes"),
        (b"a," + b"x" * (17 << 20) + b"\n1,2\n", "in.csv: the header line cannot be read: longer than 16,777,216"),
        ("a,b\n1,2\n".encode("utf-16")[:-1], "in.csv: not utf-16 after line"),
        (b"PK\x03\x04\x00\x00" + b"\x00" * 20, None),
    ],
)
def test_what_is_the_fault_of_the_file(tmp_path: Path, content: bytes, words: str | None) -> None:
    if words is None:
        assert all(isinstance(row, UnreadableRow) for row in read(tmp_path, content))
        return
    with pytest.raises(InputError) as caught:
        read(tmp_path, content)
    assert str(caught.value).startswith(words)


def test_a_column_that_is_there_twice_does_no_harm_where_nobody_needs_it(tmp_path: Path) -> None:
    assert tell(read(tmp_path, b"a,x,x\n1,2,3\n", "a")) == [(2, {"a": "1"})]


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("a,x,x", "a,x,x_2"),
        ("a,x,x,x_2,x", "a,x,x_3,x_2,x_4"),
        ("a,,", "a,column_2,column_3"),
        ("a,column_3,", "a,column_3,column_3_2"),
        ("a, b ,B", "a,b,B"),
        (",,", "column_1,column_2,column_3"),
    ],
)
def test_each_column_has_a_name_of_its_own(tmp_path: Path, header: str, names: str) -> None:
    values = [str(place) for place in range(header.count(",") + 1)]
    row = f"{header}\n{','.join(values)}\n".encode()
    expected = dict(zip(names.split(","), values, strict=True))
    assert tell(read(tmp_path, row)) == [(2, expected)]
    assert open_file(tmp_path / "in.csv").read_field_names() == set(expected)


def test_a_name_of_two_columns_is_refused_where_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(b"a,x,x\n1,2,3\n")
    assert tell(read(tmp_path, b"a,x,x\n1,2,3\n", "a", "x_2")) == [(2, {"a": "1", "x_2": "3"})]
    for source in (open_file(tmp_path / "in.csv", "a", "x"), open_file(tmp_path / "in.csv", "a", id_field="x")):
        with pytest.raises(InputError, match=r"in\.csv: two columns are named 'x'"):
            list(source.iter_rows())
        with pytest.raises(InputError, match=r"in\.csv: two columns are named 'x'"):
            source.read_field_names()


def test_a_file_that_changes_while_it_is_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b"a\n" + b"x\n" * 10)
    source = open_file(path, "a")
    rows = source.iter_rows()
    next(rows)
    path.write_bytes(b"a\nx\n")
    with pytest.raises(InputError, match="changed while the run was using it"):
        list(rows)


cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


@given(
    rows=st.lists(st.lists(cells, min_size=2, max_size=2), max_size=8),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    delimiter=st.sampled_from(",;\t|"),
)
def test_what_the_csv_module_wrote_is_read_as_it_was(rows: list[list[str]], encoding: str, delimiter: str) -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writerows([["a", "b"], *rows])
    with tempfile.TemporaryDirectory() as folder:
        found = read(Path(folder), text.getvalue().encode(encoding))
    assert [row.fields for row in found if isinstance(row, Document)] == [{"a": row[0], "b": row[1]} for row in rows]
    assert len(found) == len(rows)


@given(content=st.text(st.sampled_from('ab,;"\n\r\t \xe9'), max_size=60).map(str.encode) | st.binary(max_size=60))
def test_any_bytes_are_rows_or_an_input_error(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            rows = read(Path(folder), b"a,b\n" + content, csv=CsvDialect(delimiter=","))
        except InputError:
            return
        numbers = [row.origin.row for row in rows]
        assert numbers == sorted(set(numbers))
        source = open_file(Path(folder) / "in.csv", csv=CsvDialect(delimiter=","))
        for row in rows:
            assert list(source.iter_rows(iter([row.origin.row]))) == [row]
