"""The export of a job: every input row, with all its columns, its answer or why it has none.

targets   where it goes: the format that an ending says, the files
columns   which columns there are, what they are called and of which type
rows      the input's rows in order, each with what it ended with
tables    Parquet, Arrow and CSV
lines     JSONL
batches   OpenAI's batch files
exporting all of it, in order
"""

from bulkinfer.export.exporting import Exported, ExportOptions, export_job
from bulkinfer.export.targets import Target, check_target, parse_target

__all__ = ["ExportOptions", "Exported", "Target", "check_target", "export_job", "parse_target"]
