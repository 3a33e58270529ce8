"""`Leftovers`: the items that ranks have left of an epoch, on an axis that can be cut into streams anew.

If another number of ranks continues an epoch, its streams would be spread over all ranks, and each rank would read most
row groups. Instead, what each stream has left is laid end to end, and cut into one stream for each new rank. So a rank
reads a few neighboring streams, and each item once. The input is an `EpochOrder` and the number of rows taken from it;
the output is the items between two places on the axis. Nothing else matters, so all ranks cut in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from ...base.process.dataclass import dataclass
from ...schema.ragged import ends_of


class Order(Protocol):
    """The part of an `EpochOrder` that `Leftovers` uses, which that class makes streams of."""

    items_before: np.ndarray

    @property
    def num_streams(self) -> int:
        """The number of streams."""

    @property
    def is_shuffled(self) -> bool:
        """Whether the items of blocks are permuted."""

    @property
    def total(self) -> int:
        """The number of distinct items."""

    @property
    def cuts(self) -> int:
        """How often what was left of the epoch was cut anew."""

    @property
    def starts(self) -> np.ndarray:
        """Where each stream begins on the axis of all items (int64)."""

    @property
    def stream(self) -> Callable[[int], Any]:
        """Returns the `StreamBlocks` of a stream."""

    def block_items(self, stream: int, block: int) -> np.ndarray:
        """Returns the items of a block in epoch order (int64 item indices)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemRuns:
    """Runs of neighboring items, each of one row group.

    Attributes:
        row_group: the row group of each run, int64 ``[R]``.
        first: the index of each run's first item among all items, int64 ``[R]``.
        length: the number of items in each run, int64 ``[R]``.
    """

    row_group: np.ndarray
    first: np.ndarray
    length: np.ndarray

    @property
    def items(self) -> int:
        return int(self.length.sum())

    def between(self, start: int, stop: int) -> ItemRuns:
        """Returns the items ``start`` to ``stop`` (exclusive) of all runs laid end to end."""
        ends = ends_of(self.length)
        lo = int(np.searchsorted(ends, start, side="right")) - 1
        hi = int(np.searchsorted(ends, stop, side="left")) if start < stop else lo
        begin = np.maximum(ends[lo:hi], start)
        length = np.minimum(ends[lo + 1 : hi + 1], stop) - begin
        return ItemRuns(row_group=self.row_group[lo:hi], first=self.first[lo:hi] + begin - ends[lo:hi], length=length)

    def by_row_group(self) -> tuple[ItemRuns, np.ndarray]:
        """Brings the runs of each row group together, in storage order, and joins those that touch.

        Row groups come in the order in which they begin.

        Returns:
            The runs, and the number of each run's row group in that order (int64).
        """
        _, begins, place = np.unique(self.row_group, return_index=True, return_inverse=True)
        number = np.argsort(np.argsort(begins))[place]
        order = np.lexsort((self.first, number))
        row_group, first, length, number = self.row_group[order], self.first[order], self.length[order], number[order]
        apart = (first[1:] != (first + length)[:-1]) | (number[1:] != number[:-1])
        head = np.flatnonzero(np.append(len(order) > 0, apart))
        joined = np.add.reduceat(length, head) if len(head) else length
        return ItemRuns(row_group=row_group[head], first=first[head], length=joined), number[head]


def items_left(items: int, streams: int, rows: int) -> np.ndarray:
    """Returns how many items each stream has left after ``rows`` rows of an epoch, int64 ``[streams]``.

    Example:
        >>> items_left(10, 3, 4).tolist()
        [2, 2, 2]
    """
    stream = np.arange(streams)
    size, extra = divmod(items, streams)
    taken = (rows - stream + streams - 1) // streams
    left: np.ndarray = np.maximum(size + (stream < extra) - taken, 0)
    return left


class Leftovers:
    """What is left of an order after some rows, as one axis of items.

    Args:
        order: the order, of which rows were taken.
        rows: the number of rows that all ranks together took of it.
    """

    def __init__(self, order: Order, rows: int) -> None:
        self._order = order
        self._streams = np.argsort(order.starts, kind="stable")  # neighbors share row groups
        self._left = items_left(order.total, order.num_streams, rows)
        self._ends = ends_of(self._left[self._streams])
        self._runs_of = lru_cache(maxsize=8)(self._make_runs)

    @property
    def items(self) -> int:
        return int(self._ends[-1])

    @property
    def cuts(self) -> int:
        """How often the epoch has been cut, together with the cut that is made here."""
        return self._order.cuts + 1

    def between(self, start: int, stop: int) -> ItemRuns:
        """Returns the items between two places on the axis, stream after stream.

        A part of a stream has its share of the block that was begun, whose items are spread over many row groups, and
        of the blocks after it.
        """
        lo = int(np.searchsorted(self._ends, start, side="right")) - 1
        hi = int(np.searchsorted(self._ends, stop, side="left"))
        parts = []
        for stream, begin, end in zip(
            self._streams[lo:hi].tolist(), self._ends[lo:hi].tolist(), self._ends[lo + 1 : hi + 1].tolist(), strict=True
        ):
            if begin == end:
                continue
            begun, fresh = self._runs_of(stream)
            first, last = max(start, begin) - begin, min(stop, end) - begin
            begun_first, begun_last = (place * begun.items // (end - begin) for place in (first, last))
            parts += [begun.between(begun_first, begun_last), fresh.between(first - begun_first, last - begun_last)]
        return _joined(parts)

    def _make_runs(self, stream: int) -> tuple[ItemRuns, ItemRuns]:
        """Returns what a stream has left of the block that was begun, in storage order, and of the blocks after it."""
        plan = self._order.stream(stream)
        taken = int(plan.position[-1]) - int(self._left[stream])
        block = int(np.searchsorted(plan.block_position, taken, side="right")) - 1
        begun = _joined([])
        if taken > plan.block_position[block]:
            begun = self._runs(np.sort(self._order.block_items(stream, block)[taken - plan.block_position[block] :]))
            block += 1
        first = plan.block_segment[block]
        fresh = ItemRuns(
            row_group=plan.row_group[first:], first=plan.first[first:], length=np.diff(plan.position[first:])
        )
        if not self._order.is_shuffled:  # it is in storage order, too
            return _joined([]), _joined([begun, fresh])
        return begun, fresh

    def _runs(self, items: np.ndarray) -> ItemRuns:
        """Returns the runs of ascending items."""
        row_group = np.searchsorted(self._order.items_before, items, side="right") - 1
        head = np.flatnonzero((np.diff(items, prepend=-2) != 1) | (np.diff(row_group, prepend=-1) != 0))
        return ItemRuns(row_group=row_group[head], first=items[head], length=np.diff(np.append(head, len(items))))


def _joined(parts: list[ItemRuns]) -> ItemRuns:
    empty = np.zeros(0, np.int64)
    return ItemRuns(
        row_group=np.concatenate([empty, *(part.row_group for part in parts)]),
        first=np.concatenate([empty, *(part.first for part in parts)]),
        length=np.concatenate([empty, *(part.length for part in parts)]),
    )
