"""Of each input row of a job's newest run what it ended with, for an export. It knows no files.

Rows are asked for in one of two ways: all that the run has listed, in input order, or by what they hold, for rows of a
file that is not any more as the run saw it.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

import pyarrow as pa

from bulkinfer.errors import JobError
from bulkinfer.records import JsonValue, SourceFile
from bulkinfer.store.reader import Reader
from bulkinfer.store.remote import RemoteReader
from bulkinfer.store.runs import identify_file, is_settled

AnyReader = Reader | RemoteReader

_MAX_BLOCK_ROWS = 20_000
_BLOCK_BYTES = 16 << 20
"""About, of the answers that are held at a time; in Python they take several times as much."""
STATUS = "status"
LINE = "line"
VECTOR = "vector"
KEYS = ("scan", "row", "document_id", "document_hash")
"""Columns that tell which row it is, in all that is read here; `document_hash` is text, `scan` counts from 1."""


class RowStatus(StrEnum):
    """What a row of the input has."""

    ANSWERED = "answered"
    FAILED = "failed"
    PENDING = "pending"
    """No outcome yet: the run has not come to it, or the row has changed since."""


@dataclass(frozen=True, slots=True)
class _Field:
    kind: pa.DataType
    sql: str
    json_sql: str | None = None
    """Where it is another: DuckDB writes JSON ten times as fast as it can be made of Python values."""


_STATUS_SQL = f"""case when r.document_hash is not null then '{RowStatus.ANSWERED}'
    when f.code is not null then '{RowStatus.FAILED}' else '{RowStatus.PENDING}' end"""
_DETAILS_SQL = "coalesce(r.details, f.details)"
_FIELDS = {
    STATUS: _Field(pa.string(), _STATUS_SQL),
    "output": _Field(pa.string(), "r.output"),
    "value": _Field(pa.string(), "r.value::varchar", "r.value::json"),
    "finish_reason": _Field(pa.string(), "r.finish_reason"),
    "prompt_tokens": _Field(pa.int32(), "r.prompt_tokens"),
    "cached_tokens": _Field(pa.int32(), "r.cached_tokens"),
    "output_tokens": _Field(pa.int32(), "r.output_tokens"),
    "queue_s": _Field(pa.float32(), "round(r.queue_s::double, 6)"),
    "first_token_s": _Field(pa.float32(), "round(r.first_token_s::double, 6)"),
    "total_s": _Field(pa.float32(), "round(r.total_s::double, 6)"),
    "attempts": _Field(pa.int32(), "coalesce(r.attempts, f.attempts)"),
    "completed_at": _Field(
        pa.timestamp("us", "UTC"), "r.completed_at", "strftime(r.completed_at, '%Y-%m-%dT%H:%M:%S.%fZ')"
    ),
    "failure_code": _Field(pa.string(), "f.code"),
    "failure_message": _Field(pa.string(), "f.message"),
    "details": _Field(pa.string(), f"{_DETAILS_SQL}::varchar", f"{_DETAILS_SQL}::json"),
    VECTOR: _Field(pa.list_(pa.float32()), "r.vector"),
}
FIELDS = tuple(_FIELDS)
"""What a row's answer or failure has, in the order of an export; `vector` only where the task makes some."""
LATER_FIELDS = frozenset({"details", VECTOR})
"""Those that a database has only once a run of a newer bulkinfer wrote to it."""

