"""Files over http://, from a server of the test's own: parts or not, broken off, hanging, changed, refused."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from bulkinfer.errors import InputError
from bulkinfer.records import Document, SourceFile
from bulkinfer.sources import find_source_files, open_source, remote
from bulkinfer.store.runs import is_settled
from tests.http_support import FileServer, Served, serve_files

NUM_ROWS = 30_000
LINES = "".join(json.dumps({"n": number, "text": "x" * 80}) + "\n" for number in range(NUM_ROWS)).encode()
"""More than two blocks of what is asked for at a time."""
DAY = "Tue, 03 Mar 2026 10:00:00 GMT"


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serve_files() as files:
        yield files


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "WAITS_S", (0.0, 0.0, 0.0))


def find(server: FileServer, *paths: str) -> list[SourceFile]:
    return find_source_files([server.address + path for path in paths], Path("/nowhere"))


def read_numbers(file: SourceFile) -> list[object]:
    rows = open_source(file, frozenset({"n"}), None).iter_rows()
    return [row.fields["n"] if isinstance(row, Document) else row.reason for row in rows]


@pytest.mark.parametrize("tells_parts", [True, False])
@pytest.mark.parametrize("has_parts", [True, False])
@pytest.mark.parametrize("num_broken", [0, 3])
def test_a_file_is_read_on_where_the_connection_broke(
    server: FileServer, tells_parts: bool, has_parts: bool, num_broken: int
) -> None:
    server.files["/in.jsonl"] = Served(LINES, has_parts=has_parts, tells_parts=tells_parts)
    (file,) = find(server, "/in.jsonl")
    server.files["/in.jsonl"].num_broken = num_broken
    assert read_numbers(file) == list(range(NUM_ROWS))
    assert server.files["/in.jsonl"].num_broken == 0


@pytest.mark.parametrize("has_parts", [True, False])
def test_a_server_that_hangs_is_left_and_asked_again(
    server: FileServer, monkeypatch: pytest.MonkeyPatch, has_parts: bool
) -> None:
    server.files["/in.jsonl"] = Served(LINES, has_parts=has_parts)
    (file,) = find(server, "/in.jsonl")
    monkeypatch.setattr(remote, "ANSWER_S", 1.0)
    server.files["/in.jsonl"].num_hanging = 1
    assert read_numbers(file) == list(range(NUM_ROWS))


def test_a_server_that_stays_away_ends_the_reading_with_the_rows_before(server: FileServer) -> None:
    server.files["/in.jsonl"] = Served(LINES)
    (file,) = find(server, "/in.jsonl")
    rows = open_source(file, frozenset({"n"}), None).iter_rows()
    assert isinstance(next(rows), Document)
    server.files["/in.jsonl"].num_broken = 1000
    with pytest.raises(InputError, match=r"in\.jsonl: reading failed after line \d+ \(ClientPayloadError\)"):
        list(rows)


def test_a_file_without_a_length_that_breaks_off_ends_a_line_short(server: FileServer) -> None:
    """Nothing tells it from a file that ends there, but the line that is cut in the middle."""
    server.files["/in.jsonl"] = Served(LINES, is_whole_told=False, has_parts=False, etag=None)
    (file,) = find(server, "/in.jsonl")
    assert file.size_bytes == 0
    assert read_numbers(file) == list(range(NUM_ROWS))


def test_a_file_that_changes_between_two_connections_is_told(server: FileServer) -> None:
    served = server.files["/in.jsonl"] = Served(LINES)
    (file,) = find(server, "/in.jsonl")
    rows = open_source(file, frozenset({"n"}), None).iter_rows()
    next(rows)
    served.num_broken, served.etag, served.content = 1, '"2"', LINES[::-1]
    with pytest.raises(InputError, match="the file changed while the run was using it"):
        list(rows)


@pytest.mark.parametrize(
    ("served", "words"),
    [
        (Served(b"{}\n", status=403), "access was refused"),
        (Served(b"{}\n", status=401), "access was refused"),
        (Served(b"{}\n", status=404), "does not exist"),
        (Served(b"{}\n", status=503), r"cannot be read \(the server answered 503\)"),
    ],
)
def test_what_a_server_answers_is_told_for_what_it_is(server: FileServer, served: Served, words: str) -> None:
    server.files["/in.jsonl?sig=SECRET"] = served
    with pytest.raises(InputError, match=words) as caught:
        find(server, "/in.jsonl?sig=SECRET")
    assert "SECRET" not in str(caught.value)


def test_a_server_that_is_not_there_is_told(server: FileServer) -> None:
    with pytest.raises(InputError, match=r"cannot be reached \(ClientConnectorError\)"):
        find_source_files(["http://user:SECRET@127.0.0.1:9/in.jsonl"], Path("/"))


def test_one_that_gives_no_answer_is_given_up(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files["/in.jsonl"] = Served(LINES)
    server.before_answer = lambda: server.release.wait(60)
    monkeypatch.setattr(remote, "LISTING_S", 0.3)
    with pytest.raises(InputError, match=r"cannot be read \(no answer for 0\.3 s\)"):
        find(server, "/in.jsonl")


def test_parquet_needs_parts(server: FileServer, tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": list(range(400_000))}), tmp_path / "in.parquet")
    content = (tmp_path / "in.parquet").read_bytes()
    server.files["/a.parquet"] = Served(content)
    server.files["/b.parquet"] = Served(content, has_parts=False)
    server.files["/c.parquet"] = Served(content, has_parts=False, tells_parts=False)
    whole, *without = find(server, "/a.parquet", "/b.parquet", "/c.parquet")
    assert read_numbers(whole) == list(range(400_000))
    for file in without:
        with pytest.raises(InputError, match=r"[bc]\.parquet: .*gives files as a whole only"):
            read_numbers(file)


def test_a_time_of_change_tells_a_file_that_is_not_new(server: FileServer) -> None:
    server.files["/in.jsonl"] = Served(LINES, etag=None, modified=DAY)
    (file,) = find(server, "/in.jsonl")
    assert file.mtime_ns == 1_772_532_000 * 10**9
    assert is_settled(file, file.mtime_ns + 3 * 10**9)
    assert not is_settled(file, file.mtime_ns + 10**9)


def test_urls_that_differ_in_their_query_are_different_files(server: FileServer) -> None:
    server.files |= {f"/in.jsonl?page={page}": Served(b'{"n": %d}\n' % page) for page in (1, 2)}
    first, second = find(
        server,
        "/in.jsonl?page=1",
        "/in.jsonl?page=2",
    )
    assert first.name != second.name
    assert [read_numbers(first), read_numbers(second)] == [[1], [2]]
    assert find(server, "/in.jsonl?page=1", "/in.jsonl?page=1") == [first]


def test_a_query_may_have_the_ending(server: FileServer) -> None:
    server.files["/get?file=in.jsonl"] = Served(b'{"n": 1}\n')
    server.files["/get"] = Served(b'{"n": 1}\n')
    assert read_numbers(find(server, "/get?file=in.jsonl")[0]) == [1]
    with pytest.raises(InputError, match=r"get': has an ending that is not known\. .*input\.format says"):
        find(server, "/get")
