"""`RowItems`: the items of an epoch, and the rows that make up the items of a block.

From the selection, it derives the order of an epoch, and the rows to fetch for each block. It is pure and reads no
data. Items are rows or n-gram windows here. Stages that form other items have their own classes with the same methods.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

import numpy as np

from ..base.process.forks import cached_property
from ..schema.ragged import concat_ranges
from .block_reads import BlockKey, BlockRead, BlockRows, ascending
from .order.epoch import EpochOrder, OrderSpec, RowGroupSizes
from .order.leftovers import Leftovers
from .selection.rows import RowNumbers
from .selection.selection import Selection

_CLOSE = 8  # positions are dense if at least one in this many is wanted
_FEW_BLOCKS = 8  # up to this many blocks are tried in turn; for more, a sort finds the distinct ones


class RowItems:
    """Rows or windows, each of which occurs once in an epoch.

    Args:
        selection: the wanted rows, and the first rows of windows.
        sizes: the sizes of row groups of which small ones may share a block; ``None`` if none may.
    """

    differ = False
    """Whether each epoch has different items, even without a shuffle."""

    def __init__(self, selection: Selection, sizes: RowGroupSizes | None = None) -> None:
        self._selection = selection
        self._group_sizes = sizes

    @property
    def num_items(self) -> int:
        """The number of items in an epoch, the same for every epoch."""
        return self._selection.num_items

    @property
    def explained(self) -> list[str]:
        """Lines for `explain` about how items are made."""
        return []

    @cached_property
    def _items_before(self) -> np.ndarray:
        return self._selection.items_before

    def items_before(self, epoch: int) -> np.ndarray:
        """Returns the number of items of an epoch that begin before each row group, int64 ``[row_groups + 1]``."""
        return self._items_before

    def order(self, spec: OrderSpec, epoch: int, leftovers: Leftovers | None = None) -> EpochOrder:
        """Returns the global order of an epoch, or of what is left of it."""
        return EpochOrder(self.items_before(epoch), spec, epoch, leftovers, self._group_sizes)

    def reads(self, order: EpochOrder, pass_number: int, index: np.ndarray) -> list[BlockRead]:
        """Returns where the items at global positions ``index`` of an epoch come from. Places refer to ``index``."""
        return [
            BlockRead(
                key=BlockKey(epoch=order.number, stream=stream, block=block),
                items=items,
                places=places,
                pass_number=pass_number,
            )
            for stream, block, items, places in by_block(order, index)
        ]

    def reads_between(self, order: EpochOrder, pass_number: int, first: int, last: int) -> list[BlockRead] | None:
        """Returns the `reads` of the items at the positions ``first`` to ``last`` (exclusive), without any sorting.

        Returns ``None`` if that is not possible: with several streams, or past the last item.
        """
        if order.spec.streams != 1 or last > order.stream_items(0):
            return None
        starts = order.stream(0).block_position
        begin, end = bisect_right(starts, first) - 1, bisect_right(starts, last - 1) - 1
        reads = []
        for block in range(begin, end + 1):
            start, stop = int(starts[block]), int(starts[block + 1])
            lo, hi = max(first, start), min(last, stop)
            reads.append(
                BlockRead(
                    key=BlockKey(epoch=order.number, stream=0, block=block),
                    items=ascending(lo - start, hi - start),
                    places=None if begin == end else ascending(lo - first, hi - first),
                    pass_number=pass_number,
                    is_consecutive=True,
                )
            )
        return reads

    def rows_of(self, order: EpochOrder, index: np.ndarray) -> np.ndarray:
        """Returns the number of rows of the items at global positions ``index`` of an epoch (int64)."""
        return np.ones(len(index), np.int64)

    def block_rows(self, order: EpochOrder, key: BlockKey) -> BlockRows:
        """Returns the rows that a block needs, each once, in storage order."""
        if self._selection.starts is None:
            return self._rows_of_segments(order, key)
        item_rows, padding = self._selection.windows(order.block_items(key.stream, key.block))
        return self.rows_at(item_rows, padding=padding)

    def rows_at(
        self, item_rows: np.ndarray, *, repeats: np.ndarray | None = None, padding: np.ndarray | None = None
    ) -> BlockRows:
        """Returns the rows at positions ``[items, T]`` among the wanted rows. Several items may need the same row."""
        positions, inverse = _numbered(item_rows)
        row_group, row = self._selection.rows.locate(positions)
        bounds = np.flatnonzero(np.diff(row_group, prepend=-1, append=-1))
        return BlockRows(
            row_groups=tuple(row_group[bounds[:-1]].tolist()),
            rows=tuple(row[lo:hi] for lo, hi in pairwise(bounds)),
            item_rows=inverse.reshape(item_rows.shape),
            repeats=repeats,
            padding=padding,
        )

    def _rows_of_segments(self, order: EpochOrder, key: BlockKey) -> BlockRows:
        """Returns the rows of a block whose items are rows: contiguous ranges of row groups, without sorting rows."""
        row_group, first, length = order.block_segments(key.stream, key.block)
        rows = self._selection.rows
        permutation = order.block_permutation(key.stream, key.block, int(length.sum()))
        if len(row_group) == 1:  # without arrays of segments
            group, begin = int(row_group[0]), int(first[0] - rows.before[row_group[0]])
            return BlockRows(
                row_groups=(group,),
                rows=(rows.numbers(group)[begin : begin + int(length[0])],),
                item_rows=None if permutation is None else permutation[:, None],
            )
        by_place = np.argsort(first)
        if (np.diff(by_place) == 1).all():  # in storage order: before the shuffle, item n is row n
            item_rows = permutation
        else:
            begins = np.empty_like(length)
            begins[by_place] = np.cumsum(length[by_place]) - length[by_place]
            item_rows = concat_ranges(begins, length)
            item_rows = item_rows if permutation is None else item_rows[permutation]
        skipped = (first - rows.before[row_group]).tolist()
        chosen: dict[int, list[RowNumbers]] = {}
        for place in by_place.tolist():
            group = int(row_group[place])
            chosen.setdefault(group, []).append(rows.numbers(group)[skipped[place] :][: int(length[place])])
        return BlockRows(
            row_groups=tuple(chosen),
            rows=tuple(runs[0] if len(runs) == 1 else np.concatenate(runs) for runs in chosen.values()),
            item_rows=None if item_rows is None else item_rows[:, None],
        )

    def block_shares(self, order: EpochOrder, key: BlockKey) -> list[tuple[int, float]]:
        """Returns the row groups that a block touches, and about how many selected rows of each it needs."""
        row_group, taken = row_groups_of(order, key)
        before, rows_before = self._items_before, self._selection.rows.before
        items = np.maximum(before[row_group + 1] - before[row_group], 1)
        selected = rows_before[row_group + 1] - rows_before[row_group]
        return list(zip(row_group.tolist(), (np.minimum(1.0, taken / items) * selected).tolist(), strict=True))


def row_groups_of(order: EpochOrder, key: BlockKey) -> tuple[np.ndarray, np.ndarray]:
    """Returns the row groups of a block, ascending, and the number of items that it takes of each (int64)."""
    segments, _, items = order.block_segments(key.stream, key.block)
    if len(segments) == 1:  # the usual case without a shuffle
        return segments, items
    row_groups, places = np.unique(segments, return_inverse=True)
    return row_groups, np.bincount(places, items, len(row_groups)).astype(np.int64)


def _numbered(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Equivalent to ``np.unique`` with ``return_inverse``, but does not sort if the positions are close together."""
    if not positions.size:
        return np.unique(positions, return_inverse=True)
    lowest, highest = int(positions.min()), int(positions.max())
    if highest - lowest > _CLOSE * positions.size:
        return np.unique(positions, return_inverse=True)
    taken = np.zeros(highest - lowest + 1, np.bool_)
    taken[positions - lowest] = True
    return np.flatnonzero(taken) + lowest, (np.cumsum(taken) - 1)[positions - lowest]


