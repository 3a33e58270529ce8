"""`ItemOrder`: the order in which the items of a shuffled block take its rows.

A block that is one row group can put its numbers in this order while they are decoded. Each column is then still in the
processor's cache, and is written to memory once instead of twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...base.memory.arena import BLOCK_REGIONS, array_bytes
from ...base.process.dataclass import dataclass
from ...parquet.native_decode import CoreColumns
from .stacked_columns import StackedColumns, allocate_stacked

MOST_REPEATS = 2
"""Numbers are kept in item order up to this average number of items per row."""


@dataclass(frozen=True, slots=True, eq=False)
class ItemOrder:
    """The order of the items of a block that is one row group.

    Attributes:
        rows: the row of each item among the wanted rows, int64.
        numbers: the fields that may be put in this order, by name, with their numbers.
        names: their names.
    """

    rows: np.ndarray
    numbers: Mapping[str, int]
    names: frozenset[str]

    def stored_rows(self, rows: np.ndarray | None) -> np.ndarray:
        """Returns the row of each item in the row group, int32, given its wanted rows (``None`` = all)."""
        return (self.rows if rows is None else rows[self.rows]).astype(np.int32)

    def bytes_of(self, columns: CoreColumns) -> int:
        """Returns the memory of the columns in this order."""
        return sum(array_bytes(dtype, (len(self.rows),)) for _, dtype in columns.ordered)

    def memory(self, columns: CoreColumns) -> tuple[list[StackedColumns], list[np.ndarray]]:
        """Returns memory for the columns in this order, stacked and for each of ``columns.ordered``.

        It is memory of earlier blocks, because fresh pages would dominate the cost.
        """
        if not columns.ordered:
            return [], []
        kinds = {self.numbers[name]: np.empty(0, dtype) for name, dtype in columns.ordered}
        region = BLOCK_REGIONS.acquire(self.bytes_of(columns))
        try:
            stacked = allocate_stacked(dict(sorted(kinds.items())), len(self.rows), region)
        finally:
            region.end()
        of = {number: values for group in stacked for number, values in zip(group.numbers, group.values, strict=True)}
        return stacked, [of[self.numbers[name]] for name, _ in columns.ordered]


def keeps_item_order(order: Sequence[int] | np.ndarray, rows: int) -> bool:
    """Returns whether a block of this many rows keeps numbers in the order of its items."""
    return len(order) <= MOST_REPEATS * rows
