"""How the columns of a block lie in memory: stacked, and numbers in the order of the block's items.

Columns of one dtype and shape are stacked in one array, so that one copy gathers rows of all of them. A wide table has
hundreds of such columns: copying them one by one would release the interpreter lock, and wait for it, as often.

A shuffled block that is one row group can put its numbers in the order in which its items take them while they are
decoded. Each column is then still in the processor's cache, and is written to memory once instead of twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...base.memory.arena import ALIGNMENT, BLOCK_REGIONS, SMALL_BYTES, Arena, array_bytes
from ...base.native.kernels import gather as gather_rows
from ...base.process.dataclass import dataclass
from ...parquet.native_decode import CoreColumns


@dataclass(frozen=True, slots=True)
class StackedColumns:
    """Columns of one dtype and shape, laid out one after the other.

    Attributes:
        values: their values ``[columns, rows, *shape]``; the rows of each column are contiguous.
    """

    numbers: tuple[int, ...]
    values: np.ndarray


def allocate_stacked(kinds: Mapping[int, np.ndarray], rows: int, arena: Arena) -> list[StackedColumns]:
    """Allocates ``rows`` rows for each numbered column, with the dtype and row shape of its array in ``kinds``.

    Each column begins at a multiple of `ALIGNMENT` if its dtype allows that. Small columns are not stacked: each has
    memory of its own (`Region.small_bytes`), so that keeping a label does not keep the other columns alive. No columns
    are stacked if the arena `separates` them.
    """
    stacked: dict[tuple[np.dtype[Any], tuple[int, ...], int], list[int]] = {}
    for number, kind in kinds.items():
        is_small = rows * math.prod(kind.shape[1:]) * kind.dtype.itemsize <= SMALL_BYTES
        is_alone = is_small or arena.separates
        stacked.setdefault((kind.dtype, kind.shape[1:], number if is_alone else -1), []).append(number)
    made = []
    for (dtype, shape, _), numbers in stacked.items():
        items = rows * math.prod(shape)
        padded = -(-items * dtype.itemsize // ALIGNMENT) * ALIGNMENT // max(dtype.itemsize, 1)
        length = items if len(numbers) == 1 else max(padded, items)
        values = arena.allocate(dtype, (len(numbers), length))
        made.append(StackedColumns(tuple(numbers), values[:, :items].reshape(len(numbers), rows, *shape)))
    return made


def in_order(columns: Mapping[int, Sequence[np.ndarray]], rows: np.ndarray, arena: Arena) -> list[StackedColumns]:
    """Gathers rows (int64, in this order) of columns of small values into new columns. Each comes in parts."""
    groups = allocate_stacked({number: parts[0] for number, parts in columns.items()}, len(rows), arena)
    made = {number: values for group in groups for number, values in zip(group.numbers, group.values, strict=True)}
    whole = [number for number, parts in columns.items() if len(parts) == 1]
    gather_rows([in_one_piece(columns[number][0]) for number in whole], rows, [made[number] for number in whole])
    scratch: dict[Any, np.ndarray] = {}  # columns that use the same memory in turn stay in the cache
    for number, parts in columns.items() if len(whole) < len(columns) else ():
        if len(parts) > 1:
            target = made[number]
            key = (target.dtype, target.shape[1:])
            if key not in scratch:
                scratch[key] = np.empty((sum(map(len, parts)), *target.shape[1:]), target.dtype)
            gather_rows([np.concatenate(parts, out=scratch[key])], rows, [target])
    return groups


def in_one_piece(values: np.ndarray) -> np.ndarray:
    flags = values.flags
    return values if flags.c_contiguous and flags.aligned else np.require(values, requirements=["C", "A"])


MOST_REPEATS = 2
"""Numbers are kept in item order up to this average number of items per row."""


@dataclass(frozen=True, slots=True, eq=False)
class ItemOrder:
    """The order of the items of a block that is one row group.

    Attributes:
        rows: the row of each item among the wanted rows, int64.
        numbers: the fields that may be put in this order, by name, with their numbers.
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
