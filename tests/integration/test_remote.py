"""Runs over s3://, on a server of the test's own (moto), and over memory:// ."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec import AbstractFileSystem
from moto.server import ThreadedMotoServer

from bulkinfer.errors import InputError
from bulkinfer.records import Document, SourceFile
from bulkinfer.sources import find_source_files, open_source, remote
from tests.cli_support import bulkinfer
from tests.conftest import JobFolder, make_documents
from tests.http_support import FileServer, Served, serve_files
from tests.integration.test_formats import documents_of, select

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of an S3 server."""
    moto = ThreadedMotoServer(port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    yield f"http://{host}:{port}"
    moto.stop()


@pytest.fixture
def s3(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[AbstractFileSystem]:
    """A client with a bucket `docs`; what runs in this test finds the server and the keys."""
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": server}.items():
        monkeypatch.setenv(name, value)
    filesystem = fsspec.filesystem("s3", skip_instance_cache=True)
    filesystem.mkdir("docs")
    yield filesystem
    filesystem.rm("docs", recursive=True)


def write(filesystem: AbstractFileSystem, path: str, documents: list[dict[str, Any]]) -> None:
    filesystem.pipe(path, "".join(json.dumps(document) + "\n" for document in documents).encode())


def test_a_run_over_s3_reads_only_what_is_new(folder: JobFolder, s3: AbstractFileSystem) -> None:
    write(s3, "docs/in/a.jsonl", make_documents(50))
    report = folder.run(input={"path": "s3://docs/in"})
    assert documents_of(report)["succeeded"] == 50
    write(s3, "docs/in/b.jsonl", [{"id": "new", "body": "new"}])
    documents = documents_of(folder.run(input={"path": "s3://docs/in/*.jsonl"}))
    assert (documents["read"], documents["already_done"], documents["succeeded"]) == (51, 50, 1)
    assert select(folder, "select distinct source from documents order by 1") == [
        ("s3://docs/in/a.jsonl",),
        ("s3://docs/in/b.jsonl",),
    ]
    assert select(folder, "select count(*) from scans") == [(2,)], "a file that did not change keeps its scan"
    write(s3, "docs/in/a.jsonl", [*make_documents(50), {"id": "more", "body": "more"}])
    assert documents_of(folder.run(input={"path": "s3://docs/in"}))["succeeded"] == 1


@pytest.mark.parametrize(
    ("path", "environment", "words"),
    [
        ("s3://docs/gone.jsonl", {}, "does not exist"),
        ("s3://gone/in.jsonl", {}, "does not exist"),
        ("s3://docs/in.jsonl", {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "no credentials were found"),
        ("s3://docs/in.jsonl", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "cannot be reached (ClientConnectorError)"),
    ],
)
def test_a_place_that_cannot_be_read_is_told_before_anything_runs(
    folder: JobFolder,
    s3: AbstractFileSystem,
    monkeypatch: pytest.MonkeyPatch,
    server: str,
    path: str,
    environment: dict[str, str],
    words: str,
) -> None:
    folder.write_job(input={"path": path})
    hermetic = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/dev/null", "AWS_MAX_ATTEMPTS": "1"}
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": server, **hermetic, **environment}.items():
        monkeypatch.setenv(name, value)
    called = bulkinfer("run", folder.job_path)
    assert called.returncode == 2, called
    assert words in called.stderr
    assert "Traceback" not in called.stderr
    assert not folder.database.exists()


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """An S3 that does what S3 does on bad days."""
    with serve_files() as files:
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": files.address, "AWS_CONFIG_FILE": "/dev/null"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(remote, "WAITS_S", (0.0, 0.0, 0.0))
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        yield files
        fsspec.get_filesystem_class("s3").clear_instance_cache()


def find(url: str) -> list[SourceFile]:
    return find_source_files([url], Path("/nowhere"))


def test_an_object_that_breaks_off_or_hangs_is_read_on(odd: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "".join(f'{{"n": {number}, "text": "{"x" * 200}"}}\n' for number in range(10_000)).encode()
    served = odd.files["/docs/in.jsonl"] = Served(lines, modified="Tue, 03 Mar 2026 10:00:00 GMT")
    (file,) = find("s3://docs/in.jsonl")
    served.num_broken = 3
    rows = open_source(file, frozenset({"n"}), None).iter_rows()
    assert [row.fields["n"] for row in rows if isinstance(row, Document)] == list(range(10_000))
    monkeypatch.setattr(remote, "ANSWER_S", 2.0)
    served.num_broken, served.num_hanging = 0, 1
    rows = open_source(file, frozenset({"n"}), None).iter_rows()
    assert [row.fields["n"] for row in rows if isinstance(row, Document)] == list(range(10_000))


@pytest.mark.parametrize(
    ("status", "words"), [(403, "access was refused"), (301, "cannot be read"), (500, "the server answered 500")]
)
def test_what_s3_answers_is_told_for_what_it_is(odd: FileServer, status: int, words: str) -> None:
    odd.files["/docs/in.jsonl"] = Served(b"{}", status=status)
    with pytest.raises(InputError, match=words):
        find("s3://docs/in.jsonl")


def test_folders_that_a_glob_matches_and_odd_names_of_objects(s3: AbstractFileSystem) -> None:
    for name in ("day=1/a#1.jsonl", "day=1/b c.jsonl", "day=2/x/d%20.jsonl", "day=2/_tmp/e.jsonl", "other/f.jsonl"):
        s3.pipe(f"docs/in/{name}", b'{"body": "x"}\n')
    files = find("s3://docs/in/day=*")
    assert [file.name for file in files] == [
        "s3://docs/in/day=1/a#1.jsonl",
        "s3://docs/in/day=1/b c.jsonl",
        "s3://docs/in/day=2/x/d%20.jsonl",
    ]
    assert [len(list(open_source(file, frozenset({"body"}), None).iter_rows())) for file in files] == [1, 1, 1]


def test_memory_and_a_disk_in_one_list(folder: JobFolder) -> None:
    memory = fsspec.filesystem("memory")
    write(memory, "/far.jsonl", make_documents(10))
    folder.write_documents(make_documents(12))
    documents = documents_of(folder.run(input={"path": ["memory://far.jsonl", "in.jsonl"]}))
    assert (documents["read"], documents["succeeded"]) == (22, 12)
    memory.rm("/far.jsonl")
    with pytest.raises(InputError, match=r"'memory://far\.jsonl': does not exist"):
        folder.run(input={"path": ["memory://far.jsonl", "in.jsonl"]})