def by_block(order: EpochOrder, index: np.ndarray) -> list[tuple[int, int, np.ndarray, np.ndarray | None]]:
    """Groups global positions by block: ``(stream, block, item numbers in the block, places in index)``.

    Places are ``None`` if all of ``index`` lies in one block.
    """
    stream, position = order.locate(index)
    result: list[tuple[int, int, np.ndarray, np.ndarray | None]] = []
    for number, mine in distinct(stream):
        own = position if mine is None else position[mine]
        starts = order.stream(number).block_position
        first, last = (np.searchsorted(starts, (own.min(), own.max()), side="right") - 1).tolist()
        if first == last:
            result.append((number, first, own - starts[first], mine))
            continue
        block = np.searchsorted(starts, own, side="right") - 1
        for found in range(first, last + 1) if last - first < _FEW_BLOCKS else np.unique(block).tolist():
            places = np.flatnonzero(block == found)
            if not len(places):
                continue
            result.append((number, found, own[places] - starts[found], places if mine is None else mine[places]))
    return result


def distinct(numbers: np.ndarray) -> list[tuple[int, np.ndarray | None]]:
    """Returns each distinct number, ascending, with its places (ascending; ``None`` = all of them)."""
    if not len(numbers):
        return []
    lowest = int(numbers.min())
    if lowest == int(numbers.max()):  # the usual case, without sorting
        return [(lowest, None)]
    return [(number, np.flatnonzero(numbers == number)) for number in np.unique(numbers).tolist()]
