"""JSONL, line by line: what is a row, what is none, what is unreadable, and what is the fault of the file."""

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard

from bulkinfer.errors import InputError
from bulkinfer.records import Document, Origin, UnreadableRow
from bulkinfer.sources import Source, find_source_files, jsonl, open_source
from bulkinfer.sources.jsonl import MAX_LINE_BYTES


def open_file(path: Path, *fields: str, id_field: str | None = None) -> Source:
    (file,) = find_source_files([path.name], path.parent)
    return open_source(file, frozenset(fields), id_field)


def read(folder: Path, content: bytes, id_field: str | None = None) -> list[Document | UnreadableRow]:
    path = folder / "in.jsonl"
    path.write_bytes(content)
    return list(open_file(path, "a", "b", id_field=id_field).iter_rows())


def read_fields(folder: Path, content: bytes) -> list[object]:
    return [row.fields if isinstance(row, Document) else None for row in read(folder, content)]


def test_only_the_needed_fields_are_kept_and_null_is_not_absent(tmp_path: Path) -> None:
    rows = read(tmp_path, b'{"a": 1, "c": 2}\n{"b": null}\n{}\n')
    assert rows == [
        Document(Origin("in.jsonl", 1, "in.jsonl:1"), {"a": 1}),
        Document(Origin("in.jsonl", 2, "in.jsonl:2"), {"b": None}),
        Document(Origin("in.jsonl", 3, "in.jsonl:3"), {}),
    ]


@pytest.mark.parametrize(
    ("value", "document_id"),
    [
        ('"x-1"', "x-1"),
        ("7", "7"),
        ("1.0", "1.0"),
        ("true", "true"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("null", "in.jsonl:1"),
        ('["é", 1]', '["é", 1]'),
    ],
)
def test_the_id_field_names_the_document(tmp_path: Path, value: str, document_id: str) -> None:
    (row,) = read(tmp_path, f'{{"key": {value}, "a": 1}}'.encode(), id_field="key")
    assert row == Document(Origin("in.jsonl", 1, document_id), {"a": 1})


def test_an_id_that_the_prompt_uses_too_stays_a_field(tmp_path: Path) -> None:
    (row,) = read(tmp_path, b'{"a": "x"}', id_field="a")
    assert row == Document(Origin("in.jsonl", 1, "x"), {"a": "x"})


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        (b"", []),
        (b"\n \t \r\n\n", []),
        (b'\n{"a": 1}\n\n{"a": 2}', [(2, 1), (4, 2)]),
        (b'{"a": 1}\r\n\r\n{"a": 2}\r\n', [(1, 1), (3, 2)]),
        (b'\xef\xbb\xbf{"a": 1}\n', [(1, 1)]),
        (b'\xef\xbb\xbf\n{"a": 1}\n', [(2, 1)]),
        (b"\xef\xbb\xbf", []),
        (b'  {"a": 1}  \n', [(1, 1)]),
    ],
)
def test_blank_lines_are_no_rows_but_count(tmp_path: Path, content: bytes, rows: list[tuple[int, int]]) -> None:
    found = [(row.origin.row, row.fields["a"]) for row in read(tmp_path, content) if isinstance(row, Document)]
    assert found == rows


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a": 1', "broken JSON at column 8"),
        ('{"é": tru}'.encode(), "broken JSON at column 7"),
        (b'{"a": NaN}', "broken JSON at column 7"),
        (b'{"a": -Infinity}', "broken JSON at column 8"),
        (b'{"a": "tab\there"}', "broken JSON at column 11"),
        (b"no JSON", "broken JSON at column 1"),
        (b"[1]", "an array where one JSON object is expected"),
        (b'"text"', "a string where one JSON object is expected"),
        (b"12", "a number where one JSON object is expected"),
        (b"1.5", "a number where one JSON object is expected"),
        (b"true", "true or false where one JSON object is expected"),
        (b"null", "null where one JSON object is expected"),
        (b'{"a": "caf\xe9"}', "invalid UTF-8 at byte 11"),
        (b'\xff\xfe{\x00"\x00', "invalid UTF-8 at byte 1"),
        (b'{"a": "\xed\xa0\x80"}', "invalid UTF-8 at byte 8"),
        (b'{"a": "x\x00y"}', "a NUL byte at column 9"),
        (b'{"a": "\\ud83d"}', "half of a surrogate pair at column 8; it stands for no character"),
        (b'{"a": "\\ude00"}', "half of a surrogate pair at column 8; it stands for no character"),
        (b'{"a": 1} {"a": 2}', "more after the end of the JSON value, at column 10; one object per line"),
        (b'{"a": 1e999}', "a number out of range, at column 7"),
        (b'{"a": ' + b"[" * 2000 + b"]" * 2000 + b"}", "nested too deep, at column 1031"),
        (b'{"a": ' + b"[" * 1010 + b"9" * 20 + b"]" * 1010 + b"}", "nested too deep"),
        (b'{"a": ' + b"9" * 400 + b"}", "a number out of range, at column 7"),
    ],
)
def test_a_bad_line_is_one_unreadable_row(tmp_path: Path, line: bytes, reason: str) -> None:
    before, row, after = read(tmp_path, b'{"a": 1, "id": "x"}\n' + line + b'\r\n{"a": 3}\n', id_field="id")
    assert isinstance(before, Document)
    assert row == UnreadableRow(
        Origin("in.jsonl", 2, "in.jsonl:2"), hashlib.sha256(line).digest()[:16], f"in.jsonl, line 2: {reason}"
    )
    assert after == Document(Origin("in.jsonl", 3, "in.jsonl:3"), {"a": 3})


