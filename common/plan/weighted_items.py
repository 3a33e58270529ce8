"""`WeightedItems`: epochs of rows drawn by weight. Some rows occur several times, others not at all."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..order.epoch import EpochOrder
from ..order.weighted import WeightedDraws, weight_bounds
from ..process.forks import cached_property
from ..selection.selection import Selection
from .draws import BlockKey, BlockRows
from .items import RowItems


class WeightedItems(RowItems):
    """Rows that occur in an epoch in proportion to their weights. Items are numbered in storage order.

    Args:
        selection: the wanted rows, with their weights as the measured values.
        num_items: the number of items in an epoch; ``None`` = the number of rows.
        seed: the seed of the draws.
    """

    differ = True

    def __init__(self, selection: Selection, num_items: int | None, seed: int) -> None:
        super().__init__(selection)
        rows = selection.rows.total
        self._count = rows if num_items is None or not rows else num_items
        self._seed = seed
        self._draws_of = lru_cache(maxsize=3)(self._make_draws)

    @property
    def num_items(self) -> int:
        return self._count

    @property
    def explained(self) -> list[str]:
        weights = np.diff(self._bounds)
        most = -(-int(weights.max(initial=0)) * self._count // max(int(self._bounds[-1]), 1))
        return [
            f"{self._count:,} items drawn by weight from {int(np.count_nonzero(weights)):,} rows in each epoch, seed "
            f"{self._seed}; a row comes at most {most:,} times"
        ]

    @cached_property
    def _bounds(self) -> np.ndarray:
        assert self._selection.measured is not None
        return weight_bounds(self._selection.measured)

    def _make_draws(self, epoch: int) -> WeightedDraws:
        return WeightedDraws(self._bounds, self._count, self._seed, epoch)

    def items_before(self, epoch: int) -> np.ndarray:
        return self._draws_of(epoch).items_before(self._selection.rows.before)

    def block_rows(self, order: EpochOrder, key: BlockKey) -> BlockRows:
        """Returns the rows that a block needs. A row that occurs several times is read once."""
        items, draws = order.block_items(key.stream, key.block), self._draws_of(order.epoch)
        rows = draws.rows(items)
        return self.rows_at(rows[:, None], repeats=items - draws.items_before(rows))

    def block_shares(self, order: EpochOrder, key: BlockKey) -> list[tuple[int, float]]:
        row_group, _, taken = order.block_segments(key.stream, key.block)
        counts = self._selection.rows.counts[row_group]
        return list(zip(row_group.tolist(), np.minimum(taken, counts).astype(float).tolist(), strict=True))
