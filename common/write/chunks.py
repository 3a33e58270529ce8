"""Splits the caller's rows and columns into pieces that are small enough to encode at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ..schema.field import Unischema, UnischemaField

CHUNK_ROWS = 1024
CHUNK_BYTES = 8 << 20
WHOLE_CHUNK_ROWS = 16_384  # of rows and columns that are given whole, which need no buffer
_IMMUTABLE = (str, bytes, int, float, type(None), np.generic)
_SCALARS = frozenset({int, float, bool, type(None), *(np.dtype(code).type for code in "?bhilqBHILQefd")})


def owned_row(row: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Returns the row and its approximate size in bytes.

    Mutable values are copied, because rows are buffered and the caller may reuse its arrays.
    """
    if _SCALARS.issuperset(map(type, row.values())):
        return dict(row), 8 * len(row)
    return {name: _owned(value) for name, value in row.items()}, sum(map(_raw_bytes, row.values()))


def _owned(value: object) -> Any:
    if isinstance(value, _IMMUTABLE):
        return value
    if isinstance(value, np.ndarray):
        return value.copy(order="K")
    if isinstance(value, list | tuple):
        return [_owned(item) for item in value]
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if not hasattr(value, "__array__"):
        return value
    try:
        return np.array(value)
    except (RuntimeError, TypeError):  # a tensor with gradients, or of a dtype that numpy lacks
        return value  # the encoder's error names its row and field


def _raw_bytes(value: object) -> int:
    """The approximate size of a value in bytes, good enough to limit the buffer."""
    if type(value) in _SCALARS:
        return 8
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, list | tuple):
        return sum(map(_raw_bytes, value))
    return int(getattr(value, "nbytes", 8))


def column_chunks(schema: Unischema, columns: Mapping[str, Any], count: int) -> Iterator[dict[str, Any]]:
    """Yields the columns in pieces of at most `WHOLE_CHUNK_ROWS` rows and about `CHUNK_BYTES` bytes."""
    sliceable = {name: column if _is_sliceable(column) else list(column) for name, column in columns.items()}
    for start in range(0, count, WHOLE_CHUNK_ROWS):
        chunk = {name: column[start : start + WHOLE_CHUNK_ROWS] for name, column in sliceable.items()}
        ends = np.cumsum(sum(_row_bytes(schema[name], column) for name, column in chunk.items()))
        first = done = 0
        while first < len(ends):
            stop = max(first + 1, int(np.searchsorted(ends, done + CHUNK_BYTES, side="right")))
            yield {name: column[first:stop] for name, column in chunk.items()}
            first, done = stop, int(ends[stop - 1])


def _is_sliceable(column: object) -> bool:
    return isinstance(column, list | tuple | np.ndarray | pa.Array | pa.ChunkedArray)


def _row_bytes(field: UnischemaField, column: Any) -> np.ndarray:
    if field.shape == () and isinstance(field.dtype, np.dtype) and field.dtype.kind in "biufmM":
        return np.full(len(column), 8, dtype=np.int64)
    if isinstance(column, list | tuple) or (isinstance(column, np.ndarray) and column.dtype.hasobject):
        return np.fromiter(map(_raw_bytes, column), dtype=np.int64, count=len(column))
    return np.full(len(column), column.nbytes // max(1, len(column)), dtype=np.int64)
