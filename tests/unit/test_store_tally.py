"""Counting hashes: rows, different ones, answered and failed ones, in parts that fit into memory."""

import random
from pathlib import Path

import pytest

from bulkinfer.records import Only
from bulkinfer.store import KindCount, Reader, RowKind, Tally, open_tally, tally
from tests.unit.store_support import OTHER_TASK, TASK, hash_of, make_result, run_job

SHORT, LONG, UNREADABLE = RowKind.SHORT, RowKind.LONG, RowKind.UNREADABLE


def add(tally: Tally, rows: list[tuple[str, RowKind]]) -> None:
    """Add rows in blocks of three."""
    for start in range(0, len(rows), 3):
        block = rows[start : start + 3]
        tally.add_rows(b"".join(hash_of(text) for text, _ in block), bytes(kind for _, kind in block))


def test_rows_and_different_documents_are_counted_by_kind() -> None:
    rows = [("a", SHORT), ("b", SHORT), ("a", SHORT), ("c", LONG), ("c", LONG), ("x", UNREADABLE), ("a", SHORT)]
    with open_tally() as counted:
        add(counted, rows)
        assert counted.count() == {
            SHORT: KindCount(4, 2),
            LONG: KindCount(2, 1),
            UNREADABLE: KindCount(1, 1),
        }
        assert counted.count()[SHORT].num_to_do == 2


def test_rows_of_single_documents_are_counted() -> None:
    with open_tally() as counted:
        add(counted, [("a", SHORT), ("b", LONG), ("a", SHORT), ("x", UNREADABLE), ("a", SHORT)])
        asked = [hash_of(text) for text in ("a", "b", "none")]
        assert counted.count_rows(asked) == {hash_of("a"): 3, hash_of("b"): 1}
        assert counted.count_rows([]) == {}


def test_nothing_is_nothing() -> None:
    with open_tally() as counted:
        counted.add_rows(b"", b"")
        assert counted.count() == dict.fromkeys(RowKind, KindCount())
        assert counted.find_done([hash_of("a")]) == frozenset()


def test_outcomes_of_the_task_count_and_of_another_do_not(tmp_path: Path) -> None:
    database = tmp_path / "out.duckdb"
    run_job(database, {"a.jsonl": ["one", "two", "bad"]})
    run_job(database, {"a.jsonl": ["three", "bad 3"]}, task=OTHER_TASK, name="other")
    with Reader.open(database) as reader, open_tally() as counted:
        counted.add_outcomes(reader, TASK.task_fingerprint)
        add(counted, [(text, SHORT) for text in ["one", "one", "two", "bad", "bad", "three", "bad 3", "new"]])
        found = counted.count()[SHORT]
        assert found == KindCount(num_rows=8, num_distinct=6, num_answered=2, num_failed=1, num_failed_rows=2)
        assert found.num_to_do == 3
        asked = [hash_of(text) for text in ["one", "bad", "three", "new"]]
        assert counted.find_done(asked) == {hash_of("one"), hash_of("bad")}


def test_an_answer_after_a_failure_is_an_answer(tmp_path: Path) -> None:
    database = tmp_path / "out.duckdb"
    run_job(database, {"a.jsonl": ["bad"]})
    run_job(database, {"a.jsonl": ["bad"]}, only=Only.FAILED, decide=make_result)
    with Reader.open(database) as reader, open_tally() as counted:
        counted.add_outcomes(reader, TASK.task_fingerprint)
        add(counted, [("bad", SHORT)])
        assert counted.count()[SHORT] == KindCount(1, 1, num_answered=1, num_failed=0)


def test_counting_in_parts_counts_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = random.Random(3).choices(range(2_000), k=5_000)
    with open_tally() as counted:
        add(counted, [(str(number), SHORT) for number in numbers])
        whole = counted.count()
        monkeypatch.setattr(tally, "_ROWS_PER_PART", 300)
        assert counted.count() == whole
        assert whole[SHORT] == KindCount(5_000, len(set(numbers)))
