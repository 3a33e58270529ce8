"""`BucketItems`: items that are batches of rows of similar length, formed within groups of neighboring row groups.

The input is the length of each selected row, the bucket boundaries, and the batch size of each bucket. The output is
the number of batches, which is the same in every epoch, and the rows of any batch. Each row is in exactly one batch of
an epoch. All rows of a batch come from one bucket and one group of row groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from ..schema.ragged import concat_ranges, ends_of
from .block_reads import BlockKey, BlockRead, BlockRows
from .items import RowItems, by_block
from .order.epoch import EpochOrder, OrderSpec, equal_groups
from .order.leftovers import Leftovers
from .order.permutations import permutation
from .selection.selection import Selection

_BATCHES_OF_BUCKET = 4  # a group with fewer has many short batches, and the same rows in them in each epoch
_MEMBERS_KEY = 8


class BucketItems(RowItems):
    """Batches of rows. Each row is in exactly one batch.

    Args:
        selection: the wanted rows, with their lengths as the measured values.
        boundaries: the maximum length of each bucket except the last, ascending; or the number of buckets, which then
            hold equally many rows.
        rows_of_batch: the rows in a batch, one number or one per bucket; ``None`` if ``max_tokens`` determines it.
        max_tokens: the most tokens in a batch after its rows are padded to the maximum length of the bucket.
        group_rows: the minimum number of rows among which batches are formed. It is raised to that of a few batches of
            each bucket.
    """

    def __init__(
        self,
        selection: Selection,
        boundaries: Sequence[int] | int,
        rows_of_batch: int | Sequence[int] | None,
        max_tokens: int | None,
        group_rows: int,
    ) -> None:
        super().__init__(selection)
        assert selection.measured is not None
        lengths = selection.measured
        longest = int(lengths.max(initial=0))
        if isinstance(boundaries, int):
            parts = np.arange(1, boundaries) / boundaries
            limits = np.quantile(lengths, parts, method="higher") if len(lengths) else np.zeros(boundaries - 1)
            self._limits = np.append(limits.astype(np.int64), longest)
        else:
            self._limits = np.append(boundaries, max(longest, boundaries[-1])).astype(np.int64)
        sizes = np.full(len(self._limits), 1) if rows_of_batch is None else np.asarray(rows_of_batch)
        if max_tokens is not None:
            sizes = np.maximum(max_tokens // np.maximum(self._limits, 1), 1)
        self._sizes = np.broadcast_to(sizes, self._limits.shape).astype(np.int64)
        self._group_rows = max(group_rows, _BATCHES_OF_BUCKET * int(self._sizes.sum()))
        self._tokens = int(lengths.sum())
        before = selection.rows.before
        self._buckets = Buckets(lengths, self._limits[:-1], self._sizes, before, self._group_rows)

    @property
    def num_items(self) -> int:
        return int(self._buckets.before[-1])

    @property
    def explained(self) -> list[str]:
        counts = np.bincount(self._buckets.numbers, minlength=len(self._sizes))
        padded = int((counts * self._limits).sum())
        kinds = zip(self._limits.tolist(), self._sizes.tolist(), counts.tolist(), strict=True)
        shown = ", ".join(
            f"up to {size:,} of length <= {limit:,} ({rows:,} rows)" for limit, size, rows in kinds if rows
        )
        return [
            f"{self.num_items:,} batches of rows of similar length, formed among at least {self._group_rows:,} rows: "
            f"{shown}; {self._tokens / max(padded, 1):.0%} of the places hold values if padded to these lengths"
        ]

    @property
    def sizes(self) -> np.ndarray:
        """The number of rows in a full batch of each bucket."""
        return self._sizes

    def places(self, order: EpochOrder, index: np.ndarray) -> np.ndarray:
        """Returns where the batches at global positions come from, int64 ``[len(index), 6]``.

        The columns are the stream, how often it has begun again, the block, the bucket, the batch's first row in the
        block, and its number of rows.
        """
        assert isinstance(order, BucketOrder)
        streams = order.spec.streams
        result = np.empty((len(index), 6), np.int64)
        result[:, 0] = index % streams
        for stream, block, items, places in by_block(order, index):
            at = slice(None) if places is None else places
            rows, starts = order.block_batches(stream, block)
            first, end = starts[items], starts[items + 1]
            wraparounds = index[at] // streams // max(order.stream_items(stream), 1)
            bucket = self._buckets.numbers[rows[first]]
            result[at, 1:] = np.column_stack([wraparounds, np.full_like(first, block), bucket, first, end - first])
        return result

    def items_before(self, epoch: int) -> np.ndarray:
        before: np.ndarray = self._buckets.before
        return before

    def order(self, spec: OrderSpec, epoch: int, leftovers: Leftovers | None = None) -> BucketOrder:
        return BucketOrder(self._buckets, spec, epoch, leftovers)

    def reads(self, order: BucketOrder, pass_number: int, index: np.ndarray) -> list[BlockRead]:  # type: ignore[override]  # its own order
        """Returns the rows of the batches at global positions ``index`` of an epoch. Places count their rows."""
        blocks = by_block(order, index)
        begins = None
        if len(blocks) > 1:
            sizes = self.rows_of(order, index)
            begins = np.cumsum(sizes) - sizes
        result = []
        for stream, block, batches, mine in blocks:
            _, starts = order.block_batches(stream, block)
            first, count = starts[batches], starts[batches + 1] - starts[batches]
            places = None if begins is None else concat_ranges(begins[mine], count)
            key = BlockKey(epoch=order.number, stream=stream, block=block)
            result.append(BlockRead(key=key, items=concat_ranges(first, count), places=places, pass_number=pass_number))
        return result

    def reads_between(self, order: EpochOrder, pass_number: int, first: int, last: int) -> None:
        """Returns nothing: the rows of consecutive items are not consecutive."""

    def rows_of(self, order: BucketOrder, index: np.ndarray) -> np.ndarray:  # type: ignore[override]  # its own order
        rows = np.empty(len(index), np.int64)
        for stream, block, batches, mine in by_block(order, index):
            _, starts = order.block_batches(stream, block)
            rows[slice(None) if mine is None else mine] = starts[batches + 1] - starts[batches]
        return rows

    def block_rows(self, order: BucketOrder, key: BlockKey) -> BlockRows:  # type: ignore[override]  # its own order
        return self.rows_at(order.block_batches(key.stream, key.block)[0][:, None])

    def block_shares(self, order: BucketOrder, key: BlockKey) -> list[tuple[int, float]]:  # type: ignore[override]  # its own order
        group = order.group_of(key.stream, key.block)
        _, _, taken = order.block_segments(key.stream, key.block)
        share = int(taken.sum()) / max(int(self._buckets.batches[group].sum()), 1)
        first, last = self._buckets.row_groups[group : group + 2].tolist()
        counts = self._selection.rows.counts[first:last] * share
        return [(first + number, count) for number, count in enumerate(counts.tolist()) if count]


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

    def __init__(self, buckets: Buckets, spec: OrderSpec, epoch: int, leftovers: Leftovers | None = None) -> None:
        super().__init__(buckets.before, replace(spec, buffer_size=spec.buffer_size and 1), epoch, leftovers)
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
