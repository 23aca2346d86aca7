"""Whole runs over http://, on a server of the test's own: resumed where it broke off, and without a secret anywhere."""

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from bulkinfer.errors import InputError
from bulkinfer.runner import RunReport
from bulkinfer.sources import remote
from tests.cli_support import call, start, wait_until
from tests.conftest import JobFolder, make_documents
from tests.http_support import FileServer, Served, serve_files
from tests.integration.test_formats import documents_of, select

SECRETS = ("zqpassword", "zqsignature", "zqtoken", "zquser")


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serve_files() as files:
        yield files


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "WAITS_S", (0.0, 0.0, 0.0))


def write_lines(count: int, first: int = 0) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in make_documents(first + count)[first:]).encode()


def run(folder: JobFolder, *urls: str) -> RunReport:
    return folder.run(input={"path": list(urls)})


def test_a_file_that_did_not_change_is_not_read_again(folder: JobFolder, server: FileServer) -> None:
    server.files["/in.jsonl"] = Served(write_lines(50))
    url = f"{server.address}/in.jsonl"
    assert documents_of(run(folder, url))["succeeded"] == 50
    documents = documents_of(run(folder, url))
    assert (documents["already_done"], documents["succeeded"]) == (50, 0)
    assert select(folder, "select count(*) from scans") == [(1,)]
    server.files["/in.jsonl"] = Served(write_lines(60), etag='"2"')
    assert documents_of(run(folder, url))["succeeded"] == 10


def test_a_server_that_goes_away_ends_the_run_and_the_next_goes_on(folder: JobFolder, server: FileServer) -> None:
    lines = b"".join(b'{"id": "d%d", "body": "%d %s"}\n' % (number, number, b"word " * 240) for number in range(3000))
    served = server.files["/in.jsonl"] = Served(lines)
    url = f"{server.address}/in.jsonl"

    def break_at_the_end() -> None:  # one request looks at the first rows, the others are of a block each
        served.num_broken = 1000 if server.requests["GET"] > 3 else 0

    server.before_answer = break_at_the_end
    report = run(folder, url)
    assert isinstance(report.error, InputError)
    assert report.exit_code == 2
    assert 0 < documents_of(report)["succeeded"] < 3000
    server.before_answer, served.num_broken = None, 0
    report = run(folder, url)
    assert report.exit_code == 0
    assert documents_of(report)["already_done"] + documents_of(report)["succeeded"] == 3000
    assert select(folder, "select count(*), count(distinct document_id) from answers") == [(3000, 3000)]


@pytest.mark.parametrize("num_answered", [0, 4])
def test_a_signal_ends_a_run_whose_server_hangs(folder: JobFolder, server: FileServer, num_answered: int) -> None:
    """Before anything runs, and while the run reads."""
    server.files["/in.jsonl"] = Served(write_lines(50))
    folder.write_job(input={"path": f"{server.address}/in.jsonl"})
    is_hanging = threading.Event()

    def hang_in_time() -> None:
        if sum(server.requests.values()) > num_answered:
            is_hanging.set()
            server.release.wait(60)

    server.before_answer = hang_in_time
    child = start("run", folder.job_path)
    wait_until(is_hanging.is_set, "the server hangs")
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert (child.returncode, "Traceback" in said) == (130, False), said


def test_two_pages_are_two_files_in_the_database_and_in_the_export(folder: JobFolder, server: FileServer) -> None:
    server.files["/f.jsonl?page=1"] = Served(b'{"body": "a", "first": 1}\n')
    server.files["/f.jsonl?page=2"] = Served(b'{"body": "b", "second": 2}\n')
    folder.spec["input"] = {}
    assert documents_of(run(folder, *(f"{server.address}/f.jsonl?page={page}" for page in (1, 2))))["succeeded"] == 2
    assert select(folder, "select count(distinct (source, row)), count(distinct document_id) from documents") == [
        (2, 2)
    ]
    exported = call("export", str(folder.job_path), "--to", str(folder.path / "out.jsonl"))
    assert exported.exit_code == 0, exported.stderr
    rows = [json.loads(line) for line in (folder.path / "out.jsonl").read_text().splitlines()]
    assert [(row["body"], row.get("first"), row.get("second")) for row in rows] == [("a", 1, None), ("b", None, 2)]


@pytest.mark.parametrize(
    "section", [{"where": "body <> '${ZQ_TOKEN}'"}, {"sql": "select *, body <> '${ZQ_TOKEN}' as differs from input"}]
)
def test_nothing_that_a_run_writes_or_says_has_a_secret_of_a_url_or_a_condition(
    folder: JobFolder, server: FileServer, monkeypatch: pytest.MonkeyPatch, section: dict[str, str]
) -> None:
    monkeypatch.setenv("ZQ_TOKEN", "zqtoken")
    monkeypatch.setenv("ZQ_URL", server.address.replace("//", "//zquser:zqpassword@") + "/b.jsonl?sig=zqsignature")
    monkeypatch.setenv("ZQ_NAME", "mine")
    host = server.address.replace("//", "//zquser:zqpassword@")
    server.files["/a.jsonl?page=1&sig=zqsignature&t=zqtoken"] = Served(write_lines(5))
    server.files["/b.jsonl?sig=zqsignature"] = Served(b'{"id": 1}\n{broken\n' + write_lines(5, 5))
    folder.spec["name"] = "${ZQ_NAME}"
    folder.write_job(
        input={"path": [host + "/a.jsonl?page=1&sig=zqsignature&t=${ZQ_TOKEN}", "${ZQ_URL}"], **section},
        prompt={"system": "Your key is ${ZQ_TOKEN}", "user": "{{ body }}"},
    )
    job, page = str(folder.job_path), str(folder.path / "page.html")
    said = [
        call(*command)
        for command in (
            ("plan", job, "--json"),
            ("plan", job),
            ("run", job, "--json", "--log-format", "json"),
            ("status", job, "--json"),
            ("failures", job, "--json"),
            ("query", job, "from tasks", "--format", "json"),
            ("query", job, "from documents", "--format", "json"),
            ("report", job, "--to", page),
            ("export", job, "--to", str(folder.path / "out.jsonl")),
        )
    ]
    assert [called.exit_code for called in said] == [0] * len(said), said
    for path in server.files.values():
        path.status = 403
    said.append(call("run", job))
    assert (said[-1].exit_code, "access was refused" in said[-1].stderr) == (2, True)
    written = [path for path in Path(folder.path).rglob("*") if path.is_file() and path != folder.job_path]
    assert folder.database in written
    for secret in SECRETS:
        assert not [called for called in said if secret in called.stdout + called.stderr]
        assert not [path for path in written if secret.encode() in path.read_bytes()]
    with duckdb.connect(folder.database, read_only=True) as database:  # DuckDB packs what it writes
        assert database.execute("select spec ->> '$.name', spec ->> '$.prompt.system' from tasks").fetchall() == [
            ("mine", "Your key is ${ZQ_TOKEN}")
        ]
        for (table,) in database.execute("select table_name from information_schema.tables").fetchall():
            for row in database.execute(f'from "{table}"').fetchall():
                assert not [secret for secret in SECRETS if secret in str(row)], table
