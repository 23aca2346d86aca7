"""What can be written of a job."""

from enum import StrEnum


class ExportFormat(StrEnum):
    """How `export` writes."""

    PARQUET = "parquet"
    JSONL = "jsonl"
    CSV = "csv"
    ARROW = "arrow"
    """Arrow's IPC file, which is Feather version 2, too."""
    OPENAI = "openai"
    """The output file of OpenAI's batch API, and its error file beside it."""