_KEY_SQL = "a.scan, a.row, a.document_id, a.document_hash::varchar as document_hash"
_RUN = "select run_id, task_fingerprint from newest_runs where name = $name"
_SCANS = """
    select s.scan_id, s.source, s.layout, s.size_bytes, s.mtime_ns, s.ctime_ns, s.inode, epoch_ns(s.created_at)
    from run_inputs i join scans s using (scan_id)
    where i.run_id = $run::uuid order by i.position
"""
# As a run judges that begins: complete where the last row that a reading came to is there.
_COMPLETE = """
    select e.scan_id from (select scan_id, max(last_row) as last_row from scan_ends group by scan_id) e
    left join (select scan_id, max(row) as last_row from document_rows group by scan_id) d using (scan_id)
    where e.scan_id in (select scan_id from run_inputs where run_id = $run::uuid)
        and e.last_row = coalesce(d.last_row, 0)
"""
_VECTOR = """
    select len(vector) from results where task_fingerprint = $task::uuid and vector is not null limit 1
"""
_WIDTH = """
    select avg(strlen(output) + coalesce(strlen(value::varchar), 0) + {details})
    from (select * from results where task_fingerprint = $task::uuid limit 4096)
"""
_DETAILS_WIDTH = "coalesce(strlen(details::varchar), 0)"
_LATER = """
    select count(*) filter (table_name = 'results' and column_name = 'vector'),
        count(*) filter (table_name = 'scan_ends' and column_name = 'scan_id')
    from duckdb_columns()
"""
_LISTED = """
    select s.scan, d.row, d.document_id, d.document_hash from document_rows d join (
        select unnest($scans::uuid[]) as scan_id, generate_subscripts($scans::uuid[], 1)::integer as scan
    ) s using (scan_id)
"""
_HASHES = "select unnest($hashes::uuid[]) as document_hash"
_SOUGHT = f"select 0::integer as scan, 0::bigint as row, '' as document_id, document_hash from ({_HASHES})"


@dataclass(frozen=True, slots=True)
class ListedScan:
    """One input file of the run, as it was when its rows were listed."""

    scan_id: UUID
    source: str
    layout: str
    """JSON texts: what the job says of its documents, how this file is read, and which of its rows are the job's."""
    identity: tuple[str, str, int, int, int, int]
    """See `runs.identify_file`."""
    began_ns: int
    is_complete: bool
    """The file has no other rows than those that are listed."""


