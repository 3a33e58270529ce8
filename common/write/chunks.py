"""Splits the caller's rows and columns into pieces that are small enough to encode at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

CHUNK_ROWS = 1024
CHUNK_BYTES = 8 << 20
_IMMUTABLE = (str, bytes, int, float, type(None), np.generic)
_SCALARS = frozenset({int, float, bool, type(None)})


def owned_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Copies the mutable values of a row, because rows are buffered and the caller may reuse its arrays."""
    return {name: value if type(value) in _SCALARS else _owned(value) for name, value in row.items()}


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


def raw_bytes(value: object) -> int:
    """The approximate size of a value in bytes, good enough to limit the buffer."""
    if type(value) in _SCALARS:
        return 8
    if isinstance(value, list | tuple):
        return sum(map(raw_bytes, value))
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    return int(getattr(value, "nbytes", 8))


def column_chunks(columns: Mapping[str, Any], count: int) -> Iterator[dict[str, Any]]:
    """Yields the columns in pieces of at most `CHUNK_ROWS` rows and about `CHUNK_BYTES` bytes."""
    sliceable = {name: column if _is_sliceable(column) else list(column) for name, column in columns.items()}
    start = 0
    while start < count:
        chunk = {name: column[start : start + CHUNK_ROWS] for name, column in sliceable.items()}
        ends = np.cumsum(sum(_row_bytes(column) for column in chunk.values()))
        rows = max(1, int(np.searchsorted(ends, CHUNK_BYTES, side="right")))
        yield {name: column[:rows] for name, column in chunk.items()}
        start += rows


def _is_sliceable(column: object) -> bool:
    return isinstance(column, list | tuple | np.ndarray | pa.Array | pa.ChunkedArray)


def _row_bytes(column: Any) -> np.ndarray:
    if isinstance(column, list | tuple) or (isinstance(column, np.ndarray) and column.dtype.hasobject):
        return np.fromiter((raw_bytes(value) for value in column), dtype=np.int64, count=len(column))
    return np.full(len(column), column.nbytes // max(1, len(column)), dtype=np.int64)
