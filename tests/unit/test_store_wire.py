"""What a run and its clients say to each other arrives as it was said, values of every DuckDB type included."""

import math

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkinfer.store.wire import (
    MAX_ARROW_ROWS,
    Ask,
    Columns,
    Done,
    Lines,
    Question,
    Refused,
    Reply,
    Rows,
    Standing,
    Working,
    decode_question,
    decode_reply,
    encode_question,
    encode_reply,
)

VALUES = [
    "null",
    "true",
    "42::utinyint",
    "(-170141183460469231731687303715884105727)::hugeint",
    "340282366920938463463374607431768211455::uhugeint",
    "sum(1)",
    "1.5::float",
    "'-inf'::double",
    "'inf'::double",
    "12.340::decimal(9,3)",
    "'text with \u00e9, \u202e, \U0001f600 and ' || chr(0)",
    "'\\x00\\xff'::blob",
    "'9f0c5c68-0000-0000-ffff-000000000001'::uuid",
    "date '2024-02-29'",
    "time '23:59:59.999999'",
    "timestamp '1969-12-31 23:59:59.5'",
    "timestamptz '2024-02-29 12:00:00+05'",
    "interval '3 months 2 days 1 second'",
    "[1, null, 3]",
    "[1, 2, 3]::integer[3]",
    "{'a': 1, 'b': [{'c': date '2024-01-01'}]}",
    "map {'k': 1.5, 'l': null}",
    "'{\"a\": [1]}'::json",
    "'x'::enum('x', 'y')",
    "'101'::bit",
    "union_value(n := 5)",
]


@pytest.mark.parametrize("sql", VALUES)
def test_a_value_of_each_type_arrives_as_duckdb_gives_it(sql: str) -> None:
    with duckdb.connect() as connection:
        rows = connection.execute(f"select {sql} as x").fetchall()
    arrived = decode_reply(encode_reply(Rows(rows)))
    assert arrived == Rows(rows)
    assert isinstance(arrived, Rows)
    assert [str(value) for value in arrived.rows[0]] == [str(value) for value in rows[0]]


def test_not_a_number_arrives_as_such() -> None:
    arrived = decode_reply(encode_reply(Rows([(math.nan,)])))
    assert isinstance(arrived, Rows)
    assert math.isnan(arrived.rows[0][0])


@pytest.mark.parametrize(
    "reply",
    [
        Columns(("a", "a", "")),
        Rows([]),
        Standing({"documents": {"read": 3}, "share": 0.5}),
        Working(),
        Refused(is_statement=True, message="no such column"),
        Done(),
    ],
    ids=lambda reply: type(reply).__name__,
)
def test_a_reply_arrives_as_it_was_given(reply: Reply) -> None:
    assert decode_reply(encode_reply(reply)) == reply


def test_an_arrow_batch_arrives_with_its_types() -> None:
    batch = pa.record_batch({"a": pa.array(["x", None]), "t": pa.array([1, 2], pa.timestamp("us", "UTC"))})
    arrived = decode_reply(encode_reply(Lines(batch)))
    assert isinstance(arrived, Lines)
    assert arrived.lines.equals(batch, check_metadata=True)


def test_a_question_arrives_as_it_was_asked() -> None:
    question = Question(Ask.ARROW, "select $name", {"name": None}, 20_000)
    assert decode_question(encode_question(question)) == question


@pytest.mark.parametrize("num_rows", [0, -1, 10**9])
def test_a_client_chooses_no_batch_that_is_too_large(num_rows: int) -> None:
    assert 1 <= decode_question(encode_question(Question(Ask.ARROW, num_rows=num_rows))).num_rows <= MAX_ARROW_ROWS


NO_QUESTIONS = [b"[]", b"{}", b'["query"]', b'["drop","",null,0]', b"[" * 100_000, b'["arrow","",null,Infinity]']


@given(st.binary(max_size=60) | st.sampled_from(NO_QUESTIONS))
def test_whatever_is_no_question_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json raises its own subclass
        decode_question(body)


@given(st.binary(max_size=60).filter(lambda body: body[:1] not in b"CRASWED" or not body))
def test_whatever_is_no_reply_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match="not a reply"):
        decode_reply(body)
