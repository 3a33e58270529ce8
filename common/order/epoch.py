"""`EpochOrder`: the global order of one pass over the items, found by position and never materialised.

In: how many items each row group holds, and an `OrderSpec`. Out: for a stream and a position, the shuffle block that
holds it and the place inside; for a block, its items in order. Always holds: nothing depends on ranks, workers, or
timing, and every item stands in exactly one block of one stream.

Source of the rules: `docs/rooms/order.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from .keyed import permutation

Even = Literal["pad", "drop", "none"]

_GROUPS_KEY = 1
_BLOCK_KEY = 2
_STREAM_GROUPS_KEY = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSpec:
    """What the global order is made of.

    Attributes:
        seed: of the shuffle.
        buffer_size: fewest items in a shuffle block; ``None`` for the natural order.
        streams: canonical streams, C.
        even: what happens to the items that do not divide by C.
        shard_first: whether streams are cut before row groups are permuted (``shard().shuffle()``), so that each stream
            keeps its own items in every epoch.
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
        row_group: row group of each segment, int64 ``[S]``.
        first: index of the segment's first item among all items, int64 ``[S]``.
        position: stream position where each segment begins, int64 ``[S + 1]``.
        block_segment: first segment of each block, int64 ``[W + 1]``.
        block_position: stream position where each block begins, int64 ``[W + 1]``.
    """

    row_group: np.ndarray
    first: np.ndarray
    position: np.ndarray
    block_segment: np.ndarray
    block_position: np.ndarray


class EpochOrder:
    """The order of one epoch; a pure function of its arguments, with small caches.

    Args:
        items_before: int64 ``[row_groups + 1]``: how many items lie before each row group; the last entry is N.
        spec: what the order is made of.
        epoch: which pass.
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
        self._laid = np.concatenate([[0], np.cumsum(counts[self._row_groups])])
        self.stream = lru_cache(maxsize=max(64, spec.streams))(self._stream)

    def stream_items(self, stream: int) -> int:
        """How many different items the stream holds (before padding or dropping)."""
        size, extra = divmod(self._total, self.spec.streams)
        return size + (stream < extra)

    def locate(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``(stream, position)`` of the items at global positions ``index`` (int64) of the epoch.

        Position ``g`` belongs to stream ``g % C``; past a stream's end (padding) it wraps round inside the stream, and
        a stream that has nothing borrows from one that has.
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
        position = np.concatenate([[0], np.cumsum(length)])
        block_segment = group_segments(self._rows_before(first, position), self.spec.buffer_size)
        return StreamBlocks(
            row_group=row_group,
            first=first,
            position=position,
            block_segment=block_segment,
            block_position=position[block_segment],
        )

    def _extent(self, stream: int) -> tuple[int, int]:
        """Where a stream begins and ends among what all row groups hold, laid end to end."""
        size, extra = divmod(self._total, self.spec.streams)
        start = stream * size + min(stream, extra)
        return start, start + self.stream_items(stream)

    def _rows_before(self, first: np.ndarray, position: np.ndarray) -> np.ndarray:
        """What a block must hold enough of, before each segment: items, each of which counts as a row."""
        return position

    def block_segments(self, stream: int, block: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The stretches of items that make a block: ``(row_group, first item, length)``, before they are permuted."""
        plan = self.stream(stream)
        lo, hi = plan.block_segment[block], plan.block_segment[block + 1]
        return plan.row_group[lo:hi], plan.first[lo:hi], np.diff(plan.position[lo : hi + 1])

    def block_permutation(self, stream: int, block: int, count: int) -> np.ndarray | None:
        """The permutation of a block's ``count`` items; ``None`` for the natural order."""
        if self.spec.buffer_size is None:
            return None
        return permutation(count, _BLOCK_KEY, self.spec.seed, self.epoch, stream, block)

    def block_items(self, stream: int, block: int) -> np.ndarray:
        """The items of a block, in the order in which they are handed out (int64 item indices)."""
        _, first, length = self.block_segments(stream, block)
        ends = np.cumsum(length)
        items = np.repeat(first - (ends - length), length) + np.arange(int(ends[-1]) if len(ends) else 0)
        order = self.block_permutation(stream, block, len(items))
        return items if order is None else items[order]


def group_segments(position: np.ndarray, buffer_size: int | None) -> np.ndarray:
    """The first segment of each block, and the number of segments: blocks of at least ``buffer_size`` items."""
    segments = len(position) - 1
    if buffer_size is None or segments <= 1 or int(np.diff(position).min()) >= buffer_size:
        return np.arange(segments + 1)
    bounds = [0]
    while bounds[-1] < segments:
        target = position[bounds[-1]] + buffer_size
        bounds.append(min(int(np.searchsorted(position, target, side="left")), segments))
    return np.asarray(bounds, dtype=np.int64)
