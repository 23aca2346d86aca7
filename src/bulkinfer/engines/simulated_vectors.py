"""Vectors and scores of the simulated engine: of a document hash alone, and without any meaning."""

import math
from array import array
from hashlib import shake_128


def write_vector(document_hash: bytes, size: int, *, is_normalized: bool, is_finite: bool = True) -> bytes:
    """So many 32-bit floats from -1 to 1, of length 1 if it is normalized; not `is_finite`: the last is no number."""
    numbers = [1 - value / 32_767.5 for value in array("H", shake_128(document_hash).digest(2 * size))]
    if is_normalized:
        length = math.hypot(*numbers)
        numbers = [number / length for number in numbers]
    if not is_finite:
        numbers[-1] = math.nan
    return array("f", numbers).tobytes()


def write_score(document_hash: bytes, *, is_number: bool = True) -> str:
    """A number from 0 to 1; not `is_number`: nan."""
    (number,) = array("H", document_hash[:2])
    return str(round(number / 65_535, 4)) if is_number else "nan"
