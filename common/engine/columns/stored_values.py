"""`StoredValues`: the encoded values of a column in a loaded block, one after the other, as they are in the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from ...base.native.library import address_of
from ...base.process.forks import cached_property
from ...parquet.native_decode import OrderedNumbers
from ...schema.ragged import ends_of
from ..read.file_cells import Part
from ..read.stored_cells import StoredCells, cells_of

_NOTHING = np.zeros(0, np.int64)


class StoredValues:
    """Where the encoded values of a column are. Rows count from the beginning of the block.

    Args:
        parts: the column's part of each row group.

    Attributes:
        in_memory: whether all of them are in memory. Otherwise they are read from the file one by one.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._start = ends_of([len(part) for part in parts])
        # This leaves nothing out, because plain numbers are not encoded, but type checkers cannot know that.
        encoded = [part for part in parts if not isinstance(part, np.ndarray | OrderedNumbers)]
        cells = [cells_of(part) if isinstance(part, pa.Array) else part for part in encoded]
        self._starts = np.concatenate([_NOTHING, *(each.starts for each in cells)])
        self._ends = np.concatenate([_NOTHING, *(each.ends for each in cells)])
        self._data = [
            memoryview(each.data) if isinstance(each, StoredCells) else each.data  # type: ignore[arg-type]
            for each in cells
        ]
        self._arrays = [each.data for each in cells if isinstance(each, StoredCells)]
        self.in_memory = len(self._arrays) == len(self._data)

    def __len__(self) -> int:
        return len(self._starts)

    def bytes_of(self, row: int) -> memoryview:
        """Returns the bytes of a row, valid until this thread requests another row. Raises as `FileData`."""
        part = int(np.searchsorted(self._start, row, side="right")) - 1
        return self._data[part][self._starts[row] : self._ends[row]]

    def each(self, rows: np.ndarray) -> Iterator[memoryview]:
        """Iterates over the bytes of many rows. Each item is valid until the next one."""
        parts = np.searchsorted(self._start, rows, side="right") - 1
        places = zip(parts.tolist(), self._starts[rows].tolist(), self._ends[rows].tolist(), strict=True)
        return (self._data[part][start:end] for part, start, end in places)

    def places(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the address and the size of each row's bytes, int64, valid as long as this object.

        If they are not `in_memory`, ask for one row at a time: it is valid until this thread requests another one.
        """
        if self.in_memory:
            return self._addresses[rows], self._ends[rows] - self._starts[rows]
        values = [self.bytes_of(row) for row in rows.tolist()]
        return np.array(list(map(address_of, values)), np.int64), np.array(list(map(len, values)), np.int64)

    @cached_property
    def _addresses(self) -> np.ndarray:
        begins = np.array([address_of(each) for each in self._arrays], np.int64)
        addresses: np.ndarray = np.repeat(begins, np.diff(self._start)) + self._starts
        return addresses
