"""`EpochOrder`: the global order of one pass over the items, computed by position and never materialized.

The input is the number of items in each row group, and an `OrderSpec`. For a stream and a position, you get the shuffle
block and the place inside it. For a block, you get its items in order. Nothing depends on ranks, workers, or timing,
and every item is in exactly one block of one stream.

The rules are in `docs/rooms/order.md`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np

from ..process.dataclass import dataclass
from ..schema.ragged import concat_ranges, ends_of
from .permutations import permutation

Even = Literal["pad", "drop", "none"]

_GROUPS_KEY = 1
_BLOCK_KEY = 2
_STREAM_GROUPS_KEY = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSpec:
    """The parameters of the global order.

    Attributes:
        seed: the seed of the shuffle.
        buffer_size: the minimum number of items in a shuffle block; ``None`` for storage order.
        streams: the number of canonical streams, C.
        even: what to do when the items do not divide evenly by C.
        shard_first: whether streams are cut before row groups are permuted (``shard().shuffle()``). Each stream then
            keeps the same items in every epoch.
    """

    seed: int = 0
    buffer_size: int | None = None
    streams: int = 1
    even: Even = "none"
    shard_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBlocks:
    """The blocks of one stream.

    Attributes:
        row_group: the row group of each segment, int64 ``[S]``.
        first: the index of each segment's first item among all items, int64 ``[S]``.
        position: the stream position at which each segment begins, int64 ``[S + 1]``.
        block_segment: the first segment of each block, int64 ``[W + 1]``.
        block_position: the stream position at which each block begins, int64 ``[W + 1]``.
    """

    row_group: np.ndarray
    first: np.ndarray
    position: np.ndarray
    block_segment: np.ndarray
    block_position: np.ndarray


class EpochOrder:
    """The order of one epoch; a pure function of its arguments, with small caches.

    Args:
        items_before: int64 ``[row_groups + 1]``: the number of items before each row group; the last entry is N.
        spec: the parameters of the order.
        epoch: the number of the pass.
    """

    def __init__(self, items_before: np.ndarray, spec: OrderSpec, epoch: int) -> None:
        self.spec = spec
        self.epoch = epoch
        self._items_before = items_before
        self._total = int(items_before[-1])
        counts = np.diff(items_before)
        self._row_groups = np.flatnonzero(counts)
        if spec.buffer_size is not None and not spec.shard_first:
            self._row_groups = self._row_groups[permutation(len(self._row_groups), _GROUPS_KEY, spec.seed, epoch)]
        self._laid = ends_of(counts[self._row_groups])
        self.stream = lru_cache(maxsize=max(64, spec.streams))(self._stream)

    def stream_items(self, stream: int) -> int:
        """Returns the number of distinct items in the stream, before padding or dropping."""
        size, extra = divmod(self._total, self.spec.streams)
        return size + (stream < extra)

    def locate(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns ``(stream, position)`` of the items at the global positions ``index`` (int64) of the epoch.

        Position ``g`` belongs to stream ``g % C``. Past a stream's end (padding), it wraps around within the stream. An
        empty stream borrows from one that has items.
        """
        streams = self.spec.streams
        if streams == 1 and len(index) and index.max() < self._total:  # the usual case, without divisions
            return np.zeros_like(index), index
        stream, position = index % streams, index // streams
        if self._total < streams:
            stream = stream % max(self._total, 1)
        size, extra = divmod(self._total, streams)
        return stream, position % np.maximum(size + (stream < extra), 1)

    def _stream(self, stream: int) -> StreamBlocks:
        start, stop = self._extent(stream)
        lo = int(np.searchsorted(self._laid, start, side="right")) - 1
        hi = int(np.searchsorted(self._laid, stop, side="left"))
        row_group = self._row_groups[lo:hi]
        begin = np.maximum(self._laid[lo:hi], start)
        length = np.minimum(self._laid[lo + 1 : hi + 1], stop) - begin
        first = self._items_before[row_group] + (begin - self._laid[lo:hi])
        if self.spec.buffer_size is not None and self.spec.shard_first:
            order = permutation(len(row_group), _STREAM_GROUPS_KEY, self.spec.seed, self.epoch, stream)
            row_group, first, length = row_group[order], first[order], length[order]
        position = ends_of(length)
        block_segment = group_segments(self._rows_before(first, position), self.spec.buffer_size)
        return StreamBlocks(
            row_group=row_group,
            first=first,
            position=position,
            block_segment=block_segment,
            block_position=position[block_segment],
        )

    def _extent(self, stream: int) -> tuple[int, int]:
        """Returns the begin and end of a stream on the axis of all items, row group after row group."""
        size, extra = divmod(self._total, self.spec.streams)
        start = stream * size + min(stream, extra)
        return start, start + self.stream_items(stream)

    def _rows_before(self, first: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Returns the rows before each segment, which determine block sizes. Here each item counts as one row."""
        return position

    def block_segments(self, stream: int, block: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the runs of items in a block, before the shuffle: ``(row_group, first item, length)``."""
        plan = self.stream(stream)
        lo, hi = plan.block_segment[block], plan.block_segment[block + 1]
        return plan.row_group[lo:hi], plan.first[lo:hi], np.diff(plan.position[lo : hi + 1])

    def block_permutation(self, stream: int, block: int, count: int) -> np.ndarray | None:
        """Returns the permutation of a block's ``count`` items, or ``None`` for storage order."""
        if self.spec.buffer_size is None:
            return None
        return permutation(count, _BLOCK_KEY, self.spec.seed, self.epoch, stream, block)

    def block_items(self, stream: int, block: int) -> np.ndarray:
        """Returns the items of a block in epoch order (int64 item indices)."""
        _, first, length = self.block_segments(stream, block)
        items = concat_ranges(first, length)
        order = self.block_permutation(stream, block, len(items))
        return items if order is None else items[order]


def group_segments(position: np.ndarray, buffer_size: int | None) -> np.ndarray:
    """Groups segments into blocks of at least ``buffer_size`` items.

    Returns the first segment of each block, and the number of segments.
    """
    segments = len(position) - 1
    if buffer_size is None or segments <= 1 or int(np.diff(position).min()) >= buffer_size:
        return np.arange(segments + 1)
    bounds = [0]
    while bounds[-1] < segments:
        target = position[bounds[-1]] + buffer_size
        bounds.append(min(int(np.searchsorted(position, target, side="left")), segments))
    return np.asarray(bounds, dtype=np.int64)
