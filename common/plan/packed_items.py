"""`PackedItems`: items that hold as many whole rows of tokens as fit.

From the wanted rows and their token counts, it derives the order of an epoch and the rows in each item. Which lengths
share an item depends on the lengths alone, so every epoch has the same number of items. Which row of a given length
takes which place is drawn for each epoch.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..base.process.forks import cached_property
from ..schema.ragged import concat_ranges, ends_of
from .block_reads import BlockKey, BlockRead, BlockRows
from .items import RowItems, by_block, row_groups_of
from .order.epoch import EpochOrder, OrderSpec, equal_groups
from .order.leftovers import Leftovers
from .order.permutations import raw_words
from .selection.selection import Selection

_ROWS_KEY = 8
_FULL_ITEMS = 128  # the last item of a group is mostly empty, which matters little among this many
_Filling = tuple[tuple[int, int], ...]
"""``(length, how many of them)``, longest first."""


class PackedItems(RowItems):
    """Items of ``length`` tokens made of whole rows.

    Rows are packed within a group: consecutive row groups that together have enough rows and tokens.

    Args:
        selection: the wanted rows, with their lengths as the measured values.
        best: whether a row goes into the fullest item that has room for it (best fit) or into the first (first fit).
        cut: whether longer rows are cut into pieces; otherwise they are left out.
        group_rows: the minimum number of rows in a group.
    """

    def __init__(self, selection: Selection, length: int, *, best: bool, cut: bool, group_rows: int) -> None:
        super().__init__(selection)
        assert selection.measured is not None
        self._length = length
        self._best = best
        self._cut = cut
        self._group_rows = group_rows
        self._lengths = selection.measured
        self._layout = lru_cache(maxsize=128)(self._make_layout)
        self._rows_of = lru_cache(maxsize=128)(self._make_rows)

    @cached_property
    def _groups(self) -> np.ndarray:
        """The first row group of each group, and the number of row groups."""
        rows = self._selection.rows.before
        taken = self._lengths if self._cut else np.where(self._lengths > self._length, 0, self._lengths)
        tokens = ends_of(taken)[rows]
        return equal_groups((tokens, _FULL_ITEMS * self._length), (rows, max(self._group_rows, 1)))

    @cached_property
    def _bins(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each group, the lengths in its items, and how many lengths precede each item."""
        result = []
        for group in range(len(self._groups) - 1):
            sizes = self._pieces(group)[2]
            result.append(packed(np.bincount(sizes, minlength=self._length + 1), self._length, best=self._best))
        return result

    @cached_property
    def _items_before(self) -> np.ndarray:
        """The number of items before each group, from which `EpochOrder` builds the order."""
        return ends_of([len(ends) - 1 for _, ends in self._bins])

    @property
    def num_items(self) -> int:
        return int(self._items_before[-1])

    @property
    def explained(self) -> list[str]:
        tokens = sum(int(sizes.sum()) for sizes, _ in self._bins)
        longer = int(np.count_nonzero(self._lengths > self._length))
        what = f", {longer:,} longer rows {'cut' if self._cut else 'left out'}" if longer else ""
        return [
            f"{tokens:,} tokens packed into {self.num_items:,} items of {self._length:,}, "
            f"{tokens / max(self.num_items * self._length, 1):.1%} full{what}"
        ]

    def order(self, spec: OrderSpec, epoch: int, leftovers: Leftovers | None = None) -> GroupOrder:
        return GroupOrder(self._items_before, spec, epoch, leftovers)

    def reads(self, order: EpochOrder, pass_number: int, index: np.ndarray) -> list[BlockRead]:
        result = []
        for stream, block, items, places in by_block(order, index):
            _, first, tokens, begin, ends = self._layout(order, stream, block)
            pieces = ends[items + 1] - ends[items]
            piece, item = concat_ranges(ends[items], pieces), np.repeat(np.arange(len(items)), pieces)
            key = BlockKey(epoch=order.number, stream=stream, block=block)
            spans = np.stack([first[piece], tokens[piece], begin[piece], np.zeros_like(piece)], axis=1)
            result.append(
                BlockRead(
                    key=key,
                    items=piece,
                    places=item if places is None else places[item],
                    pass_number=pass_number,
                    spans=spans,
                )
            )
        return result

    def reads_between(self, order: EpochOrder, pass_number: int, first: int, last: int) -> None:
        """Returns nothing: the rows of consecutive items are not consecutive."""

    def block_rows(self, order: EpochOrder, key: BlockKey) -> BlockRows:
        return self.rows_at(self._layout(order, key.stream, key.block)[0][:, None])

    def block_shares(self, order: EpochOrder, key: BlockKey) -> list[tuple[int, float]]:
        shares = []
        groups, taken = row_groups_of(order, key)
        for group, items in zip(groups.tolist(), taken.tolist(), strict=True):
            share = items / max(int(self._items_before[group + 1] - self._items_before[group]), 1)
            for found in range(self._groups[group], self._groups[group + 1]):
                shares.append((found, share * int(self._selection.rows.counts[found])))
        return shares

    def _pieces(self, group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the pieces of a group to pack, in storage order: ``(wanted row, first token, number of tokens)``."""
        begin, end = self._selection.rows.before[self._groups[group : group + 2]]
        lengths = self._lengths[begin:end]
        if self._cut:
            pieces = -(-lengths // self._length)
        else:
            pieces = ((lengths > 0) & (lengths <= self._length)).astype(np.int64)
        row = np.repeat(np.arange(len(lengths)), pieces)
        first = concat_ranges(np.zeros_like(pieces), pieces) * self._length
        return begin + row, first, np.minimum(lengths[row] - first, self._length)

    def _make_rows(self, order: EpochOrder, group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the pieces of a group in an epoch, in the order of their places in the group's items."""
        row, first, tokens = self._pieces(group)
        if order.spec.buffer_size is None:
            pieces = np.argsort(tokens, kind="stable")
        else:
            words = raw_words(len(row), _ROWS_KEY, order.spec.seed, order.epoch, group)
            pieces = np.lexsort((words, tokens))
        sizes, _ = self._bins[group]
        chosen = np.empty_like(pieces)
        chosen[np.argsort(sizes, kind="stable")] = pieces
        return row[chosen], first[chosen], tokens[chosen]

    def _make_layout(
        self, order: EpochOrder, stream: int, block: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns the pieces in the items of a block, in order: ``(row, first, tokens, place in the item)``, and the
        number of pieces before each item, with the total at the end.
        """
        items = order.block_items(stream, block)
        group = int(order.block_segments(stream, block)[0][0])  # each block lies in one group
        row, first, tokens = self._rows_of(order, group)
        _, ends = self._bins[group]
        item = items - self._items_before[group]
        counts = ends[item + 1] - ends[item]
        piece = concat_ranges(ends[item], counts)
        before = ends_of(tokens)
        begin = before[piece] - np.repeat(before[ends[item]], counts)
        return row[piece], first[piece], tokens[piece], begin, ends_of(counts)


class GroupOrder(EpochOrder):
    """An order whose blocks are the groups within which rows are packed."""

    def _blocks(self, rows_before: np.ndarray, row_group: np.ndarray) -> np.ndarray:
        return np.arange(len(rows_before))


def packed(counts: np.ndarray, length: int, *, best: bool) -> tuple[np.ndarray, np.ndarray]:
    """Packs rows of different lengths into bins of one length, the longest first: best-fit or first-fit decreasing.

    Bins with the same content are handled together, so the time depends on the number of distinct lengths, not on the
    number of rows. Source: Johnson et al., Worst-Case Performance Bounds for Simple One-Dimensional Packing Algorithms,
    1974.

    Args:
        counts: int64 ``[length + 1]``: rows of each length, from 0. Rows of length 0 are left out.
        length: the length of a bin.
        best: whether each row goes into the fullest bin that has room for it, instead of the first one.

    Returns:
        ``(sizes, ends)``: the lengths in all bins, int64, and the number of them before each bin and at the end.
    """
    room = np.zeros(0, np.int64)  # for each kind of bin, in the order in which they were opened
    kinds: list[tuple[_Filling, int]] = []
    for size in (np.flatnonzero(counts[1:])[::-1] + 1).tolist():
        left = int(counts[size])
        fits = np.flatnonzero(room >= size)
        if best:
            fits = fits[np.argsort(room[fits], kind="stable")]
        for place in fits.tolist():
            filling, bins = kinds[place]
            each = int(room[place]) // size
            made, left = _filled(filling, bins, size, each, left)
            kinds[place : place + 1] = made
            used = [room[place] - size * (_last(after, filling)) for after, _ in made]
            if len(made) == 1:
                room[place] = used[0]
            else:
                room = np.concatenate([room[:place], used, room[place + 1 :]])
            if not left:
                break
        if left:
            each = length // size
            made, _ = _filled((), -(-left // each), size, each, left)
            kinds += made
            room = np.concatenate([room, [length - size * _last(after, ()) for after, _ in made]])
    fillings = [filling for filling, bins in kinds for _ in range(bins)]
    pairs = np.array([pair for filling in fillings for pair in filling], np.int64).reshape(-1, 2)
    ends = ends_of(pairs[:, 1])
    pairs_before = np.cumsum([0, *(len(filling) for filling in fillings)])
    return np.repeat(pairs[:, 0], pairs[:, 1]), ends[pairs_before]


def _filled(filling: _Filling, bins: int, size: int, each: int, left: int) -> tuple[list[tuple[_Filling, int]], int]:
    """Fills ``bins`` equal bins one after the other, with up to ``each`` rows of a size.

    Returns the bins and the rows left.
    """
    full = min(bins, left // each)
    left -= full * each
    made = [((*filling, (size, each)), full)] if full else []
    if full < bins and left:
        made.append(((*filling, (size, left)), 1))
        full, left = full + 1, 0
    return [*made, (filling, bins - full)] if full < bins else made, left


def _last(after: _Filling, before: _Filling) -> int:
    """Returns how many rows were added last."""
    return after[-1][1] if len(after) > len(before) else 0
