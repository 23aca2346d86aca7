"""Sources: each file format is a stream of `Document` or `UnreadableRow`, in file order, in bounded memory.

`find_input` turns what the job file says into files, `open_source` turns a file into a `Source`.
"""

from bulkinfer.sources.base import Source
from bulkinfer.sources.choosing import digest_condition
from bulkinfer.sources.describing import BatchRequests, Column, describe_columns, describe_requests
from bulkinfer.sources.files import find_source_files
from bulkinfer.sources.finding import find_input, find_named_files, takes_in
from bulkinfer.sources.json_columns import has_json_values, to_texts
from bulkinfer.sources.opening import open_source
from bulkinfer.sources.originals import Originals, Shape, find_shape, open_originals, write_lines
from bulkinfer.sources.stamps import add_images
from bulkinfer.sources.urls import hide_secrets

__all__ = [
    "BatchRequests",
    "Column",
    "Originals",
    "Shape",
    "Source",
    "add_images",
    "describe_columns",
    "describe_requests",
    "digest_condition",
    "find_input",
    "find_named_files",
    "find_shape",
    "find_source_files",
    "has_json_values",
    "hide_secrets",
    "open_originals",
    "open_source",
    "takes_in",
    "to_texts",
    "write_lines",
]
