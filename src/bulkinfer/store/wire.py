"""What a run and those who ask it say to each other over the run's socket.

A client sends one request and reads replies until `Done` or `Refused`. A frame is one byte that names it and its
content: JSON, or an Arrow stream. Values of any DuckDB type arrive as the Python values that DuckDB gives.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

import pyarrow as pa

from bulkinfer.records import JsonValue

MAX_REQUEST_BYTES = 4 * 1024 * 1024
MAX_ARROW_ROWS = 100_000
"""Of a batch, whatever a client asks for."""


class Ask(StrEnum):
    """What a client wants."""

    QUERY = "query"
    """Rows of the user's own statement."""
    SELECT = "select"
    """Rows of bulkinfer's own statement."""
    ARROW = "arrow"
    """The same as Arrow record batches."""
    STATUS = "status"
    """How the run stands now."""


@dataclass(frozen=True, slots=True)
class Question:
    """The one frame of a client."""

    ask: Ask
    sql: str = ""
    parameters: Mapping[str, JsonValue] | None = None
    num_rows: int = 0
    """Of an Arrow batch."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of the columns; the first reply to a query."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows."""

    rows: Sequence[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Lines:
    """One Arrow record batch."""

    lines: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Standing:
    """How the run stands."""

    status: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Working:
    """A sign of life while a statement runs."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The last reply: why there is no more. `is_statement`: the statement is at fault; otherwise the run cannot."""

    is_statement: bool
    message: str


@dataclass(frozen=True, slots=True)
class Done:
    """The last reply: that was all."""


Reply = Columns | Rows | Lines | Standing | Working | Refused | Done


def encode_question(question: Question) -> bytes:
    """JSON."""
    return _dump([question.ask, question.sql, question.parameters, question.num_rows])


def decode_question(body: bytes) -> Question:
    """The inverse. Raises ValueError for anything else."""
    try:
        ask, sql, parameters, num_rows = json.loads(body)
        num_rows = min(max(1, int(num_rows)), MAX_ARROW_ROWS)
        return Question(Ask(ask), str(sql), None if parameters is None else dict(parameters), num_rows)
    except (TypeError, RecursionError, OverflowError) as error:
        raise ValueError("not a question") from error


def encode_reply(reply: Reply) -> bytes:
    """A letter and its content."""
    content = b""
    match reply:
        case Columns(names):
            content = _dump(names)
        case Rows(rows):
            content = _dump([[_pack(value) for value in row] for row in rows])
        case Lines(lines):
            content = _write_arrow(lines)
        case Standing(status):
            content = _dump(status)
        case Refused():
            content = _dump([reply.is_statement, reply.message])
    return _LETTERS[type(reply)] + content


def decode_reply(body: bytes) -> Reply:
    """The inverse. Raises ValueError for anything else."""
    decode = _DECODERS.get(body[:1])
    if decode is None:
        raise ValueError("not a reply")
    return decode(body[1:])


_LETTERS: dict[type[Reply], bytes] = {
    Columns: b"C",
    Rows: b"R",
    Lines: b"A",
    Standing: b"S",
    Working: b"W",
    Refused: b"E",
    Done: b"D",
}
_DECODERS: dict[bytes, Callable[[bytes], Reply]] = {
    b"C": lambda content: Columns(tuple(json.loads(content))),
    b"R": lambda content: Rows([tuple(map(_unpack, row)) for row in json.loads(content)]),
    b"A": lambda content: Lines(_read_arrow(content)),
    b"S": lambda content: Standing(json.loads(content)),
    b"W": lambda _: Working(),
    b"E": lambda content: Refused(*json.loads(content)),
    b"D": lambda _: Done(),
}


def _dump(value: object) -> bytes:
    # Not orjson: it has no integers beyond 64 bits (every sum is a HUGEINT), no NaN, and refuses lone surrogates.
    return json.dumps(value, separators=(",", ":")).encode()


def _write_arrow(lines: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, lines.schema) as writer:
        writer.write_batch(lines)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _read_arrow(content: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(content) as reader:
        return reader.read_next_batch()


@dataclass(frozen=True, slots=True)
class _Codec:
    """How the values of one type travel."""

    name: str
    kind: type
    pack: Callable[[Any], object]
    unpack: Callable[[Any], object]


_CODECS = (
    _Codec("uuid", UUID, str, UUID),
    _Codec("datetime", datetime, datetime.isoformat, datetime.fromisoformat),  # before date, whose subclass it is
    _Codec("date", date, date.isoformat, date.fromisoformat),
    _Codec("time", time, time.isoformat, time.fromisoformat),
    _Codec("timedelta", timedelta, lambda t: [t.days, t.seconds, t.microseconds], lambda parts: timedelta(*parts)),
    _Codec("decimal", Decimal, str, Decimal),
    _Codec("bytes", bytes, bytes.hex, bytes.fromhex),
    _Codec("tuple", tuple, lambda parts: list(map(_pack, parts)), lambda parts: tuple(map(_unpack, parts))),
    _Codec("list", list, lambda parts: list(map(_pack, parts)), lambda parts: list(map(_unpack, parts))),
    _Codec(
        "dict",
        dict,
        lambda pairs: [[_pack(key), _pack(value)] for key, value in pairs.items()],
        lambda pairs: {_unpack(key): _unpack(value) for key, value in pairs},
    ),
)
_UNPACK = {codec.name: codec.unpack for codec in _CODECS}


def _pack(value: object) -> object:
    """JSON's own values as they are; any other as a list of its type's name and its parts."""
    if value is None or isinstance(value, str | int | float):
        return value
    return next(([codec.name, codec.pack(value)] for codec in _CODECS if isinstance(value, codec.kind)), str(value))


def _unpack(packed: object) -> object:
    if not isinstance(packed, list):
        return packed
    name, content = packed
    return _UNPACK[name](content)