@dataclass(frozen=True, slots=True)
class ListedRun:
    """The newest run of a job."""

    run_id: UUID
    task_fingerprint: UUID
    scans: tuple[ListedScan, ...]
    """In input order."""
    fields: tuple[str, ...]
    """Which of FIELDS its answers have."""
    vector_length: int | None
    """Of the task's vectors; None where it has none."""
    row_bytes: int = 0
    """About, of the texts of an answer."""

    @property
    def block_rows(self) -> int:
        """So many rows with their answers are held at a time."""
        row_bytes = self.row_bytes + 4 * (self.vector_length or 0)
        return min(_MAX_BLOCK_ROWS, _BLOCK_BYTES // (row_bytes + 1) + 1)

    def type_of(self, field: str) -> pa.DataType:
        """The Arrow type of a field. All vectors of a task have one length."""
        if field == VECTOR and self.vector_length is not None:
            return pa.list_(pa.float32(), self.vector_length)
        return _FIELDS[field].kind


def read_listed_run(reader: AnyReader, name: str) -> ListedRun:
    """The newest run of the job. Raises JobError when there is none, StoreError when the database cannot be read."""
    found = list(reader.select(_RUN, {"name": name}))
    if not found:
        raise JobError(f"{reader.path}: holds no run of a job named {name!r}")
    ((run_id, task),) = found
    ((has_fields, has_ends),) = list(reader.select(_LATER, {}))
    about_run: dict[str, JsonValue] = {"run": str(run_id)}
    complete = {scan_id for (scan_id,) in reader.select(_COMPLETE, about_run)} if has_ends else set()
    scans = [
        ListedScan(scan_id, source, layout, (source, layout, *identity), began_ns, scan_id in complete)
        for scan_id, source, layout, *identity, began_ns in reader.select(_SCANS, about_run)
    ]
    lengths = list(reader.select(_VECTOR, {"task": str(task)})) if has_fields else []
    left_out = LATER_FIELDS if not has_fields else frozenset() if lengths else frozenset({VECTOR})
    fields = tuple(field for field in FIELDS if field not in left_out)
    width = _WIDTH.format(details=_DETAILS_WIDTH if has_fields else "0")
    ((row_bytes,),) = list(reader.select(width, {"task": str(task)}))
    return ListedRun(
        run_id, task, tuple(scans), fields, lengths[0][0] if lengths else None, int(row_bytes) if row_bytes else 0
    )


def is_listed_as(scan: ListedScan, file: SourceFile) -> bool:
    """Whether the file is surely as it was when its rows were listed, so that their numbers tell which they are."""
    _, end = json.JSONDecoder().raw_decode(scan.layout)
    is_same = identify_file(file, scan.layout[:end]) == scan.identity
    return is_same and is_settled(file, scan.began_ns)


@dataclass(frozen=True, slots=True)
class Form:
    """In which form rows are wanted: a column for each field, or all but vectors as one JSON text."""

    fields: tuple[str, ...]
    names: tuple[str, ...] | None = None
    """The keys of the JSON text in the column `line`; None: columns of Arrow, by the fields' own names."""

    @property
    def columns(self) -> tuple[str, ...]:
        """What comes after KEYS. The status always comes: rows are chosen by it."""
        if self.names is not None:
            return (STATUS, LINE, VECTOR) if VECTOR in self.fields else (STATUS, LINE)
        return self.fields if STATUS in self.fields else (*self.fields, STATUS)

    @property
    def named(self) -> dict[str, str]:
        """Of the JSON text: what each key is. Vectors as text would be several times as large."""
        return {name: field for name, field in zip(self.names or (), self.fields, strict=True) if field != VECTOR}

    def select(self, rows: str) -> str:
        """The columns, of rows `a`, each with `r`, its result, or `f`, its failure, which `rows` joins, in order."""
        fields = dict.fromkeys((STATUS, *self.fields))
        if self.names is None:
            columns = ", ".join(f"{_FIELDS[field].sql} as {field}" for field in self.columns)
            return f"select {_KEY_SQL}, {columns} {rows}"
        columns = ", ".join(f"{_FIELDS[field].json_sql or _FIELDS[field].sql} as {field}" for field in fields)
        keys = (name.replace("'", "''") for name in self.named)
        parts = ", ".join(f"'{key}': {field}" for key, field in zip(keys, self.named.values(), strict=True))
        line = f"to_json({{{parts}}})::varchar" if parts else "'{}'"
        vector = f", {VECTOR}" if VECTOR in self.fields else ""
        # The texts are made of rows that are in order already: sorted, all of them would be held at once.
        return (
            f"select {', '.join(KEYS)}, {STATUS}, {line} as {LINE}{vector} from (select {_KEY_SQL}, {columns} {rows})"
        )


def iter_listed(reader: AnyReader, run: ListedRun, scans: Sequence[ListedScan], form: Form) -> Iterator[pa.RecordBatch]:
    """All rows of these scans that the database lists, scan by scan and row by row. Raises StoreError."""
    parameters: dict[str, JsonValue] = {
        "scans": [str(scan.scan_id) for scan in scans],
        "task": str(run.task_fingerprint),
    }
    return reader.iter_arrow(form.select(f"{_join(_LISTED)} order by scan, row"), parameters, run.block_rows)


def find_answers(reader: AnyReader, run: ListedRun, document_hashes: Sequence[str], form: Form) -> pa.Table:
    """For each of these documents a line with what it ended with, in no order. Raises StoreError.

    Hashes are texts as `document_hash` has them.
    """
    hashes = list(dict.fromkeys(document_hashes))
    parameters: dict[str, JsonValue] = {"hashes": hashes, "task": str(run.task_fingerprint)}
    statement = form.select(_join(_SOUGHT, f"and document_hash in ({_HASHES})"))
    found = list(reader.iter_arrow(statement, parameters, run.block_rows))
    return pa.Table.from_batches(found)


def _join(rows: str, condition: str = "") -> str:
    """Each row with its result or else its newest failure; the condition is on both."""
    return f"""
        from ({rows}) a
        left join (select * from results where task_fingerprint = $task::uuid {condition}) r
            on r.document_hash = a.document_hash
        left join (
            select * from failures where task_fingerprint = $task::uuid {condition}
            qualify row_number() over (partition by document_hash order by failed_at desc, rowid desc) = 1
        ) f on f.document_hash = a.document_hash and r.document_hash is null
    """
