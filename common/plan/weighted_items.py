"""`WeightedItems`: epochs of rows drawn by weight. Some rows occur several times, others not at all.

The input is the weight of each row (or its class, and the weight of each class), the rows before each row group, the
number of items, and a key. The output is the row of any item, and the number of items before any row group. This is
systematic sampling: ``n`` equally spaced points over the summed weights, from a uniform start. Each row is drawn as
often as its share of the items, rounded down or up, and so is each class. All numbers are exact integers.

Neighbours on the axis of weights exclude each other, so each epoch lays out the rows anew: the classes in a random
order, inside a class its sections, and inside a section its rows. A section is a run of whole row groups. Only sections
that are read, or that have several row groups, are permuted. Items are numbered in storage order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

import numpy as np

from ..base.process.forks import cached_property
from ..schema.ragged import ends_of
from .block_reads import BlockKey, BlockRows
from .items import RowItems, row_groups_of
from .order.epoch import EpochOrder, equal_groups
from .order.permutations import permutation, raw_words
from .selection.selection import Selection

_START_KEY = 7
_ROWS_KEY = 9
_SECTIONS_KEY = 10
_CLASSES_KEY = 11
_BITS = 61  # for the sum of all weights
_SECTION_ITEMS = 1 << 12  # rows of a section exclude each other by about one in this many
_FEW_SECTIONS = 4


class WeightedItems(RowItems):
    """Rows that occur in an epoch in proportion to their weights. Items are numbered in storage order.

    Args:
        selection: the wanted rows, with their weights or classes as the measured values.
        weights_of_classes: returns the weight of each class from the measured classes; ``None`` if rows have weights.
        num_items: the number of items in an epoch; ``None`` = the number of rows.
        seed: the seed of the draws.
    """

    differ = True

    def __init__(
        self,
        selection: Selection,
        weights_of_classes: Callable[[np.ndarray], np.ndarray] | None,
        num_items: int | None,
        seed: int,
    ) -> None:
        super().__init__(selection)
        rows = selection.rows.total
        self._count = rows if num_items is None or not rows else num_items
        self._seed = seed
        self._weights_of_classes = weights_of_classes
        self._draws_of = lru_cache(maxsize=3)(self._make_draws)

    @property
    def num_items(self) -> int:
        return self._count

    @property
    def explained(self) -> list[str]:
        return [
            f"{self._count:,} items drawn by weight from {self._rows.drawn:,} rows in each epoch, seed {self._seed}; "
            f"a row comes at most {self._rows.most:,} times"
        ]

    @cached_property
    def _rows(self) -> WeightedRows:
        measured, before = self._selection.measured, self._selection.rows.before
        assert measured is not None
        if self._weights_of_classes is None:
            return WeightedRows(before, measured, None, self._count)
        return WeightedRows(before, self._weights_of_classes(measured), measured, self._count)

    def _make_draws(self, epoch: int) -> WeightedDraws:
        return WeightedDraws(self._rows, self._seed, epoch)

    def items_before(self, epoch: int) -> np.ndarray:
        return self._draws_of(epoch).items_before

    def block_rows(self, order: EpochOrder, key: BlockKey) -> BlockRows:
        """Returns the rows that a block needs. A row that occurs several times is read once."""
        items = order.block_items(key.stream, key.block)
        rows, repeats = self._draws_of(order.epoch).rows_of(items)
        return self.rows_at(rows[:, None], repeats=repeats)

    def block_shares(self, order: EpochOrder, key: BlockKey) -> list[tuple[int, float]]:
        row_group, taken = row_groups_of(order, key)
        counts = self._selection.rows.counts[row_group]
        return list(zip(row_group.tolist(), np.minimum(taken, counts).astype(float).tolist(), strict=True))


class WeightedRows:
    """The rows from which epochs draw, and their sections.

    Args:
        before: int64 ``[row_groups + 1]``: the rows before each row group; the last entry is the number of rows.
        weights: the weight of each row, or of each class; finite and >= 0.
        classes: int64 ``[rows]``: the class of each row; ``None`` if each row has its own weight.
        count: the number of items to draw in an epoch, n; below 2^31.

    Attributes:
        sections: int64 ``[sections + 1]``: the first row group of each section.
        joined: the numbers of the sections with rows in several row groups, int64.
        cells: int64 ``[classes, sections]``: the sum of the weights of the rows of a class in a section.
    """

    def __init__(self, before: np.ndarray, weights: np.ndarray, classes: np.ndarray | None, count: int) -> None:
        self.before = before
        self.count = count
        if classes is None:
            self._weights = whole_weights(weights)
            self._classes = None
        else:
            self._weights = whole_weights(weights, np.bincount(classes, minlength=len(weights)))
            self._classes = classes.astype(np.min_scalar_type(max(len(weights) - 1, 0)))  # small ones sort faster
        self.sections = self._sections(1 if classes is None else len(weights))
        self.joined = np.flatnonzero(np.diff(ends_of(np.diff(before) > 0)[self.sections]) > 1)
        self.cells = self._cells()

    @cached_property
    def total(self) -> int:
        """The sum of all weights, W."""
        return int(self.cells.sum())

    @cached_property
    def drawn(self) -> int:
        """The number of rows with a weight above 0."""
        return int(np.count_nonzero(self.weights(0, int(self.before[-1]))))

    @property
    def most(self) -> int:
        """How often a row occurs in an epoch at most."""
        weights = self.weights(0, int(self.before[-1]))
        return -(-int(weights.max(initial=0)) * self.count // max(self.total, 1))

    def weights(self, first: int, last: int) -> np.ndarray:
        """Returns the weights of the rows ``first`` to ``last`` (exclusive), int64."""
        if self._classes is None:
            return self._weights[first:last]
        weights: np.ndarray = self._weights[self._classes[first:last]]
        return weights

    def sorted_by_class(self, first: int, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sorts the rows of a section by class, and keeps their order inside a class.

        Args:
            first: the first row of the section.
            order: the rows of the section in any order, counted from ``first``.

        Returns:
            The sorted rows, and the number of rows of each class, int64 ``[classes]``.
        """
        if self._classes is None:
            return order, np.array([len(order)])
        classes = self._classes[first : first + len(order)]
        sorted_rows = order[np.argsort(classes[order], kind="stable")]
        return sorted_rows, np.bincount(classes, minlength=len(self._weights))

    def _sections(self, classes: int) -> np.ndarray:
        """Joins row groups until a section has enough items; a row counts as one item at most, as only the rest of its
        share is random.
        """
        rows = int(self.before[-1])
        weights = self.weights(0, rows)
        most = max(int(weights.sum()) // max(self.count, 1), 1)
        capped = ends_of(np.minimum(weights, most))[self.before]
        enough = _SECTION_ITEMS * classes * most
        return equal_groups((capped, enough))

    def _cells(self) -> np.ndarray:
        bounds = self.before[self.sections].tolist()
        parts = list(pairwise(bounds))
        if self._classes is None:
            return np.array([[int(self._weights[first:last].sum()) for first, last in parts]])
        counts = [np.bincount(self._classes[first:last], minlength=len(self._weights)) for first, last in parts]
        cells: np.ndarray = np.stack(counts, axis=1) * self._weights[:, None]
        return cells


class WeightedDraws:
    """The drawn items of one epoch.

    Args:
        seed, epoch: determine the draw.
    """

    def __init__(self, rows: WeightedRows, seed: int, epoch: int) -> None:
        self._rows = rows
        self._key = (seed, epoch)
        self._count = rows.count
        total = rows.total
        high, low = raw_words(2, _START_KEY, seed, epoch).tolist()
        start: int = (high << 64 | low) % total if total else 0
        # Item k is at (k * W + start) // n, computed without numbers over 64 bits.
        self._quotient, self._rest = divmod(total, max(self._count, 1))
        self._first, self._offset = divmod(start, max(self._count, 1))
        self._bounds: np.ndarray = rows.before[rows.sections]
        self._cell_first = self._laid_out()
        self._section = lru_cache(maxsize=max(len(rows.joined), _FEW_SECTIONS))(self._draw)
        drawn = self._points_before(self._cell_first + rows.cells) - self._points_before(self._cell_first)
        self._items = ends_of(drawn.sum(axis=0))

    @cached_property
    def items_before(self) -> np.ndarray:
        """The number of items drawn from the rows before each row group, int64 ``[row_groups + 1]``."""
        sections, before = self._rows.sections, self._rows.before
        own = np.searchsorted(sections[1:-1], np.arange(len(before)), side="right")
        result: np.ndarray = np.where(before > self._bounds[own], self._items[own + 1], self._items[own])
        for section in self._rows.joined.tolist():
            inside = slice(sections[section], sections[section + 1])
            result[inside] = self._items[section] + self._section(section)[before[inside] - self._bounds[section]]
        return result

    def rows_of(self, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows of items (by item number from 0), and how often each row came before, both int64."""
        rows, repeats = np.empty((2, len(items)), np.int64)
        section = np.searchsorted(self._items, items, side="right") - 1
        by_section = np.argsort(section, kind="stable")
        numbers, begins = np.unique(section[by_section], return_index=True)
        for number, places in zip(numbers.tolist(), np.split(by_section, begins[1:]), strict=True):
            ends = self._section(number)
            own = items[places] - self._items[number]
            inside = np.searchsorted(ends, own.astype(ends.dtype), side="right") - 1
            rows[places] = inside + self._bounds[number]
            repeats[places] = own - ends[inside]
        return rows, repeats

    def _laid_out(self) -> np.ndarray:
        """Returns where the rows of each cell begin on the axis of weights, int64 ``[classes, sections]``."""
        cells = self._rows.cells
        classes, sections = cells.shape
        order = permutation(classes, _CLASSES_KEY, *self._key)
        if sections > 1:
            words = raw_words(cells.size, _SECTIONS_KEY, *self._key).reshape(cells.shape)
            order = (order[:, None] * sections + np.argsort(words, axis=1, kind="stable")).ravel()
        first = np.empty(cells.size, np.int64)
        first[order] = ends_of(cells.ravel()[order])[:-1]
        return first.reshape(cells.shape)

    def _draw(self, section: int) -> np.ndarray:
        """Returns the number of items drawn from a section before each of its rows, and from all of them (int32)."""
        first, last = self._bounds[section : section + 2].tolist()
        order = permutation(last - first, _ROWS_KEY, *self._key, section)
        order, sizes = self._rows.sorted_by_class(first, order)
        weights = self._rows.weights(first, last)[order]
        sums = np.cumsum(weights)
        begin, cells = self._cell_first[:, section], self._rows.cells[:, section]
        sums += np.repeat(begin - (np.cumsum(cells) - cells), sizes)  # where each row ends on the axis
        before = self._points_before(sums)
        times = np.empty(len(order), np.int64)
        times[1:] = before[1:] - before[:-1]
        starts = (np.cumsum(sizes) - sizes)[sizes > 0]
        times[starts] = before[starts] - self._points_before(begin[sizes > 0])
        ends = np.zeros(len(order) + 1, np.int32)
        ends[1:][order] = times
        return np.cumsum(ends, dtype=np.int32, out=ends)

    def _points_before(self, sums: np.ndarray) -> np.ndarray:
        """Returns how many items are before some places on the axis of weights (int64). Guesses, then bisects."""
        guess = np.ceil((sums - self._first) * (self._count / max(self._rows.total, 1)))
        middle = np.clip(guess, 0, self._count).astype(np.int64)
        low, high = np.maximum(middle - 2, 0), np.minimum(middle + 2, self._count)
        low[self._points(low) >= sums] = 0
        high[self._points(high) < sums] = self._count
        while (low < high).any():
            middle = (low + high) // 2
            before = (self._points(middle) < sums) & (low < high)
            low, high = np.where(before, middle + 1, low), np.where(before, high, np.minimum(middle, high))
        return low

    def _points(self, items: np.ndarray) -> np.ndarray:
        points: np.ndarray = (items * self._rest + self._offset) // max(self._count, 1)
        points += items * self._quotient + self._first
        return points


def whole_weights(weights: np.ndarray, times: np.ndarray | None = None) -> np.ndarray:
    """Returns weights, each of which counts ``times`` times, as integers (int64). They are finite and >= 0.

    Integer weights are used unchanged if their sum is small enough. Other weights are scaled by a power of two, which
    preserves their shares. The rounding error is below 2^-61 of the sum.
    """
    times = np.ones_like(weights, np.int64) if times is None else times
    weights = np.where(times > 0, weights, 0)  # what never counts must not set the scale
    if weights.dtype.kind == "f" or np.multiply(weights, times, dtype=np.float64).sum() >= 1 << _BITS:
        _, exponent = np.frexp(weights.max(initial=0.0))
        scale = _BITS - int(times.sum()).bit_length() - int(exponent)
        return np.rint(np.ldexp(weights.astype(np.float64), scale)).astype(np.int64)
    return weights.astype(np.int64, copy=False)
