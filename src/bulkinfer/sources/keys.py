"""The key of an input row by which a sample is drawn: from a seed, the file's name and the row's number.

A second run draws the same rows; rows that are added to a file, or files to an input, change nothing for those before.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

MAX_KEY = 2**64 - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def file_key(name: str, seed: int) -> int:
    """64 bits that tell this file from others."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8])


def row_keys(file_bits: int, rows: Sequence[int]) -> npt.NDArray[np.uint64]:
    """Evenly spread 64 bits for each row: SplitMix64 (Steele, Lea and Flood, 2014) of its number."""
    with np.errstate(over="ignore"):
        bits = np.asarray(rows, np.uint64) * _GOLDEN + np.uint64(file_bits)
        for factor, shift in zip(_FACTORS, _SHIFTS, strict=False):
            bits = (bits ^ (bits >> shift)) * factor
        keys: npt.NDArray[np.uint64] = bits ^ (bits >> _SHIFTS[2])
    return keys
