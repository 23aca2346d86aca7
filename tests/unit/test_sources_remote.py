"""Remote inputs, on fsspec's memory:// : which files a URL stands for, how they are known, and what goes wrong."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from fsspec import AbstractFileSystem
from pyarrow import feather
from pyarrow import parquet as pq

from bulkinfer.errors import InputError
from bulkinfer.records import Document, Selection, SourceFile
from bulkinfer.sources import find_source_files, open_source, remote
from bulkinfer.store.runs import is_settled

ROWS = [{"a": f"text {number}", "n": number} for number in range(3000)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


@pytest.fixture
def memory() -> Iterator[AbstractFileSystem]:
    """An empty memory:// file system."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]
    yield filesystem
    filesystem.store.clear()


def find(*urls: str) -> list[SourceFile]:
    return find_source_files(urls, Path("/nowhere"))


def test_files_folders_and_globs(memory: AbstractFileSystem) -> None:
    for name in ("in/b.jsonl", "in/a.jsonl.gz", "in/_SUCCESS", "in/_tmp/c.jsonl", "in/.d.jsonl", "in/notes.md"):
        memory.pipe(f"/{name}", b"{}\n")
    memory.pipe("/texts/a.txt", b"x")
    assert [file.name for file in find("memory://in")] == ["memory://in/a.jsonl.gz", "memory://in/b.jsonl"]
    assert [file.name for file in find("memory://in/*.jsonl")] == ["memory://in/b.jsonl"]
    assert [file.name for file in find("memory://in/b.jsonl", "memory://in")] == [
        "memory://in/b.jsonl",
        "memory://in/a.jsonl.gz",
    ]
    assert [file.name for file in find("memory://texts")] == ["memory://texts/a.txt"]


@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz", "in.parquet", "in.feather", "in.csv"])
def test_every_format_is_read_as_from_a_disk(memory: AbstractFileSystem, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    match path.suffix:
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=700)
        case ".feather":
            feather.write_feather(pa.Table.from_pylist(ROWS), path, chunksize=700)
        case ".csv":
            path.write_text("a,n\n" + "".join(f"{row['a']},{row['n']}\n" for row in ROWS), encoding="utf-8")
        case _:
            path.write_bytes(gzip.compress(LINES) if name.endswith(".gz") else LINES)
    memory.pipe(f"/{name}", path.read_bytes())
    (file,) = find(f"memory://{name}")
    (local,) = find_source_files([name], tmp_path)
    source = open_source(file, frozenset({"a"}), None)
    rows = list(source.iter_rows())
    assert len(rows) == 3000
    assert [row.origin.row for row in rows] == [
        row.origin.row for row in open_source(local, frozenset({"a"}), None).iter_rows()
    ]
    assert [row.fields for row in rows if isinstance(row, Document)] == [{"a": row["a"]} for row in ROWS]
    assert list(source.iter_rows(iter([rows[1999].origin.row]))) == [rows[1999]]
    assert source.bytes_read() > 0
    selected = replace(file, selection=Selection("n::int >= 2990"))
    assert list(open_source(selected, frozenset({"a"}), None).iter_rows()) == rows[2990:]


def test_a_file_is_known_by_its_time_and_changes_are_told(memory: AbstractFileSystem) -> None:
    memory.pipe("/in.jsonl", LINES)
    (file,) = find("memory://in.jsonl")
    assert find("memory://in.jsonl") == [file]
    assert is_settled(file, file.mtime_ns + 10**10)
    rows = open_source(file, frozenset({"a"}), None).iter_rows()
    next(rows)
    memory.pipe("/in.jsonl", LINES * 2)
    with pytest.raises(InputError, match="changed while the run was using it"):
        list(rows)
    assert find("memory://in.jsonl") != [file]
    (file,) = find("memory://in.jsonl")
    memory.rm("/in.jsonl")
    with pytest.raises(InputError, match="could be read when the run began and cannot now"):
        list(open_source(file, frozenset({"a"}), None).iter_rows())


@pytest.mark.parametrize(
    ("info", "is_known"),
    [
        ({"size": 3, "ETag": '"abc"', "LastModified": "x"}, True),
        ({"size": 3, "mtime": 1_700_000_000.5}, True),
        ({"size": 3}, False),
        ({"size": None, "ETag": "abc"}, False),
    ],
)
def test_a_file_that_nothing_tells_from_another_is_read_by_every_run(info: dict[str, Any], is_known: bool) -> None:
    found = remote._describe("https://user:secret@host/in.jsonl?key=secret", info)
    assert (found.ctime_ns == 0) is is_known
    assert found.name == "https://host/in.jsonl"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("memory://gone.jsonl", "does not exist"),
        ("memory://in.xml", "has an ending that is not known"),
        ("memory://*.xml", "matches no file of a known format"),
        ("nosuch://in.jsonl", "nosuch:// is no kind of place that fsspec knows"),
    ],
)
def test_what_is_wrong_is_told(memory: AbstractFileSystem, url: str, words: str) -> None:
    memory.pipe("/in.xml", b"")
    with pytest.raises(InputError, match=words) as caught:
        find(url)
    assert str(caught.value).startswith(f"input.path '{url}'")


def test_a_service_whose_package_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    with pytest.raises(InputError, match=r"a package is not installed .* pip install 'bulkinfer\[remote\]'"):
        find("gs://bucket/in.jsonl")
