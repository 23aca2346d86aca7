"""Samples: how a run stood every few seconds, in the transaction of a commit, never too many of them."""

from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import duckdb
import pytest

from bulkinfer.errors import StoreError
from bulkinfer.records import RunStatus
from bulkinfer.store import CommitLimits, Reader, Store, find_runs, read_details, samples, writer
from bulkinfer.store.commit import commit_pending
from bulkinfer.store.samples import SampleClock, interval_s
from tests.unit.store_support import QUICK, TASK, make_file, make_result, make_run, make_sample, select

ALL_COMMITS = CommitLimits(max_outcomes=1)


def open_run(database: Path, limits: CommitLimits = ALL_COMMITS) -> Store:
    """A store in which a run has begun."""
    store = Store.open(database, limits=limits)
    store.begin_run(make_run(), TASK, [make_file()], "body")
    return store


def test_ten_days_write_eighteen_thousand_lines() -> None:
    elapsed_s, num_lines = 0.0, 0
    while elapsed_s < 10 * 86_400:
        elapsed_s += interval_s(elapsed_s)
        num_lines += 1
    assert 17_000 < num_lines < 18_000
    assert interval_s(0) == interval_s(2_000) == 2
    assert interval_s(10_000) == 10
    assert interval_s(10**9) == 60


def test_a_line_is_due_at_the_first_commit_and_then_after_the_interval() -> None:
    clock = SampleClock()
    assert clock.take_if_due() is None, "nobody tells anything"
    clock.source = lambda: (make_sample(1), {})
    with patch("bulkinfer.store.samples.time.monotonic") as now:
        now.return_value = clock._began_s + 5
        assert clock.take_if_due() is not None
        now.return_value += 1.9
        assert clock.take_if_due() is None
        assert clock.take_if_due(is_last=True) is not None, "the end of a run is always told"
        now.return_value += 2
        assert clock.take_if_due() is not None


def test_settings_are_told_once_and_when_they_change() -> None:
    clock = SampleClock()
    told = []
    for settings in ({}, {"threads": 1}, {"threads": 1}, {"threads": 2}):
        clock.source = lambda settings=settings: (make_sample(), settings)
        taken = clock.take_if_due(is_last=True)
        assert taken is not None
        told.append(taken.settings)
    assert told == [None, {"threads": 1}, None, {"threads": 2}]


def test_a_sample_that_cannot_be_taken_is_left_out_and_the_commit_goes_on(tmp_path: Path) -> None:
    def fail() -> NoReturn:
        raise OSError("/proc is not there")

    store = open_run(tmp_path / "out.duckdb")
    store.samples.source = fail
    store.add([make_result("a")])
    store.flush()
    store.end_run(RunStatus.COMPLETED, 0, {})
    store.close()
    assert select(tmp_path / "out.duckdb", "select count(*) from results") == [(1,)]
    assert select(tmp_path / "out.duckdb", "select count(*) from samples") == [(0,)]


def test_each_field_arrives_in_its_column(tmp_path: Path) -> None:
    store = open_run(tmp_path / "a.duckdb")
    names = list(samples.Sample.__dataclass_fields__)
    numbers = {name: number / 8 if name == "kv_cache_usage" else number for number, name in enumerate(names, start=1)}
    store.samples.source = lambda: (make_sample(**numbers), {"threads": 2})
    store.add([make_result("a")])
    store.close()
    [line] = select(tmp_path / "a.duckdb", f"select {', '.join(names)} from samples")
    assert dict(zip(names, line, strict=True)) == numbers
    assert select(
        tmp_path / "a.duckdb",
        "select settings ->> 'threads', s.run_id = c.run_id, s.seq = c.seq, abs(epoch(sampled_at - committed_at)) < 60 "
        "from samples s, commits c",
    ) == [("2", True, True, True)]


