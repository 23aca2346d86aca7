"""Sources: each file format is a stream of `Document` or `UnreadableRow`, in file order, in bounded memory.

`find_input` turns what the job file says into files, `open_source` turns a file into a `Source`.
"""

from bulkinfer.sources.base import Source
from bulkinfer.sources.describing import Column, describe_columns
from bulkinfer.sources.files import find_source_files
from bulkinfer.sources.finding import find_input
from bulkinfer.sources.opening import open_source

__all__ = ["Column", "Source", "describe_columns", "find_input", "find_source_files", "open_source"]
