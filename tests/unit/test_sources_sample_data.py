"""sample_data/ is what the script makes, and its broken file is what its README says."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from bulkinfer.records import Document, UnreadableRow
from bulkinfer.sources import find_source_files, open_source

ROOT = Path(__file__).parents[2]
SAMPLE_DATA = ROOT / "sample_data"
FIELDS = frozenset({"ticket_id", "subject", "body", "language", "product", "created_at", "priority"})


def read(name: str) -> list[Document | UnreadableRow]:
    (file,) = find_source_files([name], SAMPLE_DATA)
    return list(open_source(file, FIELDS, "ticket_id").iter_rows())


def read_documents(name: str) -> list[Document]:
    return [row for row in read(name) if isinstance(row, Document)]


def read_table(path: Path) -> pa.Table:
    return pq.read_table(path)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample_data")
    subprocess.run([sys.executable, ROOT / "scripts/make_sample_data.py", folder], check=True, timeout=60)
    return folder


NAMES = ["tickets.jsonl", "conversations.jsonl", "threads.jsonl", "broken.jsonl", "pairs.jsonl"]


@pytest.mark.parametrize("name", NAMES)
def test_the_script_makes_the_lines_that_are_committed(fresh: Path, name: str) -> None:
    assert (fresh / name).read_bytes() == (SAMPLE_DATA / name).read_bytes()


def test_the_script_makes_the_parquet_rows_that_are_committed(fresh: Path) -> None:
    assert read_table(fresh / "tickets.parquet").equals(read_table(SAMPLE_DATA / "tickets.parquet"))


def test_both_formats_hold_the_same_tickets() -> None:
    lines, rows = read_documents("tickets.jsonl"), read_documents("tickets.parquet")
    assert [line.fields for line in lines] == [row.fields for row in rows]
    assert [line.origin.document_id for line in lines] == [f"T-{number:05d}" for number in range(1, 301)]


def test_tickets_are_spread_in_length_and_language_and_some_are_equal() -> None:
    tickets = [ticket.fields for ticket in read_documents("tickets.jsonl")]
    lengths = sorted(len(str(ticket["body"])) for ticket in tickets)
    assert lengths[0] < 60
    assert 250 < lengths[150] < 450
    assert 2000 < lengths[-1] < 2600
    assert {ticket["language"] for ticket in tickets} == {"en", "de", "fr", "es"}
    assert len({(ticket["subject"], ticket["body"]) for ticket in tickets}) == 285


def test_the_broken_file_is_what_its_readme_says() -> None:
    rows = {row.origin.row: row for row in read("broken.jsonl")}
    assert sorted(rows) == [number for number in range(1, 30) if number != 6]
    reasons = {number: row.reason for number, row in rows.items() if isinstance(row, UnreadableRow)}
    assert {number: reason.partition(": ")[2].partition(" at ")[0] for number, reason in reasons.items()} == {
        2: "broken JSON",
        4: "an array where one JSON object is expected",
        8: "invalid UTF-8",
        10: "a NUL byte",
        12: "half of a surrogate pair",
        28: "more after the end of the JSON value,",
    }
    bodies = {number: row.fields.get("body", "absent") for number, row in rows.items() if isinstance(row, Document)}
    assert [bodies[14], bodies[16], bodies[18], bodies[22]] == [None, "absent", 4711, ""]
    assert isinstance(bodies[20], dict)
    assert 58_000 < len(str(bodies[24])) < 62_000
    assert all(isinstance(bodies[number], str) for number in [*range(1, 30, 2), 26])


def test_the_files_are_small() -> None:
    assert sum(path.stat().st_size for path in SAMPLE_DATA.iterdir()) < 1_000_000
