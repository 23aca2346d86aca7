"""Whether the image files that an input names are as they were: a file of rows counts as changed when one of them is.

Only their sizes and times are looked at, so that an input that is known stays cheap. They stand, digested, in what the
database knows a file by.
"""

import hashlib
import os
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from uuid import uuid4

import orjson

from bulkinfer.records import Document, ImageFields, SourceFile
from bulkinfer.sources.images import NUM_READERS, find_image_folder, iter_file_names
from bulkinfer.sources.opening import open_source
from bulkinfer.threads import run_in_thread

NUM_PEEKED = 100
"""Rows at the beginning of a file; where none of them names an image file, none is looked for in the others. So a table
that holds the images themselves is not read twice."""
_BLOCK_FILES = 512
_TICK_NS = 2_000_000_000
"""A file that changed less than this ago may change once more without a sign in its times."""
_STATE = struct.Struct("!Qqqq")


def add_images(files: Sequence[SourceFile], images: ImageFields | None) -> list[SourceFile]:
    """Files whose documents count by what their images are. Raises InputError as sources do."""
    if images is None:
        return list(files)
    return [_stamp(file, images) for file in files]


def _stamp(file: SourceFile, images: ImageFields) -> SourceFile:
    digest = hashlib.sha256()
    newest_ns = 0
    num_files = 0
    for num_seen, states, block_newest_ns in _iter_states(file, images):
        digest.update(states)
        newest_ns = max(newest_ns, block_newest_ns)
        num_files += num_seen
    if num_files == 0:
        return replace(file, images=images)
    said: dict[str, object] = {"images": digest.hexdigest()[:32]}
    if newest_ns + _TICK_NS > time.time_ns():  # nobody may know the file by it
        said = {"images": uuid4().hex, "is_settled": False}
    return replace(file, images=images, choice=file.choice + orjson.dumps(said).decode())


def _iter_states(file: SourceFile, images: ImageFields) -> Iterator[tuple[int, bytes, int]]:
    """In order, for blocks of files: how many they are, how each stands, and the newest time of change."""
    folder = find_image_folder(file, images)
    names = _iter_names(file, images)
    waiting: deque[Future[tuple[int, bytes, int]]] = deque()
    while block := list(islice(names, _BLOCK_FILES)):
        waiting.append(run_in_thread(partial(_look_at, block, folder), "bulkinfer-stamps"))
        if len(waiting) > NUM_READERS:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _iter_names(file: SourceFile, images: ImageFields) -> Iterator[str]:
    has_any = False
    for number, row in enumerate(open_source(file, frozenset(images.names), None).iter_rows()):
        if number == NUM_PEEKED and not has_any:
            return
        if isinstance(row, Document):
            for name in iter_file_names(row, images):
                has_any = True
                yield name


def _look_at(names: Sequence[str], folder: str | None) -> tuple[int, bytes, int]:
    states = bytearray()
    newest_ns = 0
    for name in names:
        try:
            found = os.stat(Path(folder or "", name))  # noqa: PTH116 - Path.stat takes twice as long
        except (OSError, ValueError) as error:
            states += _STATE.pack(0, 0, 0, getattr(error, "errno", None) or 0)
        else:
            states += _STATE.pack(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            newest_ns = max(newest_ns, found.st_mtime_ns, found.st_ctime_ns)
    return len(names), bytes(states), newest_ns
