"""Killed over an input of all formats of which it chooses rows: an export has each once, with its own columns."""

import csv
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyarrow import feather
from pyarrow import parquet as pq

from bulkinfer.export import ExportOptions, export_job, parse_target
from bulkinfer.job import load_job
from bulkinfer.sources import find_input, open_source
from bulkinfer.store import open_reader
from tests.conftest import JobFolder
from tests.crash.points import PLACES, Orders, Point
from tests.crash.test_named_points import KILLED, SLOW_S
from tests.crash.trial import LIMIT_S, Trial, write_simulated_job

NUM_ROWS = 90
"""Of each file."""
Row = dict[str, Any]


def make_rows(dice: random.Random, name: str) -> list[Row]:
    return [
        {
            "id": f"{name}-{number}",
            "body": f"text {dice.randrange(200)} " + "word " * dice.randrange(20),
            "n": dice.randrange(9),
            "price": dice.choice(["1", "5", "7", "none"]),
        }
        for number in range(NUM_ROWS)
    ]


def write(path: Path, rows: Sequence[Row]) -> None:
    table = pa.Table.from_pylist(list(rows))
    match path.suffix:
        case ".parquet":
            pq.write_table(table, path, row_group_size=20)
        case ".feather":
            feather.write_feather(table, path, chunksize=17)
        case ".jsonl":
            path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
        case _:
            with path.open("w", newline="", encoding="utf-8") as stream:
                writer = csv.DictWriter(stream, rows[0].keys())
                writer.writeheader()
                writer.writerows(rows)
    os.utime(path, ns=(1_700_000_000_123_456_789,) * 2)


def export(folder: JobFolder) -> list[Row]:
    job = load_job(folder.job_path)
    target = folder.path / "out.jsonl"
    with open_reader(job.database_path) as reader:
        export_job(reader, job, parse_target(target), ExportOptions())
    return [orjson.loads(line) for line in target.read_bytes().splitlines()]


@pytest.mark.parametrize(
    ("section", "is_touched"),
    [
        ({"where": "n::int % 3 = 0 or price::int > 6"}, False),
        ({"where": "n::int % 3 = 0 or price::int > 6"}, True),
        ({"where": "n::int > 1 and now() > '2020-01-01'", "sample": "80%", "limit": 200}, False),
        ({"sample": 150, "sample_seed": 3}, True),
        ({"sql": "select id, body, n::int as n, price from input where n::int % 3 < 2 order by id"}, False),
    ],
    ids=["where, by row", "where, by content", "all three", "sample, by content", "sql"],
)
def test_each_row_is_exported_once_after_kills_and_at_the_end(
    tmp_path: Path, section: dict[str, Any], is_touched: bool
) -> None:
    dice = random.Random(7)
    folder = JobFolder(tmp_path)
    rows: dict[str, Row] = {}
    for name in ("a.parquet", "b.jsonl", "c.csv", "d.feather"):
        made = make_rows(dice, name)
        write(folder.path / name, made)
        rows |= {row["id"]: row for row in made}
    folder.spec["input"] = {"path": ["a.parquet", "b.jsonl", "c.csv", "d.feather"], "id": "id", **section}
    folder.spec["limits"]["max_failures"] = "90%"
    write_simulated_job(folder, seconds_per_token=SLOW_S, max_tokens=8)
    files = find_input(load_job(folder.job_path))
    numbers = {
        (row.origin.source, row.origin.row)
        for file in files
        for row in open_source(file, frozenset({"body"}), "id").iter_rows()
    }
    assert 100 < len(numbers) < 4 * NUM_ROWS

    trial = Trial(folder)
    for num_kills in (1, 2):
        killed = trial.start(Orders((Point(PLACES["acknowledged"], num_kills),), commit_size=20))
        try:
            assert killed.process.wait(LIMIT_S) == KILLED, killed.read_errors()
            trial.check(killed)
        finally:
            killed.end()
        if is_touched:
            for path in folder.path.glob("?.*"):
                path.touch()
        check_rows(export(folder), rows, numbers, is_done=False)
    trial.complete(in_process=True)
    check_rows(export(folder), rows, numbers, is_done=True)


def check_rows(exported: Sequence[Row], rows: dict[str, Row], numbers: set[tuple[str, int]], *, is_done: bool) -> None:
    found = [(line["source"], line["row"]) for line in exported]
    assert len(found) == len(numbers)
    assert set(found) == numbers
    assert len({line["id"] for line in exported}) == len(numbers)
    outputs: dict[str, set[str]] = {}
    for line in exported:
        own = rows[line["id"]]
        assert {key: str(line[key]) for key in own} == {key: str(value) for key, value in own.items()}
        if line["status"] == "answered":
            outputs.setdefault(line["body"], set()).add(line["output"])
    assert all(len(answers) == 1 for answers in outputs.values()), "an answer to another document"
    status = [line["status"] for line in exported]
    assert status.count("answered") > 0
    assert (status.count("pending") == 0) is is_done
