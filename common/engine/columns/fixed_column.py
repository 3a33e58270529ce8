"""`FixedColumn`: numbers of one shape in a loaded block, gathered by row number."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...base.memory.arena import Arena, array_bytes
from ...base.native.kernels import copy_value
from ...base.process.forks import cached_property
from ...schema.ragged import ends_of
from ..read.block_layout import in_one_piece
from ..read.file_cells import FileValues
from .batch import Column, Dense
from .plain_numbers import take_valid

_LARGE_ROW_BYTES = 4096


class FixedColumn:
    """Numbers of one shape. Small values are joined in one array; large values are not copied.

    Attributes:
        parts: the values of each row group that are in memory; values in files are not included.
        validity: which rows are not null; ``None`` if no row is null.
        large: whether values stay in the arrays or files of their row groups.
    """

    def __init__(self, parts: Sequence[np.ndarray | FileValues], validity: np.ndarray | None) -> None:
        self.parts = [part for part in parts if isinstance(part, np.ndarray)]
        self.validity = validity
        self._all_parts = parts
        self.large = len(self.parts) < len(parts)
        if parts and len(shape := parts[0].shape) > 1:
            self.large |= parts[0].dtype.itemsize * math.prod(shape[1:]) >= _LARGE_ROW_BYTES

    @cached_property
    def _start(self) -> np.ndarray:
        return ends_of([len(part) for part in self._all_parts])

    def joined(self) -> np.ndarray:
        """Returns all values in one array."""
        return self._joined

    def joined_in(self, arena: Arena) -> FixedColumn:
        """Returns the column with all values in one array of the arena."""
        first = self.parts[0]
        values = arena.allocate(first.dtype, (sum(map(len, self.parts)), *first.shape[1:]))
        return FixedColumn([np.concatenate(self.parts, out=values)], self.validity)

    @cached_property
    def _joined(self) -> np.ndarray:
        return in_one_piece(self.parts[0]) if len(self.parts) == 1 else np.concatenate(self.parts)

    def gather(self, rows: np.ndarray, out: np.ndarray | None) -> Column:
        assert out is not None
        if self.large:
            self._gather_large(rows, out)
        else:
            # "wrap" is the fastest mode. `LoadedBlock` has checked that the rows are in range.
            self._joined.take(rows, 0, out, "wrap")
        return Dense(out, take_valid(self.validity, rows))

    def _gather_large(self, rows: np.ndarray, out: np.ndarray) -> None:
        part = np.searchsorted(self._start, rows, side="right") - 1
        local = rows - self._start[part]
        firsts = np.flatnonzero(np.diff(part, prepend=-1)).tolist()
        for first, last in zip(firsts, [*firsts[1:], len(rows)], strict=True):
            values = self._all_parts[part[first]]
            if isinstance(values, FileValues):
                values.read(local[first:last], out[first:last])
            else:
                numbers: dict[int, list[int]] = {}
                for number, row in enumerate(local[first:last].tolist(), first):
                    numbers.setdefault(row, []).append(number)
                for row, its in numbers.items():
                    copy_value(values[row], out, its)

    @cached_property
    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """As `TokenColumn.flat`."""
        rows, width = self._joined.shape
        return np.arange(rows + 1) * width, self._joined.reshape(-1)

    def arena_bytes(self, rows: int) -> int:
        """Returns the most bytes that this many values take in an arena."""
        return array_bytes(self.parts[0].dtype, (rows, *self.parts[0].shape[1:]))

    def valid(self, rows: np.ndarray) -> np.ndarray | None:
        """Returns which of the given rows are not null; ``None`` means all of them."""
        return take_valid(self.validity, rows)

    def view(self, row: int) -> np.ndarray:
        """Returns one value. You must not write to it."""
        if not self.large:
            result: np.ndarray = self._joined[row]
            return result
        part = int(np.searchsorted(self._start, row, side="right")) - 1
        return self._all_parts[part][row - int(self._start[part])]