def test_integers_keep_all_their_digits(tmp_path: Path) -> None:
    numbers = "[18446744073709551615, 18446744073709551616, -9223372036854775809, 1.5]"
    assert read_fields(tmp_path, f'{{"a": {numbers}, "b": -9223372036854775809}}'.encode()) == [
        {"a": [18446744073709551615, 18446744073709551616, -9223372036854775809, 1.5], "b": -9223372036854775809}
    ]


def test_an_integer_of_300_digits_keeps_them(tmp_path: Path) -> None:
    assert read_fields(tmp_path, b'{"a": %s}' % (b"9" * 300)) == [{"a": 10**300 - 1}]


def test_a_line_of_20_mb_is_a_document(tmp_path: Path) -> None:
    text = "é" * 10_000_000
    assert read_fields(tmp_path, json.dumps({"a": text}, ensure_ascii=False).encode()) == [{"a": text}]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
@pytest.mark.parametrize("num_extra", [0, 1, 2, 3, 1023, 1024, 1025, 5000])
def test_a_line_above_the_limit_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes, num_extra: int
) -> None:
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 1 << 20)
    monkeypatch.setattr(jsonl, "_PIECE_BYTES", 1024)
    line = b'{"a": "' + b"x" * ((1 << 20) - 9 + num_extra) + b'"}'
    first, *others = read(tmp_path, line + end + (b'{"a": 2}\n' if end else b""))
    if num_extra == 0:
        assert isinstance(first, Document)
    else:
        assert first == UnreadableRow(
            Origin("in.jsonl", 1, "in.jsonl:1"),
            hashlib.sha256(line).digest()[:16],
            "in.jsonl, line 1: longer than 1 MiB",
        )
    assert others == ([Document(Origin("in.jsonl", 2, "in.jsonl:2"), {"a": 2})] if end else [])


@pytest.mark.parametrize("num_extra", [-2, -1, 0, 1, 2, 3, 5000, 1 << 21])
def test_a_line_that_is_not_wanted_is_passed_however_long_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_extra: int
) -> None:
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 1 << 20)
    long_line = b"x" * ((1 << 20) + num_extra)
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n' + long_line + b'\n\n{"a": 4}\r\n[broken\n' + long_line)
    source = open_file(path, "a")
    assert [row.origin.row for row in source.iter_rows(iter([1, 3, 4]))] == [1, 4], "line 3 is blank"
    assert list(source.iter_rows(iter([4]))) == [Document(Origin("in.jsonl", 4, "in.jsonl:4"), {"a": 4})]
    all_rows = list(source.iter_rows())
    assert list(source.iter_rows(iter([2, 5, 6, 7]))) == [row for row in all_rows if row.origin.row in {2, 5, 6}]


def test_the_limit_of_a_line_is_64_mib() -> None:
    assert MAX_LINE_BYTES == 67_108_864


def list_lines(num_lines: int) -> list[bytes]:
    """Lines that do not pack well, so that a packed file has many blocks."""
    return [b'{"a": "%s"}\n' % hashlib.sha512(b"%d" % number).hexdigest().encode() for number in range(num_lines)]


def pack_zstd(content: bytes) -> bytes:
    packed: bytes = zstandard.ZstdCompressor().compress(content)
    return packed


PACKED: list[tuple[str, Callable[[bytes], bytes]]] = [("in.jsonl.gz", gzip.compress), ("in.jsonl.zst", pack_zstd)]


@pytest.mark.parametrize(("name", "pack"), PACKED)
def test_parts_packed_one_by_one_are_one_file(tmp_path: Path, name: str, pack: Callable[[bytes], bytes]) -> None:
    lines = list_lines(2000)
    content = b"".join(lines)
    parts = [content[begin : begin + 10_001] for begin in range(0, len(content), 10_001)]
    (tmp_path / name).write_bytes(b"".join(map(pack, parts)))
    source = open_file(tmp_path / name, "a")
    assert [row.fields for row in source.iter_rows() if isinstance(row, Document)] == list(map(json.loads, lines))
    assert source.bytes_read() == (tmp_path / name).stat().st_size


def test_zstd_frames_without_content_are_passed_over(tmp_path: Path) -> None:
    skippable = b"\x50\x2a\x4d\x18\x05\x00\x00\x00hello"
    frames = skippable + pack_zstd(b'{"a": 1}\n') + skippable + pack_zstd(b"") + pack_zstd(b'{"a": 2}\n')
    (tmp_path / "in.ndjson.zst").write_bytes(frames)
    rows = open_file(tmp_path / "in.ndjson.zst", "a").iter_rows()
    assert [row.fields for row in rows if isinstance(row, Document)] == [{"a": 1}, {"a": 2}]


def read_until_error(rows: Iterator[Document | UnreadableRow]) -> tuple[int, str]:
    """How many documents came, and what the error says after them."""
    numbers: list[int] = []
    with pytest.raises(InputError) as caught:
        numbers.extend(row.origin.row for row in rows if isinstance(row, Document))
    assert numbers == list(range(1, len(numbers) + 1))
    return len(numbers), str(caught.value)


@pytest.mark.parametrize(("name", "pack"), PACKED)
def test_a_file_that_is_cut_off_gives_its_lines_and_then_an_error(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes]
) -> None:
    packed = pack(b"".join(list_lines(20_000)))
    (tmp_path / name).write_bytes(packed[: len(packed) // 2])
    num_rows, message = read_until_error(open_file(tmp_path / name, "a").iter_rows())
    assert 9_000 < num_rows < 11_000
    assert f"{name}: the compressed stream is damaged or cut off after line {num_rows} (EOFError)" in message


def test_a_damaged_gzip_file_gives_the_lines_before_the_damage(tmp_path: Path) -> None:
    first, second = list_lines(5000)[:2500], list_lines(5000)[2500:]
    damaged = gzip.compress(b"".join(second))
    damaged = damaged[:10] + b"\xff" * 20 + damaged[30:]
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(b"".join(first)) + damaged)
    num_rows, message = read_until_error(open_file(tmp_path / "in.jsonl.gz", "a").iter_rows())
    assert num_rows == 2500
    assert f"after line 2500 ({zlib.error.__name__})" in message


def test_a_damaged_zstd_file_gives_the_lines_before_the_damage(tmp_path: Path) -> None:
    packed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(b"".join(list_lines(20_000))))
    packed[-2] ^= 0xFF
    (tmp_path / "in.jsonl.zst").write_bytes(packed)
    num_rows, message = read_until_error(open_file(tmp_path / "in.jsonl.zst", "a").iter_rows())
    assert num_rows > 19_000
    assert f"after line {num_rows} (ZstdError)" in message


