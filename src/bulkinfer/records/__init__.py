"""The values that cross module boundaries: documents, requests, completions, outcomes, counts.

All are frozen. Nothing here reads, writes or decides. Hashes are the first 16 bytes of a SHA-256.
"""

from bulkinfer.records.documents import (
    Document,
    DocumentRow,
    JsonValue,
    KnownSpan,
    Origin,
    Scan,
    SourceFile,
    UnreadableRow,
    WantedRows,
)
from bulkinfer.records.engine import NUM_LONGEST, UNKNOWN_WORKLOAD, EngineEvent, EngineReady, EngineStats, Workload
from bulkinfer.records.outcomes import Failure, FailureCode, Only, Outcome, Result
from bulkinfer.records.requests import (
    Aborted,
    Completion,
    FinishReason,
    Message,
    Overlong,
    Rejection,
    Request,
    Span,
)
from bulkinfer.records.runs import Commit, Latency, Percentiles, RunStatus

__all__ = [
    "NUM_LONGEST",
    "UNKNOWN_WORKLOAD",
    "Aborted",
    "Commit",
    "Completion",
    "Document",
    "DocumentRow",
    "EngineEvent",
    "EngineReady",
    "EngineStats",
    "Failure",
    "FailureCode",
    "FinishReason",
    "JsonValue",
    "KnownSpan",
    "Latency",
    "Message",
    "Only",
    "Origin",
    "Outcome",
    "Overlong",
    "Percentiles",
    "Rejection",
    "Request",
    "Result",
    "RunStatus",
    "Scan",
    "SourceFile",
    "Span",
    "UnreadableRow",
    "WantedRows",
    "Workload",
]
