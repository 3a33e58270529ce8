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

from ...base.process.dataclass import dataclass
from ...base.process.forks import cached_property
from ...schema.ragged import concat_ranges, ends_of
from .leftovers import Leftovers
from .permutations import permutation, raw_words

Even = Literal["pad", "drop", "none"]

_GROUPS_KEY = 1
_BLOCK_KEY = 2
_STREAM_GROUPS_KEY = 3
_PIECES_KEY = 12
_STREAMS_KEY = 13
REST = -1
"""The number of an epoch's order after it was cut anew, in the keys of its blocks."""
_PIECES = 64  # more mix better, and fewer let a reader skip more pages
_JOINED_BYTES = 128 << 10  # a larger row group costs little beside its values
_JOINED = 64  # row groups at most: the first batch after a state waits for all of them


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
class RowGroupSizes:
    """What decides which row groups share a block where nothing is shuffled: small neighbors in one file do.

    Attributes:
        file: the number of each row group's file, int64 ``[row_groups]``.
        num_bytes: about how many bytes are read of each row group, int64 ``[row_groups]``.
    """

    file: np.ndarray
    num_bytes: np.ndarray

    def blocks(self, row_group: np.ndarray) -> np.ndarray:
        """Joins neighbors of a stream, given its row groups (ascending). This affects only the speed.

        The first block is one row group, the next has up to two, then four, and so on up to 64: little is read in vain
        if the consumer stops early.

        Returns:
            The first row group of each block, and the number of row groups (int64 ``[blocks + 1]``).
        """
        apart = np.diff(self.file[row_group]) != 0
        if not apart.all():  # there may be a million files of a row group each
            least = _JOINED_BYTES // _JOINED
            ends = ends_of(np.maximum(self.num_bytes[row_group], least))
            growing = least * (2 ** np.arange(_JOINED.bit_length()) - 1)
            bounds = np.append(growing, np.arange(growing[-1] + _JOINED_BYTES, ends[-1] + _JOINED_BYTES, _JOINED_BYTES))
            apart |= np.searchsorted(bounds, ends[:-2], side="right") != np.searchsorted(bounds, ends[2:], side="left")
        return np.append(np.flatnonzero(np.append(len(row_group) > 0, apart)), len(row_group))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBlocks:
    """The blocks of one stream. A segment is a run of neighboring items of one row group.

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
        leftovers: what is left of another order of the epoch; its streams are cut from that.
        sizes: the sizes of row groups of which small ones may share a block; ``None`` = a block for each, unless
            something is shuffled.
    """

    def __init__(
        self,
        items_before: np.ndarray,
        spec: OrderSpec,
        epoch: int,
        leftovers: Leftovers | None = None,
        sizes: RowGroupSizes | None = None,
    ) -> None:
        self.spec = spec
        self.epoch = epoch
        self.items_before = items_before
        self._leftovers = leftovers
        self._sizes = sizes
        self._total = int(items_before[-1]) if leftovers is None else leftovers.items
        counts = np.diff(items_before)
        self._row_groups = np.flatnonzero(counts)
        if self._places_are_random:
            self._row_groups = self._row_groups[permutation(len(self._row_groups), _GROUPS_KEY, spec.seed, epoch)]
        self._laid = ends_of(counts[self._row_groups])
        self.stream = lru_cache(maxsize=max(64, spec.streams))(self._stream)

    @property
    def number(self) -> int:
        """The number of this order in the keys of its blocks: the epoch, or `REST`."""
        return self.epoch if self._leftovers is None else REST

    @property
    def cuts(self) -> int:
        """How often what was left of the epoch was cut anew."""
        return 0 if self._leftovers is None else self._leftovers.cuts

    @property
    def num_streams(self) -> int:
        return self.spec.streams

    @property
    def is_shuffled(self) -> bool:
        """Whether the items of blocks are permuted."""
        return self.spec.buffer_size is not None

    @property
    def total(self) -> int:
        """The number of distinct items."""
        return self._total

    @property
    def _places_are_random(self) -> bool:
        """Whether row groups are permuted before they are cut into streams."""
        return self.spec.buffer_size is not None and not self.spec.shard_first and self._leftovers is None

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
        if self._leftovers is not None:
            runs, part = self._leftovers.between(start, stop).by_row_group()
            return self._blocked(runs.row_group, runs.first, runs.length, part)
        lo = int(np.searchsorted(self._laid, start, side="right")) - 1
        hi = int(np.searchsorted(self._laid, stop, side="left"))
        row_group = self._row_groups[lo:hi]
        begin = np.maximum(self._laid[lo:hi], start) - self._laid[lo:hi]
        end = np.minimum(self._laid[lo + 1 : hi + 1], stop) - self._laid[lo:hi]
        part = np.arange(len(row_group))
        if self.spec.buffer_size is not None and self.spec.shard_first:
            order = permutation(len(row_group), _STREAM_GROUPS_KEY, self.spec.seed, self.epoch, stream)
            row_group, begin, end = row_group[order], begin[order], end[order]
        elif self.spec.buffer_size is not None and len(row_group):
            row_group, begin, end, part = self._split(row_group, begin, end, np.diff(self._laid[lo : hi + 1]))
        return self._blocked(row_group, self.items_before[row_group] + begin, end - begin, part)

    def _blocked(self, row_group: np.ndarray, first: np.ndarray, length: np.ndarray, part: np.ndarray) -> StreamBlocks:
        """Makes blocks of the segments of a stream; ``part`` numbers the parts, which are never divided."""
        position = ends_of(length)
        segment = np.searchsorted(part, np.arange(part[-1] + 2)) if len(part) else np.zeros(1, np.int64)
        block_segment = segment[self._blocks(ends_of(self._rows(first, length))[segment], row_group[segment[:-1]])]
        return StreamBlocks(
            row_group=row_group,
            first=first,
            position=position,
            block_segment=block_segment,
            block_position=position[block_segment],
        )

    def _split(
        self, row_group: np.ndarray, begin: np.ndarray, end: np.ndarray, items: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Splits the parts that other streams have of the same row groups into segments all over the row group.

        The arguments are the row group of each part, its begin and end in the row group, and the row group's items.

        Returns:
            The row group, begin and end of each segment, and the number of the part that it belongs to.
        """
        cut = np.flatnonzero(end - begin < items).tolist()  # only the first and the last part may be cut
        if not cut:
            return row_group, begin, end, np.arange(len(row_group))
        whole = np.flatnonzero(end - begin == items)
        begins, ends, parts = [begin[whole]], [end[whole]], [whole]
        for number in cut:
            run_begins, run_ends = self._runs(int(row_group[number]), int(begin[number]), int(end[number]))
            begins.append(run_begins)
            ends.append(run_ends)
            parts.append(np.full(len(run_begins), number))
        part = np.concatenate(parts)
        order = np.argsort(part, kind="stable")
        part = part[order]
        return row_group[part], np.concatenate(begins)[order], np.concatenate(ends)[order], part

    def _runs(self, row_group: int, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the runs of items of a row group that are at ``begin`` to ``end`` after its pieces are permuted.

        A row group that several streams share is split into pieces of equal length. Where they begin is drawn like
        their order, and the last one goes on at the row group's begin, so each item comes to each place equally often.
        The runs are in storage order.

        Returns:
            Where each run begins and ends in the row group, int64.
        """
        bounds, words = self._pieces(row_group)
        items = bounds[-1] - bounds[0]
        order = np.argsort(words, kind="stable")
        place = ends_of(np.diff(bounds)[order])
        begins = bounds[order] + np.maximum(begin - place[:-1], 0)
        ends = bounds[order] + np.minimum(end - place[:-1], np.diff(place))
        inside = begins < ends
        begins, ends = begins[inside], ends[inside]
        around = np.flatnonzero((begins < items) & (ends > items))
        begins = np.sort(np.append(begins, np.full(len(around), items)) % items)
        ends = np.sort((np.append(ends, np.full(len(around), items)) - 1) % items + 1)
        apart = np.flatnonzero(begins[1:] != ends[:-1])
        return begins[np.append(0, apart + 1)], ends[np.append(apart, len(ends) - 1)]

    def _pieces(self, row_group: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns where the pieces of a row group begin and the last one ends, and a random word for each piece.

        Bounds past the row group's end count again from its begin.
        """
        first, last = self.items_before[row_group : row_group + 2].tolist()
        pieces = min(_PIECES, last - first)
        words = raw_words(_PIECES + 1, _PIECES_KEY, self.spec.seed, self.epoch, row_group)
        bounds = np.arange(pieces + 1) * (last - first) // pieces + int(words[-1]) % (last - first)
        return bounds, words[:pieces]

    def _extent(self, stream: int) -> tuple[int, int]:
        """Returns the begin and end of a stream on the axis of all items, row group after row group."""
        start = int(self.starts[stream])
        return start, start + self.stream_items(stream)

    @cached_property
    def starts(self) -> np.ndarray:
        """Where each stream begins on the axis of all items (int64). A shuffle lays out the streams in random order.

        Otherwise large row groups would come to some streams more often than to others.
        """
        streams = self.spec.streams
        size, extra = divmod(self._total, streams)
        order = np.arange(streams)
        if self._places_are_random:
            order = permutation(streams, _STREAMS_KEY, self.spec.seed, self.epoch)
        starts = np.empty(streams, np.int64)
        starts[order] = ends_of(size + (order < extra))[:-1]
        return starts

    def _rows(self, first: np.ndarray, length: np.ndarray) -> np.ndarray:
        """Returns the rows of segments, which determine block sizes. Here each item counts as one row."""
        return length

    def _blocks(self, rows_before: np.ndarray, row_group: np.ndarray) -> np.ndarray:
        """Groups the parts of row groups into blocks. Returns the first part of each, and the number of parts.

        Args:
            rows_before: the number of rows before each part, and of all, int64 ``[parts + 1]``.
            row_group: the row group of each part, int64 ``[parts]``.
        """
        if self.spec.buffer_size is not None:
            return equal_groups((rows_before, self.spec.buffer_size))
        return np.arange(len(rows_before)) if self._sizes is None else self._sizes.blocks(row_group)

    def block_segments(self, stream: int, block: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the runs of items in a block, before the shuffle: ``(row_group, first item, length)``."""
        plan = self.stream(stream)
        lo, hi = plan.block_segment[block], plan.block_segment[block + 1]
        return plan.row_group[lo:hi], plan.first[lo:hi], plan.position[lo + 1 : hi + 1] - plan.position[lo:hi]

    def block_permutation(self, stream: int, block: int, count: int) -> np.ndarray | None:
        """Returns the permutation of a block's ``count`` items, or ``None`` for storage order."""
        if self.spec.buffer_size is None:
            return None
        cuts = (self.cuts,) if self._leftovers is not None else ()
        return permutation(count, _BLOCK_KEY, self.spec.seed, self.epoch, stream, block, *cuts)

    def block_items(self, stream: int, block: int) -> np.ndarray:
        """Returns the items of a block in epoch order (int64 item indices)."""
        _, first, length = self.block_segments(stream, block)
        items = concat_ranges(first, length)
        order = self.block_permutation(stream, block, len(items))
        return items if order is None else items[order]


def equal_groups(*axes: tuple[np.ndarray, int]) -> np.ndarray:
    """Joins neighbors to as many groups as possible that all have the minimum size, and makes these equally large.

    It makes shuffle blocks, the groups of `bucket` and `pack_rows`, and the sections of weighted draws. The last group
    is never a small rest, which would mix worse than the others. Sizes differ by about one of the joined parts. There
    is one group if everything together is below the minimum.

    Args:
        axes: pairs of what is before each part, with the total at the end (int64 ``[parts + 1]``, ascending), and the
            minimum size of a group (>= 1). A group must have the minimum of each axis. The first axis says which groups
            are equally large.

    Returns:
        The first part of each group, and the number of parts (int64 ``[groups + 1]``).

    Example:
        >>> equal_groups((np.arange(0, 11_000, 1_000), 3_000)).tolist()
        [0, 3, 7, 10]
    """
    position = axes[0][0]
    parts = len(position) - 1
    if any(2 * least > int(before[-1] - before[0]) for before, least in axes):
        return np.array([0, parts][-min(parts + 1, 2) :])
    if parts <= 1 or all(int(np.diff(before).min()) >= least for before, least in axes):
        return np.arange(parts + 1)
    starts = [np.searchsorted(before, before - least, side="right") - 1 for before, least in axes]
    start = np.minimum.reduce(starts).tolist()  # where a group begins at the latest that ends before this part
    latest = [parts]
    while (begin := start[latest[-1]]) >= 0:
        latest.append(begin)
    groups = max(len(latest) - 1, 1)
    latest.reverse()
    end = np.maximum.reduce([np.searchsorted(before, before + least) for before, least in axes]).tolist()
    bounds = [0]
    for number, equal in enumerate(_nearest(position, groups), 1):
        bounds.append(min(max(equal, end[bounds[-1]]), latest[number]))
    return np.array([*bounds, parts], np.int64)


def _nearest(position: np.ndarray, groups: int) -> list[int]:
    """Returns the parts that begin nearest to where groups of exactly equal size would begin, after the first group."""
    size, rest = divmod(int(position[-1] - position[0]), groups)
    number = np.arange(1, groups)
    begins = position[0] + number * size + number * rest // groups
    above = np.searchsorted(position, begins)
    below = np.maximum(above - 1, 0)
    nearest: list[int] = np.where(begins - position[below] < position[above] - begins, below, above).tolist()
    return nearest
