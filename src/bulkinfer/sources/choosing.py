"""Which rows of the input belong to the job: `input.where`, `input.sample` and `input.limit`, in this order.

The answer is a `Selection` for each file. It says all by itself, so that a file that did not change is not read again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice

import orjson
import pyarrow as pa

from bulkinfer.errors import JobError
from bulkinfer.job import InputSpec
from bulkinfer.records import Selection, SourceFile
from bulkinfer.sources.keys import MAX_KEY, Keys, file_key, find_bar, row_keys
from bulkinfer.sources.opening import open_source
from bulkinfer.sources.selected import find_named_columns, read_schema
from bulkinfer.sql import Condition

NUM_CHECKED_FILES = 16
"""Whose columns are held against the condition beforehand."""
_BLOCK_ROWS = 65_536
_RULE = 2
"""How rows are judged by a condition: a file that was judged by another is read again, as others may be chosen."""


def choose_rows(files: Sequence[SourceFile], section: InputSpec) -> list[SourceFile]:
    """The files with what of them is chosen; without those behind the limit.

    A sample of a number of rows and a limit read the input, a limit no further than it reaches. Raises JobError for a
    condition that is none or does not fit the columns, InputError as sources do.
    """
    chosen = list(files)
    if section.where is not None:
        chosen = _choose_where(chosen, section.where)
    if section.sample is not None:
        chosen = _choose_sample(chosen, section)
    return chosen if section.limit is None else _cut(chosen, section.limit)


def _choose_where(files: Sequence[SourceFile], where: str) -> list[SourceFile]:
    condition = Condition.parse(where)
    _check_columns(condition, files)
    # A condition on the time of day holds for other rows each time: the database must not know the file by it.
    moment = "" if condition.is_stable else datetime.now(UTC).isoformat()
    said = {"where": digest_condition(where), "at": moment, "rule": _RULE}
    return [_select(file, Selection(where=where), said) for file in files]


def digest_condition(where: str) -> str:
    """What stands for it in the database: the text may hold what an environment variable has of secrets."""
    return sha256(where.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _check_columns(condition: Condition, files: Sequence[SourceFile]) -> None:
    """Against the columns of all files together: one that only some have is null in the others."""
    fields: dict[str, pa.Field] = {}
    for file in files[:NUM_CHECKED_FILES]:
        schema = read_schema(open_source(file, None, None))
        find_named_columns(file, condition, schema.names)
        for column in schema:
            fields.setdefault(column.name, column)
    if not fields:  # no readable row: nothing to judge by
        return
    columns, _ = condition.find_columns(list(fields))
    try:
        condition.check(pa.schema([fields[name] for name in columns]))
    except JobError as error:
        shown = ", ".join(sorted(fields)[:20])
        raise JobError(f"{error}. Columns of {files[0].name}: {shown}", error.key) from error


def _choose_sample(files: Sequence[SourceFile], section: InputSpec) -> list[SourceFile]:
    assert section.sample is not None
    seed = section.sample_seed
    if isinstance(section.sample, float):
        bar: int | None = min(MAX_KEY, int(section.sample * 2**64))
    else:
        bar = find_bar(lambda: _iter_keys(files, seed), section.sample)
    if bar is None:
        return list(files)
    return [
        _select(file, replace(file.selection or Selection(), sample_bar=bar, sample_seed=seed), {"sample": [bar, seed]})
        for file in files
    ]


def _iter_keys(files: Sequence[SourceFile], seed: int) -> Iterator[Keys]:
    for file in files:
        rows = _iter_numbers(file)
        while block := list(islice(rows, _BLOCK_ROWS)):
            yield row_keys(file_key(file.name, seed), block)


def _cut(files: Sequence[SourceFile], limit: int) -> list[SourceFile]:
    kept: list[SourceFile] = []
    num_left = limit
    for file in files:
        last_row = 0
        for number in islice(_iter_numbers(file), num_left):
            last_row = number
            num_left -= 1
        if num_left == 0:
            selection = replace(file.selection or Selection(), last_row=last_row)
            kept.append(_select(file, selection, {"last_row": last_row}))
            break
        kept.append(file)
    return kept


def _iter_numbers(file: SourceFile) -> Iterator[int]:
    return (row.origin.row for row in open_source(file, frozenset(), None).iter_rows())


def _select(file: SourceFile, selection: Selection, said: Mapping[str, object]) -> SourceFile:
    return replace(file, selection=selection, choice=file.choice + orjson.dumps(said).decode())
