"""Vectors on their way into lines of JSON: as 32-bit numbers, never as one Python object for each."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

Vector = npt.NDArray[np.float32]


def iter_vectors(column: pa.ChunkedArray) -> Iterator[Vector | None]:
    """The vector of each row; None where there is none."""
    for array in column.chunks:
        numbers = array.flatten().to_numpy(zero_copy_only=False)
        end = 0
        for length in pc.list_value_length(array).to_pylist():
            if length is None:
                yield None
                continue
            start, end = end, end + length
            yield numbers[start:end]


def write_vector(vector: Vector | None) -> bytes:
    """A JSON list, each number as short as 32 bits allow; null for None."""
    return orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY)
