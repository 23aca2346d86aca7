"""The store: one DuckDB file, one writer thread, append-only; and everything that reads it."""

from bulkinfer.store.export import export_answers
from bulkinfer.store.lock import Holder, read_holder
from bulkinfer.store.lookups import DocumentCounts
from bulkinfer.store.paths import engine_log_path, has_remains, is_database
from bulkinfer.store.queue import CommitLimits
from bulkinfer.store.reader import QueryResult, Reader
from bulkinfer.store.remote import RemoteReader, open_reader
from bulkinfer.store.repair import Repair, RepairOutcome, repair_database
from bulkinfer.store.reports import OpenFailure, RunSummary
from bulkinfer.store.runs import RunRecord, TaskRecord
from bulkinfer.store.standing import read_standing
from bulkinfer.store.status import read_status, write_status
from bulkinfer.store.writer import Store

__all__ = [
    "CommitLimits",
    "DocumentCounts",
    "Holder",
    "OpenFailure",
    "QueryResult",
    "Reader",
    "RemoteReader",
    "Repair",
    "RepairOutcome",
    "RunRecord",
    "RunSummary",
    "Store",
    "TaskRecord",
    "engine_log_path",
    "export_answers",
    "has_remains",
    "is_database",
    "open_reader",
    "read_holder",
    "read_standing",
    "read_status",
    "repair_database",
    "write_status",
]
