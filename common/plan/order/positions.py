"""Position views: ``shard``, ``take``, ``skip``, ``repeat`` and ``batch`` as mappings from an element to its source.

Each view is an immutable value over an inner view. It has an exact length (``None`` = endless) and maps element
numbers, so any element is found without iterating. Rows map arrays of numbers to ``(passes, index)``: the pass over the
data, and the global position in the order of that pass. Batches map one number to the rows in that batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from ...base.process.dataclass import dataclass
from ...stages.base import Decision, Stage
from ...stages.repeat import Repeat
from ...stages.shard import Shard
from ...stages.take import Cut
from .epoch import Even
from .permutations import hashed

_ENDLESS = 1 << 62
_TURN_KEY = np.uint64(0x7475726E)
_RUN_BITS = 16  # so many passes keep their sequence, and blocks of the next pass are those of the next number


class Consecutive(NamedTuple):
    """The rows at the global positions ``first`` to ``last`` (exclusive) in the order of one pass over the data."""

    pass_number: int
    first: int
    last: int


class View(Protocol):
    """A sequence of rows or batches."""

    @property
    def length(self) -> int | None:
        """The number of rows or batches; ``None`` = endless."""

    @property
    def passes(self) -> int | None:
        """The number of passes over the data; ``None`` = endless, or a mix of finite length with an endless source."""

    @property
    def depth(self) -> int:
        """How many repetitions, one inside the other, the numbers of passes contain as hashes; see `pass_numbers`."""


def pass_numbers(turn: int | np.ndarray, passes: np.ndarray, view: View) -> np.ndarray:
    """Returns the numbers of passes in the ``turn``-th repetition of a view (int64). No two passes share a number.

    If it is not known how many passes the view makes, the numbers of later repetitions contain a hash of the
    repetition.

    Args:
        turn: the repetition, from 0: an integer, or int64 like ``passes``.
        passes: the numbers of the passes in the view.
        view: the view that is repeated.
    """
    if view.passes is not None:
        return passes + turn * view.passes
    if not np.any(turn):  # the usual case, asked for each source of a mix and each job
        return passes
    turns = np.broadcast_to(np.asarray(turn, np.int64), passes.shape)
    depth = np.full(passes.shape, view.depth)
    hashes = hashed(np.full(passes.shape, _TURN_KEY), depth, turns, passes >> _RUN_BITS)
    runs = (hashes >> np.uint64(_RUN_BITS + 1)).astype(np.int64)
    return np.where(turns == 0, passes, (runs << _RUN_BITS) | (passes & ((1 << _RUN_BITS) - 1)))


class RowView(View, Protocol):
    """A sequence of rows."""

    def resolve(self, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Maps row numbers (int64) to ``(passes, index)``, both int64."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """All positions of one pass: N items in C streams of equal length."""

    items: int
    streams: int
    even: Even

    @property
    def length(self) -> int:
        if self.even == "none" or self.items == 0:
            return self.items
        size = -(-self.items // self.streams) if self.even == "pad" else self.items // self.streams
        return size * self.streams

    @property
    def passes(self) -> int:
        return 1

    @property
    def depth(self) -> int:
        return 0

    def resolve(self, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros_like(number), number


class _OfSamePasses:
    """A view with as many passes over the data as its inner view."""

    __slots__ = ()
    inner: View

    @property
    def passes(self) -> int | None:
        return self.inner.passes

    @property
    def depth(self) -> int:
        return self.inner.depth


@dataclass(frozen=True, slots=True)
class ShardView(_OfSamePasses):
    """The rows of rank ``index``: every ``num_shards``-th row. ``even`` says how ranks get equal lengths."""

    inner: RowView
    num_shards: int
    index: int
    even: Even

    @property
    def length(self) -> int | None:
        total = self.inner.length
        if total is None:
            return None
        if self.even == "pad":
            return -(-total // self.num_shards)
        if self.even == "drop":
            return total // self.num_shards
        return max(0, -(-(total - self.index) // self.num_shards))

    def resolve(self, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        index = number * self.num_shards + self.index
        total = self.inner.length
        return self.inner.resolve(index if total is None else index % max(total, 1))


@dataclass(frozen=True, slots=True)
class Slice(_OfSamePasses):
    """Elements ``start .. stop`` of the inner view (``take`` and ``skip``)."""

    inner: RowView | BatchView
    start: int
    stop: int | None

    @property
    def length(self) -> int | None:
        total = self.inner.length
        ends = [end for end in (total, self.stop) if end is not None]
        return max(0, min(ends) - self.start) if ends else None

    def resolve(self, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.inner.resolve(number + self.start)  # type: ignore[union-attr]  # rows over rows

    def run(self, number: int) -> int:
        count = self.inner.run(number + self.start)  # type: ignore[union-attr]  # batches over batches
        return count if self.stop is None else min(count, self.stop - self.start - number)

    def rows(self, number: int, count: int = 1) -> tuple[np.ndarray, np.ndarray]:
        return self.inner.rows(number + self.start, count)  # type: ignore[union-attr]  # batches over batches


@dataclass(frozen=True, slots=True)
class RepeatView:
    """The inner view repeated ``count`` times (``None`` = endlessly). Each repetition is another pass over the data.

    ``first`` is the number of the first repetition, after an interruption.
    """

    inner: RowView | BatchView
    count: int | None
    first: int = 0

    @property
    def length(self) -> int | None:
        total = self.inner.length
        if total == 0 or self.count == 0:
            return 0
        return None if total is None or self.count is None else total * self.count

    @property
    def passes(self) -> int | None:
        inner = self.inner.passes
        return None if inner is None or self.count is None else inner * self.count

    @property
    def depth(self) -> int:
        return self.inner.depth + (self.inner.passes is None and self.inner.length is not None)

    def resolve(self, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        total = self.inner.length
        if total is None:
            return self.inner.resolve(number)  # type: ignore[union-attr]  # rows over rows
        passes, index = self.inner.resolve(number % max(total, 1))  # type: ignore[union-attr]
        return pass_numbers(number // max(total, 1) + self.first, passes, self.inner), index

    def run(self, number: int) -> int:
        total = self.inner.length
        return self.inner.run(number if total is None else number % max(total, 1))  # type: ignore[union-attr]

    def rows(self, number: int, count: int = 1) -> tuple[np.ndarray, np.ndarray]:
        total = self.inner.length
        if total is None:
            return self.inner.rows(number, count)  # type: ignore[union-attr]  # batches over batches
        passes, index = self.inner.rows(number % max(total, 1), count)  # type: ignore[union-attr]
        return pass_numbers(number // max(total, 1) + self.first, passes, self.inner), index


@dataclass(frozen=True, slots=True)
class Resumed:
    """The rows that remain after an interruption: the rest of one pass, and then all later passes."""

    rest: RowView
    later: RowView | None

    @property
    def length(self) -> int | None:
        rest = self.rest.length
        if self.later is None or rest is None:
            return rest
        return None if self.later.length is None else rest + self.later.length

    @property
    def passes(self) -> int | None:
        rest, later = self.rest.passes, 0 if self.later is None else self.later.passes
        return None if rest is None or later is None else rest + later

    @property
    def depth(self) -> int:
        return self.rest.depth

    def resolve(self, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rest = _ENDLESS if self.rest.length is None else self.rest.length
        passes, index = np.empty_like(number), np.empty_like(number)
        early = number < rest
        if early.any():
            passes[early], index[early] = self.rest.resolve(number[early])
        if not early.all():
            assert self.later is not None
            passes[~early], index[~early] = self.later.resolve(number[~early] - rest)
        return passes, index


class BatchView(View, Protocol):
    """A sequence of batches."""

    def run(self, number: int) -> int:
        """Returns how many batches can be requested at once from this one on: full batches of one pass, at least 1."""

    def rows(self, number: int, count: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows of ``count`` consecutive batches (at most `run`) as ``(passes, index)``."""


