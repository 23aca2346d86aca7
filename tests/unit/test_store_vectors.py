"""Vectors come back as they went in, to the bit, and count as the bytes that they are."""

import math
from array import array
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from bulkinfer.records import Outcome
from bulkinfer.store import Form, ListedRun, Store
from bulkinfer.store.arrow import results_table
from bulkinfer.store.queue import CommitLimits, CommitQueue, Pending
from tests.unit.store_support import TASK, make_failure, make_file, make_result, make_run, select

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def pack(*numbers: float) -> bytes:
    return array("f", numbers).tobytes()


def store_vectors(database: Path, *vectors: bytes | None) -> None:
    store = Store.open(database)
    store.begin_run(make_run(), TASK, [make_file()], "body")
    store.add([replace(make_result(str(number)), vector=vector) for number, vector in enumerate(vectors)])
    store.add([make_failure("bad")])
    store.close()


def test_vectors_come_back_as_they_were(tmp_path: Path) -> None:
    vectors = [pack(0.1, -2.5, 1e-30), None, pack(math.pi, 0.0, -0.0)]
    store_vectors(tmp_path / "a.duckdb", *vectors)
    (order, found) = zip(
        *select(tmp_path / "a.duckdb", "select output, vector from results order by output"), strict=True
    )
    assert order == ("answer to 0", "answer to 1", "answer to 2")
    assert [None if vector is None else pack(*vector) for vector in found] == vectors
    assert select(tmp_path / "a.duckdb", "select typeof(vector) from results limit 1") == [("FLOAT[]",)]


@given(st.lists(st.none() | st.lists(FLOATS, max_size=5)))
def test_any_vectors_become_lists(vectors: list[list[float] | None]) -> None:
    results = [
        replace(make_result(str(number)), vector=None if vector is None else pack(*vector))
        for number, vector in enumerate(vectors)
    ]
    column = results_table(results).column("vector")
    assert column.type == pa.list_(pa.float32())
    assert column.to_pylist() == vectors


def test_a_vector_counts_as_its_bytes_in_the_backlog() -> None:
    """Else 16,000 waiting vectors of a large model would be hundreds of megabytes."""
    queue = CommitQueue(Path("a.duckdb"), CommitLimits(max_outcomes=1_000_000, max_bytes=4_000, max_wait_s=600))
    vector = pack(*[0.5] * 900)
    outcomes: list[Outcome] = [replace(make_result("x"), vector=vector), replace(make_result("y"), vector=vector)]
    queue.put([], outcomes)
    taken = queue.take()
    assert isinstance(taken, Pending)
    assert 2 * len(vector) < taken.num_bytes < 2 * len(vector) + 1_000


def test_few_rows_with_long_vectors_or_answers_are_held_at_a_time() -> None:
    run = ListedRun(uuid4(), uuid4(), (), (), vector_length=None)
    assert run.block_rows == 20_000
    assert replace(run, vector_length=4096).block_rows * 4 * 4096 < 20 << 20
    assert replace(run, row_bytes=1 << 20).block_rows < 20


def test_vectors_never_become_part_of_the_text_of_a_line() -> None:
    form = Form(("status", "output", "vector"), ("status", "it's", "v"))
    assert form.columns == ("status", "line", "vector")
    assert form.named == {"status": "status", "it's": "output"}
    assert "'v'" not in form.select("from x a")
