"""`Buckets` and `BucketOrder`: batches of rows of similar length, formed within groups of neighboring row groups.

The input is the length of each selected row, the bucket boundaries, and the batch size of each bucket. The output is
the number of batches, which is the same in every epoch, and the rows of any batch. Each row is in exactly one batch of
an epoch. All rows of a batch come from one bucket and one group of row groups.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from ...schema.ragged import concat_ranges, ends_of
from .epoch import EpochOrder, OrderSpec
from .grouping import equal_groups
from .permutations import permutation

_MEMBERS_KEY = 8


class Buckets:
    """The batches of a dataset, listed by group and then by bucket.

    Args:
        lengths: int64 ``[rows]``: the length of each selected row, in storage order.
        boundaries: ascending int64 ``[buckets - 1]``: a row belongs to the first bucket whose boundary is at least its
            length, or to the last one.
        sizes: int64 ``[buckets]``: the number of rows in a full batch.
        rows_before: int64 ``[row_groups + 1]``: selected rows before each row group.
        group_rows: the minimum number of rows in a group.
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
        self.row_groups = equal_groups((rows_before, group_rows))
        self.rows = rows_before[self.row_groups]
        groups = np.repeat(np.arange(len(self.rows) - 1), np.diff(self.rows))
        rows = np.bincount(groups * len(sizes) + self.numbers, minlength=(len(self.rows) - 1) * len(sizes))
        held = rows.reshape(-1, len(sizes))
        self.batches = -(-held // sizes)
        self.before = ends_of(self.batches.sum(axis=1))

    def members(self, group: int, key: tuple[int, int] | None) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows of a group, batch after batch, and where each batch begins (with the end).

        Args:
            key: the seed and epoch that decide which rows of a bucket share a batch; ``None`` keeps storage order.
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
        nth = concat_ranges(np.zeros_like(count), count)
        starts = np.repeat(ends[:-1], count) + nth * np.repeat(self.sizes, count)
        return rows + first, np.append(starts, len(rows))


class BucketOrder(EpochOrder):
    """The order of one epoch, whose items are batches; a pure function of its arguments.

    Each group is one block, and `EpochOrder` permutes the groups.
    """

    def __init__(self, buckets: Buckets, spec: OrderSpec, epoch: int) -> None:
        super().__init__(buckets.before, replace(spec, buffer_size=spec.buffer_size and 1), epoch)
        self._buckets = buckets
        self.block_batches = lru_cache(maxsize=2 * spec.streams + 2)(self._block_batches)

    def group_of(self, stream: int, block: int) -> int:
        """Returns the group that a block belongs to."""
        row_group, _, _ = self.block_segments(stream, block)
        return int(row_group[0])

    def _block_batches(self, stream: int, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows (int64) of a block, batch after batch, and where each batch begins (with the end)."""
        group = self.group_of(stream, block)
        key = None if self.spec.buffer_size is None else (self.spec.seed, self.epoch)
        rows, starts = self._buckets.members(group, key)
        batches = self.block_items(stream, block) - self._buckets.before[group]
        first, count = starts[batches], starts[batches + 1] - starts[batches]
        return rows[concat_ranges(first, count)], ends_of(count)
