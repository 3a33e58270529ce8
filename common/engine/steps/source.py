"""`BatchSource`: the rows that a batch takes from one loaded block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ...process.dataclass import dataclass
from ...stages.pack import PackStep
from ..columns.fixed_column import FixedColumn
from ..columns.protocols import BlockColumn
from ..columns.row_places import RowPlaces
from ..read.stacked_columns import StackedColumns

RowIndex = slice | np.ndarray


class LoadedColumns(Protocol):
    """The columns of a loaded block, as steps see them."""

    where: RowPlaces
    """Where the rows are stored."""
    by_item: dict[int, FixedColumn]
    """Columns that are already in the order of the block's items, by field number."""
    stacked: Sequence[StackedColumns]
    """The columns in the order of the block's items, laid out by dtype and shape."""
    by_row: dict[int, FixedColumn]
    """Columns in the order of the block's rows that are gathered together, by field number."""

    def column(self, number: int) -> BlockColumn:
        """Returns the column of the program's ``number``-th field."""

    def packed(self, step: PackStep) -> np.ndarray | None:
        """Returns the matrix into which a step packs the block's columns, or ``None`` if it could not be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSource:
    """The rows that a batch takes from one block.

    Attributes:
        block: the block that holds the rows.
        item_rows: int64 ``[items, T]``: the block's rows of each item.
        places: the items' numbers in the batch, int64 ``[items]``; ``None`` if they are the whole batch, in order.
        source: the number of the pipeline in a mix to which the block belongs.
        pass_number: the number of the pass over the dataset, counted over all iterators.
        items: the items' numbers in the block; ``None`` if only ``item_rows`` are known.
        spans: if rows are joined into items, the part taken of each row; see `Draw.spans`.
        repeats: how often the row of each item came before in the epoch, int64 ``[items]``; ``None`` = never.
        is_consecutive: whether ``items`` and ``places`` are consecutive numbers; if not, they still may be.
    """

    block: LoadedColumns
    item_rows: np.ndarray
    places: np.ndarray | None
    source: int = 0
    pass_number: int = 0
    items: np.ndarray | None = None
    spans: np.ndarray | None = None
    repeats: np.ndarray | None = None
    is_consecutive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The stored values that a step reads on the way into the batch.

    Attributes:
        leaf: the number of the step's first field.
        sources: the rows of the batch.
        steps: the steps of each item to take (all of a stacked window, or one).
        places: for each source, the item to which each of its rows belongs.
        lead: ``(items,)``, or ``(items, steps)`` for stacked windows.
    """

    leaf: int
    sources: Sequence[BatchSource]
    steps: Sequence[int]
    places: Sequence[np.ndarray]
    lead: tuple[int, ...]


def as_slice(numbers: np.ndarray) -> RowIndex:
    """Returns consecutive numbers as a slice, and all others as they are."""
    if len(numbers) and numbers[-1] - numbers[0] + 1 == len(numbers) and (np.diff(numbers) == 1).all():
        return slice(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers
