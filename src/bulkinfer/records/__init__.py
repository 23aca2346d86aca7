"""The values that cross module boundaries: documents, requests, completions, outcomes, counts.

All are frozen. Nothing here reads, writes or decides. Hashes are the first 16 bytes of a SHA-256.
"""

from bulkinfer.records.documents import (
    Document,
    DocumentImages,
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
from bulkinfer.records.exports import ExportFormat
from bulkinfer.records.formats import PLAIN_CSV, CsvDialect, FileFormat, FormatKind, OpenAiFile, Packing, Selection
from bulkinfer.records.images import (
    BadImage,
    ImageFields,
    ImageFile,
    SeenImage,
    name_image_type,
    write_data_url,
    write_image_key,
)
from bulkinfer.records.outcomes import Failure, FailureCode, Only, Outcome, PartAnswer, Result
from bulkinfer.records.requests import (
    FORM,
    Aborted,
    Completion,
    FinishReason,
    Message,
    Overlong,
    Rejection,
    Repair,
    RepairStep,
    Request,
    Span,
)
from bulkinfer.records.runs import Commit, Latency, Percentiles, RunStatus

__all__ = [
    "FORM",
    "NUM_LONGEST",
    "PLAIN_CSV",
    "UNKNOWN_WORKLOAD",
    "Aborted",
    "BadImage",
    "Commit",
    "Completion",
    "CsvDialect",
    "Document",
    "DocumentImages",
    "DocumentRow",
    "EngineEvent",
    "EngineReady",
    "EngineStats",
    "ExportFormat",
    "Failure",
    "FailureCode",
    "FileFormat",
    "FinishReason",
    "FormatKind",
    "ImageFields",
    "ImageFile",
    "JsonValue",
    "KnownSpan",
    "Latency",
    "Message",
    "Only",
    "OpenAiFile",
    "Origin",
    "Outcome",
    "Overlong",
    "Packing",
    "PartAnswer",
    "Percentiles",
    "Rejection",
    "Repair",
    "RepairStep",
    "Request",
    "Result",
    "RunStatus",
    "Scan",
    "SeenImage",
    "Selection",
    "SourceFile",
    "Span",
    "UnreadableRow",
    "WantedRows",
    "Workload",
    "name_image_type",
    "write_data_url",
    "write_image_key",
]
