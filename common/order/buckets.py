"""`Buckets` and `BucketOrder`: batches of rows of like length, formed among the rows of neighbouring row groups.

In: the length of each wanted row, the boundaries of the buckets, and how many rows a batch of each has. Out: how many
batches there are, the same in each epoch, and the rows of any of them. Always holds: each row stands in exactly one
batch of an epoch, and all rows of a batch are of one bucket and of one group of row groups.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from .epoch import EpochOrder, OrderSpec, group_segments
from .keyed import permutation
from .tokens import counted

_MEMBERS_KEY = 8


class Buckets:
    """Which batches there are: those of each bucket of each group, one after the other.

    Args:
        lengths: int64 ``[rows]``: of the wanted rows, in storage order.
        boundaries: ascending int64 ``[buckets - 1]``: a row belongs to the first bucket whose boundary is at least its
            length, or to the last one.
        sizes: int64 ``[buckets]``: rows of a full batch.
        rows_before: int64 ``[row_groups + 1]``: wanted rows before each row group.
        group_rows: fewest rows in a group.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        boundaries: np.ndarray,
        sizes: np.ndarray,
        rows_before: np.ndarray,
        group_rows: int,
    ) -> None:
        self.sizes = sizes
        self.numbers = np.searchsorted(boundaries, lengths, side="left")
        self.row_groups = group_segments(rows_before, group_rows)
        self.rows = rows_before[self.row_groups]
        groups = np.repeat(np.arange(len(self.rows) - 1), np.diff(self.rows))
        cells = np.bincount(groups * len(sizes) + self.numbers, minlength=(len(self.rows) - 1) * len(sizes))
        held = cells.reshape(-1, len(sizes))
        self.batches = -(-held // sizes)
        self.before = np.concatenate([[0], np.cumsum(self.batches.sum(axis=1))])

    def members(self, group: int, key: tuple[int, int] | None) -> tuple[np.ndarray, np.ndarray]:
        """The rows of a group as its batches lie end to end, and where each batch begins (with the end).

        Args:
            key: the seed and the epoch that say which rows of a bucket share a batch; ``None`` = as stored.
        """
        first, last = self.rows[group], self.rows[group + 1]
        numbers = self.numbers[first:last]
        rows = np.argsort(numbers, kind="stable")
        ends = np.searchsorted(numbers[rows], np.arange(len(self.sizes) + 1))
        if key is not None:
            for bucket in np.flatnonzero(np.diff(ends)).tolist():
                part = rows[ends[bucket] : ends[bucket + 1]]
                rows[ends[bucket] : ends[bucket + 1]] = part[permutation(len(part), _MEMBERS_KEY, *key, group, bucket)]
        count = self.batches[group]
        nth = counted(np.zeros_like(count), count)
        starts = np.repeat(ends[:-1], count) + nth * np.repeat(self.sizes, count)
        return rows + first, np.append(starts, len(rows))


class BucketOrder(EpochOrder):
    """The order of one epoch, whose items are batches; a pure function of its arguments.

    A block holds batches of one group: the groups are what `EpochOrder` permutes, and a group is a block.
    """

    def __init__(self, buckets: Buckets, spec: OrderSpec, epoch: int) -> None:
        super().__init__(buckets.before, replace(spec, buffer_size=spec.buffer_size and 1), epoch)
        self._buckets = buckets
        self.block_batches = lru_cache(maxsize=2 * spec.streams + 2)(self._block_batches)

    def group_of(self, stream: int, block: int) -> int:
        """The group that a block belongs to."""
        row_group, _, _ = self.block_segments(stream, block)
        return int(row_group[0])

    def _block_batches(self, stream: int, block: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows (int64) of a block's batches, end to end in the order of the batches, and where each begins (with
        the end).
        """
        group = self.group_of(stream, block)
        key = None if self.spec.buffer_size is None else (self.spec.seed, self.epoch)
        rows, starts = self._buckets.members(group, key)
        batches = self.block_items(stream, block) - self._buckets.before[group]
        first, count = starts[batches], starts[batches + 1] - starts[batches]
        return rows[counted(first, count)], np.concatenate([[0], np.cumsum(count)])