@pytest.mark.parametrize(("name", "kind"), [("in.jsonl.gz", "gzip"), ("in.jsonl.zst", "zstd")])
@pytest.mark.parametrize("content", [b'{"a": 1}\n', b"x"])
def test_a_file_that_is_not_packed_at_all_is_told(tmp_path: Path, name: str, kind: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    source = open_file(tmp_path / name, "a")
    for read_it in (lambda: list(source.iter_rows()), source.read_field_names):
        with pytest.raises(InputError, match=f"{name}: the file is not {kind}, as its ending says"):
            read_it()


@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz", "in.jsonl.zst"])
def test_a_file_of_zero_bytes_has_no_rows(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    source = open_file(tmp_path / name, "a")
    assert (list(source.iter_rows()), source.read_field_names(), source.bytes_read()) == ([], frozenset(), 0)


def test_field_names_are_those_of_the_first_readable_rows(tmp_path: Path) -> None:
    lines = [b'{"a": 1}', b"broken", b"[1]", b'{"b": 1, "c": 2}', *[b'{"a": 1}'] * 96, b'{"late": 1}']
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
    assert open_file(tmp_path / "in.jsonl").read_field_names() == {"a", "b", "c"}


def test_field_names_come_from_the_first_megabyte(tmp_path: Path) -> None:
    lines = [b'{"a": "%s"}' % (b"x" * 600_000)] * 2 + [b'{"late": 1}']
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
    assert open_file(tmp_path / "in.jsonl").read_field_names() == {"a"}


def truncate(path: Path) -> None:
    os.truncate(path, 1_000_000)


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"a": 1}\n')


def replace(path: Path) -> None:
    (path.parent / "new").write_bytes(path.read_bytes())
    (path.parent / "new").rename(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [(truncate, "changed while"), (append, "changed while"), (replace, "changed"), (Path.unlink, "cannot now")],
)
def test_a_file_that_changes_while_it_is_read_is_told(
    tmp_path: Path, change: Callable[[Path], None], words: str
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"".join(list_lines(30_000)))
    rows = open_file(path, "a").iter_rows()
    next(rows)
    change(path)
    with pytest.raises(InputError, match=f"in.jsonl: the file .*{words}"):
        list(rows)


@pytest.mark.parametrize("change", [truncate, append, replace, Path.unlink])
def test_a_file_that_changed_since_it_was_found_is_not_read(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"a": 1}\n')
    source = open_file(path, "a")
    change(path)
    with pytest.raises(InputError, match=r"in\.jsonl: the file"):
        next(source.iter_rows())


def test_progress_grows_with_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"".join(list_lines(50_000)))
    source = open_file(path, "a")
    readings = [source.bytes_read(), *(source.bytes_read() for _ in source.iter_rows())]
    assert readings[0] == 0
    assert 0 < readings[1] <= 1 << 20
    assert readings == sorted(readings)
    assert readings[-1] == path.stat().st_size
