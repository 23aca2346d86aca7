"""Answers to parts of documents: kept once, found again as they were, and cut ones only where they count."""

from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from bulkinfer.records import PartAnswer
from bulkinfer.store import Store
from tests.unit.store_support import NOW, TASK, hash_of, make_file, make_run, select

WHOLE = PartAnswer(hash_of("whole"), hash_of("a"), "an answer", 10, 4, 3, 2, NOW, "stop", ({"then": "again"},))
CUT = PartAnswer(hash_of("cut"), hash_of("a"), "an ans", 10, 4, 3, 1, NOW, "length")
PARTS = [WHOLE, CUT]
HASHES = [part.part_hash for part in PARTS]


def store_parts(database: Path, parts: list[PartAnswer]) -> None:
    store = Store.open(database)
    store.begin_run(make_run(), TASK, [make_file()], "body")
    store.add_parts(parts)
    store.close()


def find_parts(database: Path, *, accepts_cut: bool) -> dict[bytes, PartAnswer]:
    store = Store.open(database)
    store.begin_run(make_run(), TASK, [make_file()], "body")
    try:
        return store.find_parts([*HASHES, hash_of("another")], accepts_cut=accepts_cut)
    finally:
        store.close()


@pytest.mark.parametrize(("accepts_cut", "found"), [(False, [WHOLE]), (True, [WHOLE, CUT])])
def test_parts_are_found_as_they_were_and_cut_ones_only_where_they_count(
    tmp_path: Path, accepts_cut: bool, found: list[PartAnswer]
) -> None:
    store_parts(tmp_path / "a.duckdb", PARTS)
    parts = find_parts(tmp_path / "a.duckdb", accepts_cut=accepts_cut)
    assert {
        key: replace(part, answered_at=part.answered_at.astimezone(NOW.tzinfo), repairs=tuple(part.repairs))
        for key, part in parts.items()
    } == {part.part_hash: part for part in found}


def test_parts_of_which_nobody_knows_whether_they_were_cut_are_asked_and_stored_again(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    store_parts(database, PARTS)
    with duckdb.connect(database) as connection:  # as it was before these columns
        connection.execute("alter table parts drop column finish_reason")
        connection.execute("alter table parts drop column repairs")
    assert find_parts(database, accepts_cut=False) == find_parts(database, accepts_cut=True) == {}
    store_parts(database, [WHOLE])
    assert set(find_parts(database, accepts_cut=False)) == {WHOLE.part_hash}
    store_parts(database, [WHOLE])
    assert select(database, "select finish_reason, count(*) from parts group by 1 order by 1") == [
        ("stop", 1),
        (None, 2),
    ]
