"""`WeightedItems`: epochs of rows drawn by weight. Some rows occur several times, others not at all."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from ..base.process.forks import cached_property
from .draws import BlockKey, BlockRows
from .items import RowItems, row_groups_of
from .order.epoch import EpochOrder
from .order.weighted import WeightedDraws, WeightedRows
from .selection.selection import Selection


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
