"""Records as Arrow tables: the fast way into DuckDB (seven times appending rows, a hundred times `executemany`)."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from uuid import UUID

import duckdb
import orjson
import pyarrow as pa

from bulkinfer.records import DocumentRow, Failure, JsonValue, KnownSpan, PartAnswer, Result, Scan

_TIME = pa.timestamp("us", "UTC")


def insert_table(
    connection: duckdb.DuckDBPyConnection, statement: str, table: pa.Table, parameters: Mapping[str, object]
) -> int:
    """Run an insert that reads the Arrow table as `pending`; returns how many lines it added."""
    if table.num_rows == 0:
        return 0
    connection.register("pending", table)
    # fetchall, here and elsewhere: a result that is not read to its end keeps the connection from doing anything else.
    ((num_lines,),) = connection.execute(statement, dict(parameters)).fetchall()
    connection.unregister("pending")
    return int(num_lines)


def hashes_table(document_hashes: Iterable[bytes]) -> pa.Table:
    """One column `document_hash`."""
    return pa.table({"document_hash": _uuids(list(document_hashes))})


def last_rows_table(last_rows: Mapping[UUID, int]) -> pa.Table:
    """Columns `scan_id` and `last_row`."""
    return pa.table(
        {
            "scan_id": _uuids([key.bytes for key in last_rows]),
            "last_row": pa.array(list(last_rows.values()), pa.int64()),
        }
    )


def spans_table(spans: Sequence[KnownSpan]) -> pa.Table:
    """Columns `position`, counted from 0, `scan_id`, `after` and `last_row`."""
    return pa.table(
        {
            "position": pa.array(range(len(spans)), pa.int32()),
            "scan_id": _uuids([span.scan_id.bytes for span in spans]),
            "after": pa.array([span.after for span in spans], pa.int64()),
            "last_row": pa.array([span.last_row for span in spans], pa.int64()),
        }
    )


def rows_table(rows: Sequence[DocumentRow]) -> pa.Table:
    """Columns of the table `document_rows`."""
    return pa.table(
        {
            "scan_id": _uuids([row.scan_id.bytes for row in rows]),
            "row": pa.array([row.row for row in rows], pa.int64()),
            "document_hash": _uuids([row.document_hash for row in rows]),
            "document_id": _texts([row.document_id for row in rows]),
        }
    )


def scans_table(scans: Sequence[Scan]) -> pa.Table:
    """Columns of the table `scans` that a source file brings, and `file_layout`, which is the end of one."""
    files = [scan.source for scan in scans]
    return pa.table(
        {
            "scan_id": _uuids([scan.scan_id.bytes for scan in scans]),
            "source": _texts([file.name for file in files]),
            "size_bytes": pa.array([file.size_bytes for file in files], pa.int64()),
            "mtime_ns": pa.array([file.mtime_ns for file in files], pa.int64()),
            "ctime_ns": pa.array([file.ctime_ns for file in files], pa.int64()),
            "inode": pa.array([file.inode for file in files], pa.uint64()),
            "file_layout": _texts([file.layout + file.choice for file in files]),
        }
    )


def inputs_table(scans: Sequence[Scan]) -> pa.Table:
    """Columns `scan_id` and `position`, counted from 0."""
    return pa.table(
        {
            "scan_id": _uuids([scan.scan_id.bytes for scan in scans]),
            "position": pa.array(range(len(scans)), pa.int32()),
        }
    )


def results_table(results: Sequence[Result]) -> pa.Table:
    """Columns of the table `results` that a result brings; `value` and `details` are still text."""
    return pa.table(
        {
            "document_hash": _uuids([result.document_hash for result in results]),
            "output": _texts([result.output for result in results]),
            "value": _texts([result.value for result in results]),
            "finish_reason": _texts([result.finish_reason for result in results]),
            "prompt_tokens": pa.array([result.prompt_tokens for result in results], pa.int32()),
            "cached_tokens": pa.array([result.cached_tokens for result in results], pa.int32()),
            "output_tokens": pa.array([result.output_tokens for result in results], pa.int32()),
            "queue_s": pa.array([result.queue_s for result in results], pa.float32()),
            "first_token_s": pa.array([result.first_token_s for result in results], pa.float32()),
            "total_s": pa.array([result.total_s for result in results], pa.float32()),
            "attempts": pa.array([result.attempts for result in results], pa.int32()),
            "completed_at": pa.array([result.completed_at for result in results], _TIME),
            "details": _json_texts([result.details for result in results]),
            "vector": _vectors([result.vector for result in results]),
        }
    )


def failures_table(failures: Sequence[Failure]) -> pa.Table:
    """Columns of the table `failures` that a failure brings; `details` is still text."""
    return pa.table(
        {
            "document_hash": _uuids([failure.document_hash for failure in failures]),
            "source": _texts([failure.origin.source for failure in failures]),
            "row": pa.array([failure.origin.row for failure in failures], pa.int64()),
            "document_id": _texts([failure.origin.document_id for failure in failures]),
            "code": _texts([str(failure.code) for failure in failures]),
            "message": _texts([failure.message for failure in failures]),
            "raw_output": _texts([failure.raw_output for failure in failures]),
            "attempts": pa.array([failure.attempts for failure in failures], pa.int32()),
            "retryable": pa.array([failure.retryable for failure in failures], pa.bool_()),
            "failed_at": pa.array([failure.failed_at for failure in failures], _TIME),
            "details": _json_texts([failure.details for failure in failures]),
        }
    )


def parts_table(parts: Sequence[PartAnswer]) -> pa.Table:
    """Columns of the table `parts` that an answer brings; `repairs` is still text."""
    return pa.table(
        {
            "part_hash": _uuids([part.part_hash for part in parts]),
            "document_hash": _uuids([part.document_hash for part in parts]),
            "output": _texts([part.output for part in parts]),
            "prompt_tokens": pa.array([part.prompt_tokens for part in parts], pa.int32()),
            "cached_tokens": pa.array([part.cached_tokens for part in parts], pa.int32()),
            "output_tokens": pa.array([part.output_tokens for part in parts], pa.int32()),
            "attempts": pa.array([part.attempts for part in parts], pa.int32()),
            "answered_at": pa.array([part.answered_at for part in parts], _TIME),
            "finish_reason": _texts([part.finish_reason for part in parts]),
            "repairs": _json_texts([part.repairs for part in parts]),
        }
    )


def read_parts(table: pa.Table) -> list[PartAnswer]:
    """Lines of the table `parts`, with its columns in the order of PartAnswer's."""
    hashes = [[value for part in column.chunks for value in part.storage.to_pylist()] for column in table.columns[:2]]
    *rest, repairs = [column.to_pylist() for column in table.columns[2:]]
    read = [() if text is None else orjson.loads(text) for text in repairs]
    return [PartAnswer(*line) for line in zip(*hashes, *rest, read, strict=True)]