@dataclass(frozen=True, slots=True)
class Batches(_OfSamePasses):
    """Rows in batches of ``batch_size``. The last batch is shorter, or dropped."""

    inner: RowView
    batch_size: int
    drop_remainder: bool

    @property
    def length(self) -> int | None:
        total = self.inner.length
        if total is None:
            return None
        return total // self.batch_size if self.drop_remainder else -(-total // self.batch_size)

    def run(self, number: int) -> int:
        total = self.inner.length
        return _ENDLESS if total is None else max(1, total // self.batch_size - number)

    def rows(self, number: int, count: int = 1) -> tuple[np.ndarray, np.ndarray]:
        start = number * self.batch_size
        stop = start + count * self.batch_size
        total = self.inner.length
        if total is not None:
            stop = min(stop, total)
        return self.inner.resolve(np.arange(start, stop, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Strided(_OfSamePasses):
    """Every ``step``-th batch from ``first``: the batches of one loader worker."""

    inner: BatchView
    first: int
    step: int

    @property
    def length(self) -> int | None:
        total = self.inner.length
        return None if total is None else max(0, -(-(total - self.first) // self.step))

    def run(self, number: int) -> int:
        return -(-self.inner.run(number * self.step + self.first) // self.step)

    def rows(self, number: int, count: int = 1) -> tuple[np.ndarray, np.ndarray]:
        first = number * self.step + self.first
        parts = [self.inner.rows(first + turn * self.step) for turn in range(count)]
        passes, index = (np.concatenate(column) for column in zip(*parts, strict=True))
        return passes, index


@dataclass(frozen=True, slots=True)
class WorkerView(_OfSamePasses):
    """The rows of every ``step``-th batch from ``first``, one batch after the other: the rows of one loader worker."""

    inner: RowView
    batch_size: int
    first: int
    step: int

    @property
    def length(self) -> int | None:
        total = self.inner.length
        if total is None:
            return None
        full, rest = divmod(total, self.batch_size)
        own = max(0, -(-(full - self.first) // self.step))
        return own * self.batch_size + (rest if full % self.step == self.first else 0)

    def resolve(self, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        batch, place = np.divmod(number, self.batch_size)
        return self.inner.resolve((batch * self.step + self.first) * self.batch_size + place)


def consecutive(view: RowView | BatchView, first: int, last: int) -> Consecutive | None:
    """Returns the rows of the elements ``first`` to ``last`` (exclusive) of a view if they are consecutive.

    This takes no arrays, so it costs the same for one row and for a million. ``None`` does not mean that the rows are
    not consecutive: ask the view itself.
    """
    match view:
        case Epoch():
            return Consecutive(0, first, last)
        case Slice():
            return consecutive(view.inner, first + view.start, last + view.start)
        case RepeatView():
            return _consecutive_repeated(view, first, last)
        case Batches():
            rows = last * view.batch_size
            total = view.inner.length
            return consecutive(view.inner, first * view.batch_size, rows if total is None else min(rows, total))
    return None


def _consecutive_repeated(view: RepeatView, first: int, last: int) -> Consecutive | None:
    total = view.inner.length
    if not total:
        return None if total == 0 else consecutive(view.inner, first, last)
    turn = first // total
    rows = consecutive(view.inner, first - turn * total, last - turn * total) if last <= (turn + 1) * total else None
    if rows is None:
        return None
    (number,) = pass_numbers(turn + view.first, np.array([rows.pass_number]), view.inner).tolist()
    return rows._replace(pass_number=number)


def rows_viewed(stages: Sequence[Stage], view: RowView) -> RowView:
    """Returns the view after each stage."""
    for stage in stages:
        view = viewed(stage, view)  # type: ignore[assignment]  # rows over rows
    return view


def viewed(stage: Stage, inner: RowView | BatchView) -> RowView | BatchView:
    """Returns the view of rows or batches after a stage."""
    return _VIEWS[stage.decides](stage, inner)


def _cut(stage: Cut, inner: RowView | BatchView) -> RowView | BatchView:
    return Slice(inner, *stage.bounds)


def _repeated(stage: Repeat, inner: RowView | BatchView) -> RowView | BatchView:
    return RepeatView(inner, stage.count)


def _sharded(stage: Shard, inner: RowView) -> RowView:
    return ShardView(inner, stage.num_shards, stage.index, stage.even)


_VIEWS: Mapping[Decision, Callable[..., RowView | BatchView]] = {
    Decision.CUT: _cut,
    Decision.PASSES: _repeated,
    Decision.PART: _sharded,
}
"""What makes the view after a stage, by what the stage decides."""
