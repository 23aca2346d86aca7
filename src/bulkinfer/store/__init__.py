"""The store: one DuckDB file, one writer thread, append-only; and everything that reads it."""

from bulkinfer.store.answers import (
    KEYS,
    LINE,
    STATUS,
    VECTOR,
    AnyReader,
    Form,
    ListedRun,
    ListedScan,
    RowStatus,
    find_answers,
    is_listed_as,
    iter_listed,
    read_listed_run,
)
from bulkinfer.store.histograms import Histogram
from bulkinfer.store.history import PastRun, read_answer_lengths, read_past_runs
from bulkinfer.store.listed import find_listed
from bulkinfer.store.lock import Holder, read_holder
from bulkinfer.store.lookups import DocumentCounts, RunSelection
from bulkinfer.store.paths import engine_log_path, has_remains, is_database
from bulkinfer.store.queue import CommitLimits
from bulkinfer.store.reader import QueryResult, Reader
from bulkinfer.store.remote import RemoteReader, open_reader, open_reader_if_any
from bulkinfer.store.repair import Repair, RepairOutcome, repair_database
from bulkinfer.store.replacing import replacing, replacing_all
from bulkinfer.store.reports import FailureGroup, OpenFailure, Reports, RunSummary
from bulkinfer.store.run_details import (
    LongSilence,
    Moment,
    RunDetails,
    RunIdentity,
    Spread,
    Totals,
    find_runs,
    read_details,
    read_spread,
)
from bulkinfer.store.runs import RunRecord, TaskRecord
from bulkinfer.store.samples import Sample
from bulkinfer.store.standing import read_standing, read_standing_if_any
from bulkinfer.store.status import read_status, write_status
from bulkinfer.store.tally import KindCount, RowKind, Tally, open_tally
from bulkinfer.store.writer import Store

__all__ = [
    "KEYS",
    "LINE",
    "STATUS",
    "VECTOR",
    "AnyReader",
    "CommitLimits",
    "DocumentCounts",
    "FailureGroup",
    "Form",
    "Histogram",
    "Holder",
    "KindCount",
    "ListedRun",
    "ListedScan",
    "LongSilence",
    "Moment",
    "OpenFailure",
    "PastRun",
    "QueryResult",
    "Reader",
    "RemoteReader",
    "Repair",
    "RepairOutcome",
    "Reports",
    "RowKind",
    "RowStatus",
    "RunDetails",
    "RunIdentity",
    "RunRecord",
    "RunSelection",
    "RunSummary",
    "Sample",
    "Spread",
    "Store",
    "Tally",
    "TaskRecord",
    "Totals",
    "engine_log_path",
    "find_answers",
    "find_listed",
    "find_runs",
    "has_remains",
    "is_database",
    "is_listed_as",
    "iter_listed",
    "open_reader",
    "open_reader_if_any",
    "open_tally",
    "read_answer_lengths",
    "read_details",
    "read_holder",
    "read_listed_run",
    "read_past_runs",
    "read_spread",
    "read_standing",
    "read_standing_if_any",
    "read_status",
    "repair_database",
    "replacing",
    "replacing_all",
    "write_status",
]
