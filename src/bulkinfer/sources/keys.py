"""The key of an input row by which a sample is drawn: from a seed, the file's name and the row's number.

A second run draws the same rows. Of a share, rows that are added to a file, or files to an input, change nothing for
those before; of a number of rows they may take the place of some.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
MAX_KEY = 2**64 - 1
MAX_HELD_KEYS = 1 << 22
"""32 MB of them, and as much again until the smallest are chosen."""
_BUCKET_SHIFT = np.uint64(44)
_NUM_BUCKETS = 1 << 20
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def file_key(name: str, seed: int) -> int:
    """64 bits that tell this file from others."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8])


def row_keys(file_bits: int, rows: Sequence[int]) -> Keys:
    """Evenly spread 64 bits for each row: SplitMix64 (Steele, Lea and Flood, 2014) of its number."""
    with np.errstate(over="ignore"):
        bits = np.asarray(rows, np.uint64) * _GOLDEN + np.uint64(file_bits)
        for factor, shift in zip(_FACTORS, _SHIFTS, strict=False):
            bits = (bits ^ (bits >> shift)) * factor
        keys: Keys = bits ^ (bits >> _SHIFTS[2])
    return keys


def find_bar(read_keys: Callable[[], Iterable[Keys]], size: int) -> int | None:
    """The largest of the `size` smallest keys; None where there are no more than that.

    Memory is bounded: where the smallest keys are too many to be held, the keys are read twice.
    """
    if size <= MAX_HELD_KEYS:
        smallest = _find_smallest(read_keys(), size + 1)
        return int(np.partition(smallest, size - 1)[size - 1]) if len(smallest) > size else None
    counts = np.zeros(_NUM_BUCKETS, np.int64)
    for keys in read_keys():
        counts += np.bincount((keys >> _BUCKET_SHIFT).astype(np.int64), minlength=_NUM_BUCKETS)
    before = np.cumsum(counts)
    if before[-1] <= size:
        return None
    bucket = int(before.searchsorted(size))
    num_left = size - int(before[bucket] - counts[bucket])
    return int(_find_smallest((keys[keys >> _BUCKET_SHIFT == bucket] for keys in read_keys()), num_left).max())


def _find_smallest(blocks: Iterable[Keys], size: int) -> Keys:
    """So many of them, or all; in no order."""
    held: list[Keys] = []
    num_held = 0
    bar = np.uint64(MAX_KEY)
    for keys in blocks:
        held.append(keys[keys <= bar])
        num_held += len(held[-1])
        if num_held >= 2 * size + (1 << 16):
            held = [_cut(held, size)]
            num_held, bar = size, held[0][-1]
    return _cut(held, size)


def _cut(held: Sequence[Keys], size: int) -> Keys:
    """The smallest; the last of them is the largest."""
    keys: Keys = np.concatenate([*held, np.empty(0, np.uint64)])
    return np.partition(keys, size - 1)[:size] if len(keys) > size else keys
