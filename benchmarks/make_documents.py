"""Seeded documents of about 500 characters, written as they are made: any number of them in the same memory.

    python benchmarks/make_documents.py 10000000 documents.parquet
    python benchmarks/make_documents.py 1000000 folder --files 1000

The ending of the target says the format, Parquet or JSONL; `--files` makes it a folder of Parquet files. A document is
ten phrases drawn from a few thousand, after its own number, so that no two are equal unless `--equal` asks for it.
Every thousandth holds the word RARE: a scripted fault of the simulated engine can find it.
"""

import argparse
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROWS = 65_536
"""In a row group, and made at a time: about 32 MB of text."""
RARE = "zyzzyva"
RARE_EVERY = 1_000
_NUM_PHRASES = 4_096
_PHRASES_PER_DOCUMENT = 10
_ONSETS = ("b", "c", "d", "f", "g", "l", "m", "n", "p", "r", "s", "t", "v", "st", "tr", "pl")
_RIMES = ("a", "e", "i", "o", "u", "an", "er", "in", "on", "us", "ar", "el", "is", "ot", "um", "ent")


def make_tables(num_documents: int, seed: int, equal_share: float) -> Iterator[pa.Table]:
    """Columns `id` and `body`, at most ROWS rows at a time; the same seed gives the same documents."""
    dice = np.random.default_rng(seed)
    phrases = pa.array(_make_phrases(random.Random(seed)))
    for first in range(0, num_documents, ROWS):
        numbers = np.arange(first, min(first + ROWS, num_documents))
        ids = pc.binary_join_element_wise("d", pa.array(numbers).cast(pa.string()), "")
        drawn = [
            phrases.take(pa.array(dice.integers(0, _NUM_PHRASES, len(numbers)))) for _ in range(_PHRASES_PER_DOCUMENT)
        ]
        rare = pc.if_else(pa.array(numbers % RARE_EVERY == RARE_EVERY - 1), RARE, "")
        bodies = pc.binary_join_element_wise(ids, rare, *drawn, " ")
        if equal_share > 0:
            # The first of this table stands for all that are to be equal.
            is_equal = pa.array(dice.random(len(numbers)) < equal_share)
            bodies = pc.if_else(is_equal, bodies[0], bodies)
        yield pa.table({"id": ids, "body": bodies})


def write_documents(tables: Iterator[pa.Table], path: Path) -> int:
    """Write one file, Parquet or JSONL by its ending; returns how many documents it holds."""
    num_documents = 0
    with ExitStack() as stack:
        writer = None
        stream = stack.enter_context(path.open("w", encoding="utf-8")) if path.suffix == ".jsonl" else None
        for table in tables:
            num_documents += table.num_rows
            if stream is not None:
                stream.write("".join(_iter_lines(table)))
                continue
            writer = writer or stack.enter_context(pq.ParquetWriter(path, table.schema, compression="zstd"))
            writer.write_table(table, row_group_size=ROWS)
    return num_documents


def write_folder(num_documents: int, seed: int, equal_share: float, folder: Path, num_files: int) -> int:
    """Write a folder of Parquet files of equal sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    per_file = -(-num_documents // num_files)
    rest: pa.Table | None = None
    number = 0
    for table in make_tables(num_documents, seed, equal_share):
        rest = table if rest is None else pa.concat_tables([rest, table])
        while rest.num_rows >= per_file:
            pq.write_table(rest.slice(0, per_file), folder / f"{number:06}.parquet", compression="zstd")
            rest = rest.slice(per_file).combine_chunks()
            number += 1
    if rest is not None and rest.num_rows:
        pq.write_table(rest, folder / f"{number:06}.parquet", compression="zstd")
    return num_documents


def _iter_lines(table: pa.Table) -> Iterator[str]:
    for document_id, body in zip(table["id"].to_pylist(), table["body"].to_pylist(), strict=True):
        yield f'{{"id":"{document_id}","body":"{body}"}}\n'  # letters and digits alone need no escapes


def _make_phrases(dice: random.Random) -> list[str]:
    """Phrases of about 48 characters."""
    phrases = []
    for _ in range(_NUM_PHRASES):
        words: list[str] = []
        while sum(map(len, words)) + len(words) < 47:
            words.append("".join(dice.choice(_ONSETS) + dice.choice(_RIMES) for _ in range(dice.randint(1, 4))))
        phrases.append(" ".join(words))
    return phrases


def main() -> None:
    """Parse, write, say what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", type=int)
    parser.add_argument("to", type=Path)
    parser.add_argument("--files", type=int, help="a folder of so many Parquet files")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--equal", type=float, default=0.0, metavar="SHARE", help="share of documents that are equal")
    given = parser.parse_args()
    if given.files:
        written = write_folder(given.documents, given.seed, given.equal, given.to, given.files)
    else:
        given.to.parent.mkdir(parents=True, exist_ok=True)
        written = write_documents(make_tables(given.documents, given.seed, given.equal), given.to)
    print(f"{written:,} documents in {given.to}")


if __name__ == "__main__":
    main()
