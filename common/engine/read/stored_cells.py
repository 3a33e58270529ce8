"""`StoredCells`: large encoded values in memory, located by their offsets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from ...base.memory.arena import block_memory
from ...base.process.dataclass import dataclass

_NO_BYTE = np.zeros(1, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class StoredCells:
    """Values of a column as bytes.

    Attributes:
        starts, ends: the offsets in ``data`` of each value's first byte and of the byte after its last; int64.
        data: the bytes as uint8, including any between the values.
    """

    starts: np.ndarray
    ends: np.ndarray
    data: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.data.nbytes + 16 * len(self.starts)

    def take(self, rows: np.ndarray) -> StoredCells:
        """Returns the values of the given rows. Copies their bytes if that frees at least half of ``data``."""
        starts, ends = self.starts[rows], self.ends[rows]
        lengths = ends - starts
        if 2 * int(lengths.sum()) > self.data.nbytes:
            return StoredCells(starts, ends, self.data)
        parts = [self.data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        bounds = np.concatenate([_NO_BYTE, np.cumsum(lengths)])
        return StoredCells(bounds[:-1], bounds[1:], np.concatenate(parts) if parts else np.zeros(0, np.uint8))

    def runs(self) -> list[tuple[int, int, int]]:
        """Returns runs of evenly spaced values as ``(first value, number of values, distance in bytes)``."""
        if len(self) < 2:
            return [(0, len(self), 0)]
        distances = np.diff(self.starts)
        distance = int(distances.min())
        firsts = [0, *(np.flatnonzero(distances != distance) + 1).tolist()]
        return [(a, b - a, distance) for a, b in zip(firsts, [*firsts[1:], len(self)], strict=True)]


def cells_of(array: pa.Array) -> StoredCells:
    """Returns the values of a ``large_binary`` or fixed-size binary array. The bytes of a null are undefined."""
    count = len(array)
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        bounds = width * np.arange(array.offset, array.offset + count + 1, dtype=np.int64)
        content = array.buffers()[1]
    else:
        ends = array.buffers()[1]
        bounds = np.frombuffer(ends, np.int64, count + 1, array.offset * 8) if count else np.zeros(1, np.int64)
        content = array.buffers()[2]
    data = np.frombuffer(content, np.uint8) if count and content is not None else np.zeros(0, np.uint8)
    return StoredCells(bounds[:-1], bounds[1:], data)


def read_bytes(size: int, read: Callable[[memoryview], None]) -> np.ndarray:
    """Returns ``size`` bytes (uint8) of reused memory, filled by ``read``."""
    if not size:
        return np.zeros(0, np.uint8)
    data = block_memory(size)
    read(memoryview(data))  # type: ignore[arg-type]  # an array is a buffer
    return data