def test_the_end_of_a_run_has_a_line(tmp_path: Path) -> None:
    store = open_run(tmp_path / "a.duckdb")
    moments = iter((1.0, 2.0, 3.0))
    store.samples.source = lambda: (make_sample(next(moments)), {})
    for text in "abc":
        store.add([make_result(text)])
        store.flush()
    store.end_run(RunStatus.COMPLETED, 0, {})
    store.close()
    assert select(tmp_path / "a.duckdb", "select seq, elapsed_s from samples order by all") == [(1, 1.0), (3, 2.0)]


def test_a_commit_that_fails_leaves_no_line_and_a_second_attempt_one(tmp_path: Path) -> None:
    store = open_run(tmp_path / "a.duckdb", QUICK)
    store.samples.source = lambda: (make_sample(1.0), {})
    outcomes: list[object] = []

    def fail(*arguments: Any) -> NoReturn:  # noqa: ANN401 - as it was called
        outcomes.append(commit_pending(*arguments))
        raise duckdb.IOException

    with patch.object(writer, "commit_pending", fail):
        store.add([make_result("a")])
        with pytest.raises(StoreError):
            store.flush()
    store.close()
    assert len(outcomes) > 1, "all was written, and then the commit failed"
    assert select(tmp_path / "a.duckdb", "select count(*) from samples") == [(0,)]

    store = open_run(tmp_path / "a.duckdb", QUICK)
    store.samples.source = lambda: (make_sample(1.0), {})
    outcomes.clear()

    def fail_once(*arguments: Any) -> object:  # noqa: ANN401
        outcomes.append(commit_pending(*arguments))
        if len(outcomes) == 1:
            raise duckdb.IOException
        return outcomes[-1]

    with patch.object(writer, "commit_pending", fail_once):
        store.add([make_result("a")])
        store.flush()
    store.close()
    assert len(outcomes) == 2
    assert select(tmp_path / "a.duckdb", "select count(*) from samples") == [(1,)]


def test_a_line_that_alone_cannot_be_written_is_left_out_and_the_commit_goes_on(tmp_path: Path) -> None:
    store = open_run(tmp_path / "a.duckdb", QUICK)
    store.samples.source = lambda: (make_sample(1.0, read=2**80), {})
    store.add([make_result("a")])
    store.flush()
    store.samples.source = lambda: (make_sample(2.0, read=2**80), {})
    store.end_run(RunStatus.COMPLETED, 0, {})
    store.close()
    assert select(tmp_path / "a.duckdb", "select count(*) from results") == [(1,)]
    assert select(tmp_path / "a.duckdb", "select status from run_ends") == [("completed",)]
    assert select(tmp_path / "a.duckdb", "select count(*) from samples") == [(0,)]


def test_an_older_database_gets_the_table_when_it_is_written_and_is_read_without(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    store = open_run(database)
    store.add([make_result("a")])
    store.close()
    with duckdb.connect(database) as connection:
        connection.execute("drop table samples")
    assert select(database, "select count(*) from results") == [(1,)]
    store = open_run(database)
    store.samples.source = lambda: (make_sample(1.0), {})
    store.add([make_result("b")])
    store.close()
    assert select(database, "select count(*) from samples") == [(1,)]
    assert select(database, "select count(*) from results") == [(2,)]


def test_an_older_table_gets_the_columns_that_it_lacks_and_is_read_without(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    store = open_run(database)
    store.samples.source = lambda: (make_sample(1.0, gpu_memory_bytes=7), {})
    store.add([make_result("a")])
    store.close()
    with duckdb.connect(database) as connection:
        connection.execute("alter table samples drop column gpu_memory_bytes")
    with Reader.open(database) as reader:
        [run] = find_runs(reader)
        [moment] = read_details(reader, run, 10).moments
        assert (moment.elapsed_s, moment.gpu_memory_bytes) == (1, None)
    store = open_run(database)
    store.samples.source = lambda: (make_sample(2.0, gpu_memory_bytes=9), {})
    store.add([make_result("b")])
    store.close()
    assert select(database, "select elapsed_s, gpu_memory_bytes from samples order by all") == [(1, None), (2, 9)]
    with Reader.open(database) as reader:
        [run] = find_runs(reader)
        assert [moment.gpu_memory_bytes for moment in read_details(reader, run, 10).moments] == [9]
