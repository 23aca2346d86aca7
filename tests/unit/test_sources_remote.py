"""Remote inputs, on fsspec's memory:// : which files a URL stands for, how they are known, and what goes wrong."""

import gzip
import io
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow as pa
import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.ftp import FTPFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow import feather
from pyarrow import parquet as pq

from bulkinfer.errors import InputError
from bulkinfer.records import Document, Selection, SourceFile
from bulkinfer.sources import find_source_files, open_source, remote, selected
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


def test_row_groups_that_a_condition_rules_out_are_not_read(
    memory: AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof: one of them cannot be."""
    monkeypatch.setattr(selected, "_MIN_SEARCHED_BYTES", 0)
    table = pa.table({"n": range(3000), "a": [f"text {number}" for number in range(3000)]})
    stream = io.BytesIO()
    pq.write_table(table, stream, row_group_size=1000)
    column = pq.ParquetFile(stream).metadata.row_group(0).column(0)
    stream.seek(column.dictionary_page_offset or column.data_page_offset)
    stream.write(b"\xff" * 64)
    memory.pipe("/in/x.parquet", stream.getvalue())
    (file,) = find("memory://in/x.parquet")

    def read(where: str) -> list[int]:
        source = open_source(replace(file, selection=Selection(where=where)), frozenset({"a"}), None)
        return [row.origin.row for row in source.iter_rows()]

    assert read("n between 1500 and 1502 or n = 2999") == [1501, 1502, 1503, 3000]
    assert read("n > 2900 and (n < 2902 or a like '%2999')") == [2902, 3000]
    with pytest.raises(InputError, match=r"in/x\.parquet: rows 1 to .* cannot be read"):
        read("n % 2 = 0")


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
    assert found.name.startswith("https://host/in.jsonl?#")
    assert "secret" not in found.name


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


class Stream(io.BytesIO):
    """Of a server that hangs until it is let go."""

    def __init__(self, content: bytes, go: threading.Event) -> None:
        super().__init__(content)
        self.is_asked_to_end = False
        self._go = go

    def read(self, size: int | None = -1, /) -> bytes:
        assert self._go.wait(30)
        return super().read(size)

    def close(self) -> None:
        self.is_asked_to_end = True
        assert self._go.wait(30)
        super().close()


def test_a_stream_that_hangs_is_left_and_the_file_read_on_by_another(
    memory: AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe("/in.jsonl", LINES)
    (file,) = find("memory://in.jsonl")
    held, free = threading.Event(), threading.Event()
    free.set()
    streams = [Stream(LINES, held), Stream(LINES, held), Stream(LINES, free)]
    waiting = iter(streams)
    monkeypatch.setattr(MemoryFileSystem, "open", lambda *_, **__: next(waiting))
    monkeypatch.setattr(remote, "ANSWER_S", 0.2)
    monkeypatch.setattr(remote, "WAITS_S", (0.0, 0.0, 0.0))
    try:
        with remote.RemoteFile(file) as found:
            assert found.read(len(LINES)) == LINES
        assert [stream.is_asked_to_end for stream in streams] == [False, False, True]
    finally:
        held.set()


def test_a_service_whose_package_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(InputError, match=r"gs:// is not installed: pip install gcsfs, or .* 'bulkinfer\[remote\]'"):
        find("gs://bucket/in.jsonl")
    monkeypatch.setitem(sys.modules, "paramiko", None)
    with pytest.raises(InputError, match=r"sftp:// is not installed: pip install paramiko$"):
        find("sftp://host/in.jsonl")


class Elsewhere(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A place with a host, as ftp and webhdfs are: paths do not tell it. It remembers what it was asked with."""

    cachable = False
    asked: ClassVar[list[dict[str, object]]] = []
    content: ClassVar[dict[str, bytes]] = {
        "/dir/a.jsonl": b'{"a": "host"}\n',
        "/dir/sub/b#1.jsonl": b'{"a": "sub"}\n',
        "/dir/_tmp/c.jsonl": b"",
    }
    _strip_protocol = FTPFileSystem._strip_protocol
    _get_kwargs_from_urls = staticmethod(FTPFileSystem._get_kwargs_from_urls)

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.asked.append(options)

    def ls(self, path: str, detail: bool = True, **_: object) -> list[Any]:
        above = path.rstrip("/") + "/"
        found = {above + name[len(above) :].partition("/")[0] for name in self.content if name.startswith(above)}
        if not found and path not in self.content:
            raise FileNotFoundError(path)
        rows = [
            {"name": name, "size": len(self.content.get(name, b"")), "modify": "20260303100000"}
            | {"type": "file" if name in self.content else "directory"}
            for name in sorted(found or {path})
        ]
        return rows if detail else [row["name"] for row in rows]

    def _open(self, path: str, mode: str = "rb", **_: object) -> io.BytesIO:
        return io.BytesIO(self.content[path])


@pytest.fixture
def elsewhere() -> Iterator[list[dict[str, object]]]:
    """Answers for ftp:// ."""
    before = fsspec.get_filesystem_class("ftp")
    fsspec.register_implementation("ftp", Elsewhere, clobber=True)
    Elsewhere.asked.clear()
    yield Elsewhere.asked
    fsspec.register_implementation("ftp", before, clobber=True)


@pytest.mark.parametrize("pattern", ["dir", "dir/**", "d*"])
def test_files_below_a_host_keep_it_and_their_user(elsewhere: list[dict[str, object]], pattern: str) -> None:
    files = find(f"ftp://me:SECRET@host:2121/{pattern}")
    assert [file.name for file in files] == ["ftp://host:2121/dir/a.jsonl", "ftp://host:2121/dir/sub/b#1.jsonl"]
    assert files[0].url == "ftp://me:SECRET@host:2121/dir/a.jsonl"
    assert files[0].mtime_ns == 1_772_532_000 * 10**9
    elsewhere.clear()
    rows = [row for file in files for row in open_source(file, frozenset({"a"}), None).iter_rows()]
    assert [row.fields["a"] for row in rows if isinstance(row, Document)] == ["host", "sub"]
    names = ("host", "port", "username", "password")
    assert {tuple(options[name] for name in names) for options in elsewhere} == {("host", 2121, "me", "SECRET")}


def test_one_name_for_two_users_is_refused(elsewhere: list[dict[str, object]]) -> None:
    with pytest.raises(InputError, match="is named twice, for two users"):
        find("ftp://me@host/dir/a.jsonl", "ftp://you@host/dir/a.jsonl")
    assert len(find("ftp://me:old@host/dir/a.jsonl", "ftp://me:new@host/dir/a.jsonl")) == 1


@pytest.mark.parametrize(
    ("scheme", "pattern", "name"),
    [
        ("gs", "bucket/in", "bucket/in/a.jsonl"),
        ("hf", "datasets/owner/repo@main/in/*.jsonl", "datasets/owner/repo@main/in/a.jsonl"),
        ("s3a", "bucket/in/a.jsonl", "bucket/in/a.jsonl"),
    ],
)
def test_the_service_of_a_scheme_is_asked_with_the_settings_of_the_environment(
    memory: AbstractFileSystem, monkeypatch: pytest.MonkeyPatch, scheme: str, pattern: str, name: str
) -> None:
    asked: list[dict[str, object]] = []

    class Service(MemoryFileSystem):  # type: ignore[misc]  # as above
        protocol = scheme
        cachable = False

        def __init__(self, **options: object) -> None:
            super().__init__(**options)
            asked.append(options)

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return "/" + path.removeprefix(f"{scheme}://").strip("/")

    memory.pipe(f"/{name}", LINES)
    monkeypatch.setitem(import_module("fsspec.registry")._registry, scheme, Service)
    monkeypatch.setitem(fsspec.config.conf, scheme, {"token": "mine"})
    (file,) = find(f"{scheme}://{pattern}")
    assert file.name == file.url == f"{scheme}://{name}"
    assert len(list(open_source(file, frozenset({"a"}), None).iter_rows())) == 3000
    assert asked
    assert all(options == {"token": "mine"} for options in asked)


def test_folders_of_a_disk_by_their_url(tmp_path: Path) -> None:
    (tmp_path / "in/sub").mkdir(parents=True)
    for name in ("in/a.jsonl", "in/sub/b.jsonl", "in/_tmp.jsonl"):
        (tmp_path / name).write_bytes(b"{}\n")
    assert [file.name for file in find(f"file://{tmp_path}/in")] == [
        f"file://{tmp_path}/in/a.jsonl",
        f"file://{tmp_path}/in/sub/b.jsonl",
    ]
    assert [file.name for file in find(f"file://{tmp_path}/i*")] == [
        f"file://{tmp_path}/in/a.jsonl",
        f"file://{tmp_path}/in/sub/b.jsonl",
    ]


@pytest.mark.parametrize(
    "url",
    [
        "dbfs://x/y.jsonl",
        "github://owner/repo",
        "reference://x.jsonl",
        "http://[::/x.jsonl",
        "https://127.0.0.1:99999/x.csv",
        "http://",
        "s3:///",
        "s3://key:SECRET@bucket/in.csv?versionId=SECRET",
        "ftp://user:SECRET@127.0.0.1:9/in.csv",
        "zip://a.csv::https://user:SECRET@127.0.0.1:9/a.zip?sig=SECRET",
        "data://x.csv",
        "dir://x",
        "S3://bucket/in.csv",
    ],
)
def test_odd_addresses_are_told_without_a_traceback_or_a_secret(url: str) -> None:
    with pytest.raises(InputError, match=r"is no address that|cannot be reached|is no kind of place") as caught:
        find(url)
    assert "SECRET" not in str(caught.value)


def test_of_a_dataset_elsewhere_only_its_own_files_are_read(memory: AbstractFileSystem) -> None:
    state: dict[str, object] = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_indices_files": []}
    for name in ("data-00000-of-00001.arrow", "cache-1.arrow", "dataset_info.json"):
        memory.pipe(f"/ds/train/{name}", b"")
    memory.pipe("/ds/train/state.json", json.dumps(state).encode())
    memory.pipe("/ds/other.arrow", b"")
    names = ["memory://ds/other.arrow", "memory://ds/train/data-00000-of-00001.arrow"]
    assert [file.name for file in find("memory://ds")] == names
    assert [file.name for file in find("memory://ds/tr*")] == names[1:]
    memory.pipe("/ds/train/state.json", json.dumps({**state, "_indices_files": [{"filename": "i.arrow"}]}).encode())
    with pytest.raises(InputError, match=r"memory://ds': is a dataset with an indices mapping.*flatten_indices"):
        find("memory://ds")
