"""`BlockSlice`: the rows that a batch takes from one loaded block, and `RowPlaces`: where these are stored."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from ...base.process.dataclass import dataclass
from ...plan.selection.rows import RowNumbers, rows_inside
from ...schema.ragged import ends_of
from ...stages.pack import PackStep
from ..columns.fixed_column import FixedColumn
from ..columns.protocols import BlockColumn
from ..read.block_layout import StackedColumns
from ..read.external_images import ListedPlace

RowIndex = slice | np.ndarray


class RowPlaces:
    """Where the rows of a block are stored.

    Args:
        places: for each row group, its file and number as text.
        rows: for each row group, the rows that the block has of it.
        row_groups: the numbers of the row groups, in the same order.
    """

    def __init__(self, places: Sequence[str], rows: Sequence[RowNumbers], row_groups: Sequence[int]) -> None:
        self._places = places
        self._rows = rows
        self._row_groups = np.asarray(row_groups, dtype=np.int64)
        self._start = ends_of([len(part) for part in rows])
        self._rows_inside: Sequence[RowNumbers] | None = None

    def __len__(self) -> int:
        return int(self._start[-1])

    def identify(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the row group of each of the given rows, and the row's number in it; int64 each."""
        part = np.searchsorted(self._start, rows, side="right") - 1
        if self._rows_inside is None:
            listed = any(isinstance(each, np.ndarray) for each in self._rows)
            self._rows_inside = [rows_inside(self._rows, np.arange(len(self)))] if listed else self._rows
        return self._row_groups[part], rows_inside(self._rows_inside, rows)

    def describe(self, row: int) -> str:
        """Describes where a row of the block is stored: file, row group, and row."""
        _described.rows, _described.row = weakref.ref(self), row
        part = int(np.searchsorted(self._start, row, side="right")) - 1
        place, number = self._places[part], int(self._rows[part][row - self._start[part]])
        return place.describe(number) if isinstance(place, ListedPlace) else f"{place}, row {number}"

    @property
    def last_described_row(self) -> int | None:
        """The row that this thread described last, or ``None`` if that row is in another block."""
        return _described.row if _described.rows is not None and _described.rows() is self else None


class _Described(threading.local):
    """The row that a thread described last."""

    rows: Callable[[], RowPlaces | None] | None = None  # a weak reference: a thread keeps no block
    row: int = 0


_described = _Described()


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
class BlockSlice:
    """The rows that a batch takes from one block.

    Attributes:
        block: the block that holds the rows.
        item_rows: int64 ``[items, T]``: the block's rows of each item.
        places: the items' numbers in the batch, int64 ``[items]``; ``None`` if they are the whole batch, in order.
        source: the number of the pipeline in a mix to which the block belongs.
        pass_number: the number of the pass over the dataset, counted over all iterators.
        items: the items' numbers in the block; ``None`` if only ``item_rows`` are known.
        spans: if rows are joined into items, the part taken of each row; see `BlockRead.spans`.
        repeats: how often the row of each item came before in the epoch, int64 ``[items]``; ``None`` = never.
        padding: the steps of windows that repeat the row at an edge, bool ``[items, T]``; ``None`` = no step does.
        lengths: the counted lengths of the items' rows, int64 ``[items, T]``; ``None`` if none were counted.
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
    padding: np.ndarray | None = None
    lengths: np.ndarray | None = None
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
    sources: Sequence[BlockSlice]
    steps: Sequence[int]
    places: Sequence[np.ndarray]
    lead: tuple[int, ...]


def as_slice(numbers: np.ndarray) -> RowIndex:
    """Returns consecutive numbers as a slice, and all others as they are."""
    if len(numbers) and numbers[-1] - numbers[0] + 1 == len(numbers) and (np.diff(numbers) == 1).all():
        return slice(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers
