"""Values that say where the rows of an element come from: the block, and items of the block.

A block consists of consecutive row groups of a stream that are fetched together. A shuffle permutes rows inside blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..base.process.dataclass import dataclass
from .selection.rows import RowNumbers, rows_inside


class BlockKey(NamedTuple):
    """Identifies a shuffle block by epoch, stream, number in the stream, and source (of a mix).

    This is a tuple for speed, because every step looks up blocks by key.
    """

    epoch: int
    stream: int
    block: int
    source: int = 0


class BlockSize(NamedTuple):
    """About how many bytes the encoded columns of a block take, and those of its largest row group as a whole."""

    num_bytes: int
    largest_row_group_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRows:
    """The rows of one block.

    Attributes:
        row_groups: the row groups of the block, ascending.
        rows: the wanted rows of each row group.
        item_rows: int64 ``[items, T]``: the block row of each step of each item, in the order of the items. ``None`` if
            item n is row n.
        repeats: if rows occur several times in an epoch, the number of earlier occurrences of each item's row, int64
            ``[items]``.
        padding: the steps of windows that repeat the row at an edge, bool ``[items, T]``; ``None`` if no step does.
        lengths: if functions make values whose lengths were counted, that of each row, int64 ``[rows]``.
    """

    row_groups: tuple[int, ...]
    rows: tuple[RowNumbers, ...]
    item_rows: np.ndarray | None
    repeats: np.ndarray | None = None
    padding: np.ndarray | None = None
    lengths: np.ndarray | None = None

    def rows_of_items(self, items: np.ndarray, *, are_consecutive: bool = False) -> np.ndarray:
        """Returns the ``item_rows`` of the given items; a view if you say that their numbers are consecutive."""
        if self.item_rows is None:
            return items[:, None]
        return self.item_rows[slice_of(items) if are_consecutive else items]

    def first_rows(self, items: np.ndarray) -> list[tuple[int, int]]:
        """Returns the row group and the number of the first row of each of the given items."""
        places = self.rows_of_items(items)[:, 0]
        ends = np.cumsum([len(rows) for rows in self.rows])
        parts = np.searchsorted(ends, places, side="right").tolist()
        behind = (places - ends[parts]).tolist()  # counted from the end of the part
        return [(self.row_groups[part], int(self.rows[part][at])) for part, at in zip(parts, behind, strict=True)]

    def stored_rows(self, items: np.ndarray) -> dict[int, np.ndarray]:
        """Returns the rows that some items consist of, ascending, by row group."""
        rows = np.unique(self.rows_of_items(items))
        ends = np.cumsum([len(each) for each in self.rows])
        parts = np.searchsorted(ends, rows, side="right")
        by_row_group = {}
        for part in np.unique(parts).tolist():
            begin = ends[part] - len(self.rows[part])
            by_row_group[self.row_groups[part]] = rows_inside([self.rows[part]], rows[parts == part] - begin)
        return by_row_group

    def items_from(self, first_rows: Mapping[int, Sequence[int]]) -> np.ndarray:
        """Returns the items, ascending, whose first row is one of the given rows of row groups."""
        begins = np.cumsum([0, *map(len, self.rows)])
        is_wanted = np.zeros(begins[-1], dtype=bool)
        for row_group, rows, begin in zip(self.row_groups, self.rows, begins.tolist(), strict=False):
            numbers = first_rows.get(row_group, ())
            if len(numbers):
                is_wanted[begin : begin + len(rows)] = np.isin(np.asarray(rows), numbers)
        return np.flatnonzero(is_wanted if self.item_rows is None else is_wanted[self.item_rows[:, 0]])

    def repeats_of(self, items: np.ndarray) -> np.ndarray | None:
        """Returns the ``repeats`` of the given items."""
        return None if self.repeats is None else self.repeats[items]

    def padding_of(self, items: np.ndarray) -> np.ndarray | None:
        """Returns the ``padding`` of the given items."""
        return None if self.padding is None else self.padding[items]

    def lengths_of(self, items: np.ndarray) -> np.ndarray | None:
        """Returns the ``lengths`` of the rows of the given items, ``[items, T]``."""
        return None if self.lengths is None else self.lengths[self.rows_of_items(items)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRead:
    """The items that an element takes from one block, by their number in the block.

    ``places`` are their places in the element (``None`` = all). ``pass_number`` is their pass, counted over all
    iterators. Unlike the epoch, it always increases. ``is_consecutive`` says that ``items`` and ``places`` are
    consecutive numbers; if it is not set, they still may be.

    If rows are joined into items, ``items`` are rows, and ``places`` repeat and are never ``None``. Then ``spans``,
    int64 ``[len(items), 4]``, holds for each row the first token, the number of tokens, their place in the item, and
    whether a separator follows (0 or 1).
    """

    key: BlockKey
    items: np.ndarray
    places: np.ndarray | None
    pass_number: int
    spans: np.ndarray | None = None
    is_consecutive: bool = False

    def some(self, chosen: np.ndarray, places: np.ndarray) -> BlockRead:
        """Returns a read of only the ``chosen`` items (numbers or a mask), with new places."""
        spans = None if self.spans is None else self.spans[chosen]
        return replace(self, items=self.items[chosen], places=places, spans=spans, is_consecutive=False)


_ascending = np.arange(0)
_MOST_KEPT = 1 << 20


def ascending(first: int, last: int) -> np.ndarray:
    """Returns the numbers from ``first`` to ``last`` (exclusive), int64; small ones in memory that is kept."""
    global _ascending
    if last > _MOST_KEPT:
        return np.arange(first, last)
    numbers = _ascending
    if last > len(numbers):
        numbers = np.arange(max(last, min(2 * len(numbers), _MOST_KEPT)))
        numbers.flags.writeable = False
        _ascending = numbers
    return numbers[first:last]


def slice_of(consecutive: np.ndarray) -> slice:
    """Returns consecutive numbers (at least one) as a slice."""
    return slice(int(consecutive[0]), int(consecutive[-1]) + 1)
