"""Text files: one document each."""

import gzip
from pathlib import Path

import pytest

from bulkinfer.records import Document, Origin, UnreadableRow
from bulkinfer.sources import find_source_files, open_source, text_file
from bulkinfer.sources.formats import FormatChoice


def read(path: Path, *fields: str, encoding: str | None = None) -> list[Document | UnreadableRow]:
    (file,) = find_source_files([path.name], path.parent, FormatChoice(text_encoding=encoding))
    return list(open_source(file, frozenset(fields) or None, None).iter_rows())


def test_a_file_is_one_document_with_text_path_and_name(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/a.md").write_bytes("\ufeffZwei\r\nZeilen ü".encode())
    (file,) = find_source_files(["deep/a.md"], tmp_path)
    fields = {"text": "Zwei\r\nZeilen ü", "path": "deep/a.md", "name": "a.md"}
    assert list(open_source(file, None, None).iter_rows()) == [Document(Origin("deep/a.md", 1, "deep/a.md:1"), fields)]
    source = open_source(file, frozenset({"text", "other"}), "name")
    assert list(source.iter_rows()) == [Document(Origin("deep/a.md", 1, "a.md"), {"text": fields["text"]})]
    assert source.read_field_names() == {"text", "path", "name"}
    assert source.bytes_read() == file.size_bytes
    assert list(source.iter_rows(iter([]))) == []
    assert len(list(source.iter_rows(iter([1])))) == 1


@pytest.mark.parametrize(
    ("content", "encoding", "text"),
    [
        (b"", None, ""),
        ("ü".encode("utf-16"), None, "ü"),
        ("ü plus".encode("utf-16-le"), None, "ü plus"),
        ("ü".encode("latin-1"), "latin-1", "ü"),
    ],
)
def test_encodings(tmp_path: Path, content: bytes, encoding: str | None, text: str) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    (row,) = read(tmp_path / "a.txt", "text", encoding=encoding)
    assert isinstance(row, Document)
    assert row.fields == {"text": text}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"caf\xe9", "not utf-8 at byte 4; see input.text.encoding"),
        (b"a\0b", "a NUL character at character 2: is it text?"),
        (b"x" * 101, "longer than 0 MiB"),
    ],
)
def test_what_is_no_text_is_one_unreadable_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, reason: str
) -> None:
    monkeypatch.setattr(text_file, "MAX_TEXT_BYTES", 100)
    (tmp_path / "a.txt").write_bytes(content)
    (row,) = read(tmp_path / "a.txt")
    assert isinstance(row, UnreadableRow)
    assert row.reason == f"a.txt, line 1: {reason}"


def test_a_packed_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"text"))
    (row,) = read(tmp_path / "a.txt.gz")
    assert isinstance(row, Document)
    assert row.fields["text"] == "text"