def read_hashes(table: pa.Table) -> frozenset[bytes]:
    """The 16-byte values of a UUID column that DuckDB returned as the table's first column."""
    return frozenset(value for part in table.column(0).chunks for value in part.storage.to_pylist())


def read_document_rows(table: pa.Table, scan_ids: Sequence[UUID]) -> list[DocumentRow]:
    """Lines with the place of a scan, and the row, hash and id of a document."""
    positions, rows, hashes, ids = table.columns
    digests = [value for part in hashes.chunks for value in part.storage.to_pylist()]
    lines = zip(positions.to_pylist(), rows.to_pylist(), digests, ids.to_pylist(), strict=True)
    return [DocumentRow(scan_ids[position], *rest) for position, *rest in lines]


def _uuids(values: list[bytes]) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(values, pa.binary(16)))


def _texts(values: list[str | None] | list[str]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        # A lone surrogate has no UTF-8 form. One such text must not keep the others of a commit from being stored.
        return pa.array([value if value is None else _printable(value) for value in values], pa.string())


def _json_texts(values: Sequence[Mapping[str, JsonValue] | Sequence[JsonValue] | None]) -> pa.Array:
    """Null for what is empty. Most often all are: then nothing is made of each."""
    if not any(values):
        return pa.nulls(len(values), pa.string())
    return _texts([orjson.dumps(value).decode() if value else None for value in values])


def _vectors(values: Sequence[bytes | None]) -> pa.Array:
    """Lists of 32-bit floats over one buffer: a million numbers are never a million objects."""
    if all(value is None for value in values):
        return pa.nulls(len(values), pa.list_(pa.float32()))
    ends = accumulate(len(value or b"") // 4 for value in values)
    starts = [0, *ends]
    offsets = [None if value is None else start for value, start in zip(values, starts, strict=False)]
    joined = b"".join(value or b"" for value in values)
    numbers = pa.Array.from_buffers(pa.float32(), len(joined) // 4, [None, pa.py_buffer(joined)])
    return pa.ListArray.from_arrays(pa.array([*offsets, starts[-1]], pa.int32()), numbers)


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
