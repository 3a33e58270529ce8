"""`Source`: the rows that a batch takes from one loaded block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ...stages.pack import PackStep
from ..columns.columns import BlockColumn, FixedColumn

Numbers = slice | np.ndarray


class LoadedColumns(Protocol):
    """The columns of a loaded block, as steps see them."""

    by_item: dict[int, FixedColumn]
    """Columns that are already in the order of the block's items, by number of the field."""

    def column(self, number: int) -> BlockColumn:
        """The column of the program's ``number``-th field."""

    def packed(self, step: PackStep) -> np.ndarray | None:
        """The matrix that a step packs the block's columns into, if it could be made."""

    def identify(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The row groups that rows of the block belong to, and their numbers inside them; int64 each."""

    def describe(self, row: int) -> str:
        """Where a row is stored: file, row group, and row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The rows that a batch takes from one block.

    Attributes:
        block: where the rows are.
        cells: int64 ``[items, T]``: the block's rows of each item.
        places: which items of the batch they are, int64 ``[items]``; ``None`` when they are all, in order.
        source: which pipeline of a mix the block belongs to.
        turn: which pass over the dataset the items belong to, over all iterators.
        items: their numbers in the block; ``None`` where ``cells`` are all that is known.
        spans: where rows are joined into items, what is taken of each row, as `Draw.spans` says.
        repeats: how often the row of each item came before in the epoch, int64 ``[items]``; ``None`` = never.
    """

    block: LoadedColumns
    cells: np.ndarray
    places: np.ndarray | None
    source: int = 0
    turn: int = 0
    items: np.ndarray | None = None
    spans: np.ndarray | None = None
    repeats: np.ndarray | None = None


def as_slice(numbers: np.ndarray) -> Numbers:
    """Numbers as a slice, where they follow each other."""
    if len(numbers) and numbers[-1] - numbers[0] + 1 == len(numbers) and (np.diff(numbers) == 1).all():
        return slice(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers
