"""Every input row of a job with its answer, or why it has none, as Parquet, JSONL or CSV by the ending of the file.

Rows come in input order, in bounded memory. The file appears whole or not at all, and an older one stays until then.
"""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import IO, Protocol

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from bulkinfer.errors import JobError
from bulkinfer.store.reader import Reader
from bulkinfer.store.remote import RemoteReader
from bulkinfer.store.replacing import replacing

AnyReader = Reader | RemoteReader

_BATCH_ROWS = 20_000

_ROWS = """
    select d.position, d.document_id, d.source, d.row,
        case when r.document_hash is not null then 'answered' when f.code is not null then 'failed'
            else 'unanswered' end as status,
        r.output, r.value::varchar as value, r.finish_reason, r.prompt_tokens, r.cached_tokens, r.output_tokens,
        round(r.queue_s::double, 6) as queue_s, round(r.first_token_s::double, 6) as first_token_s,
        round(r.total_s::double, 6) as total_s, coalesce(r.attempts, f.attempts) as attempts, r.completed_at,
        f.code as failure_code, f.message as failure_message, d.document_hash::varchar as document_hash
    from documents d
    join newest_runs n on n.name = d.name
    left join results r on r.task_fingerprint = n.task_fingerprint and r.document_hash = d.document_hash
    left join newest_failures f
        on f.task_fingerprint = n.task_fingerprint and f.document_hash = d.document_hash and r.document_hash is null
    where d.name = $name
"""
_SCHEMA = pa.schema(
    [
        ("document_id", pa.string()),
        ("source", pa.string()),
        ("row", pa.int64()),
        ("status", pa.string()),
        ("output", pa.string()),
        ("value", pa.string()),
        ("finish_reason", pa.string()),
        ("prompt_tokens", pa.int32()),
        ("cached_tokens", pa.int32()),
        ("output_tokens", pa.int32()),
        ("queue_s", pa.float32()),
        ("first_token_s", pa.float32()),
        ("total_s", pa.float32()),
        ("attempts", pa.int32()),
        ("completed_at", pa.timestamp("us", "UTC")),
        ("failure_code", pa.string()),
        ("failure_message", pa.string()),
        ("document_hash", pa.string()),
    ]
)
_COLUMNS = f"select * exclude (position) from ({_ROWS}) order by position, row"
# DuckDB writes the JSON: building it from Python values takes ten times as long.
_LINES = f"""
    select to_json({{{", ".join(f"'{name}': {name}" for name in _SCHEMA.names)}}})::varchar as line
    from (
        select * replace (
            value::json as value,
            strftime(completed_at, '%Y-%m-%dT%H:%M:%S.%fZ') as completed_at
        ) from ({_ROWS})
    ) order by position, row
"""


class _Stream(Protocol):
    """Where bytes go: a file, or gzip before one."""

    def write(self, content: bytes, /) -> int:
        """Write all of it."""


def export_answers(reader: AnyReader, name: str, file: Path) -> int:
    """Write all input rows of the job's newest run, and return how many.

    Columns: document_id, source, row, status (answered, failed or unanswered), output, value, finish_reason, token
    counts, durations in seconds, attempts, completed_at, failure_code, failure_message, document_hash. `value` is JSON
    text in Parquet and CSV, and a JSON value in JSONL. Raises JobError: unknown ending, folder missing or not writable,
    no run of that name; StoreError when the database cannot be read.
    """
    write = _choose_writer(file)
    if name not in reader.names():
        raise JobError(f"{reader.path}: holds no run of a job named {name!r}")
    with replacing(file) as stream:
        return write(reader, name, stream)


def _choose_writer(file: Path) -> Callable[[AnyReader, str, IO[bytes]], int]:
    match file.suffixes:
        case [*_, ".parquet"]:
            return _write_parquet
        case [*_, ".csv"]:
            return _write_csv
        case [*_, ".jsonl"]:
            return _write_jsonl
        case [*_, ".jsonl", ".gz"]:
            return _write_jsonl_gz
    raise JobError(f"{file}: the ending says the format, and must be .parquet, .jsonl, .jsonl.gz or .csv")


def _write_parquet(reader: AnyReader, name: str, stream: IO[bytes]) -> int:
    with pyarrow.parquet.ParquetWriter(stream, _SCHEMA, compression="zstd") as writer:
        return _write_batches(reader, name, _COLUMNS, lambda batch: writer.write_batch(batch.cast(_SCHEMA)))


def _write_csv(reader: AnyReader, name: str, stream: IO[bytes]) -> int:
    with pyarrow.csv.CSVWriter(stream, _SCHEMA) as writer:
        return _write_batches(reader, name, _COLUMNS, lambda batch: writer.write_batch(batch.cast(_SCHEMA)))


def _write_jsonl_gz(reader: AnyReader, name: str, stream: IO[bytes]) -> int:
    with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=3, mtime=0) as packed:
        return _write_jsonl(reader, name, packed)


def _write_jsonl(reader: AnyReader, name: str, stream: _Stream) -> int:
    def write(batch: pa.RecordBatch) -> None:
        lines: list[str] = batch.column("line").to_pylist()
        stream.write("".join(f"{line}\n" for line in lines).encode())

    return _write_batches(reader, name, _LINES, write)


def _write_batches(reader: AnyReader, name: str, sql: str, write: Callable[[pa.RecordBatch], None]) -> int:
    num_rows = 0
    for batch in reader.iter_arrow(sql, {"name": name}, _BATCH_ROWS):
        write(batch)
        num_rows += batch.num_rows
    return num_rows
