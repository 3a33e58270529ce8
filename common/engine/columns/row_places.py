"""`RowPlaces`: where the rows of a block are stored."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence

import numpy as np

from ...schema.ragged import ends_of
from ...selection.rows import RowNumbers, rows_inside
from ..read.listed_files import ListedPlace


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
