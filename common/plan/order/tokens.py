"""`TokenOrder`: the order of an epoch whose items are runs of tokens, all of the same length.

The input is where the tokens of each row end, with all rows laid end to end. The output is the streams and blocks of
`EpochOrder` on an axis of tokens, and the rows of a block in order. Streams are cut at multiples of the item length, so
they differ by one item at most. A row across a cut belongs to both streams, and each has its part of it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ...schema.ragged import concat_ranges, ends_of
from .epoch import EpochOrder, OrderSpec


class TokenOrder(EpochOrder):
    """The order of one epoch; a pure function of its arguments.

    Args:
        ends: int64 ``[rows + 1]``: the number of tokens before each row, in storage order; the last entry is the total.
        rows_before: int64 ``[row_groups + 1]``: rows before each row group.
        length: the number of tokens in an item.
        items: the number of items. The remaining tokens belong to the last stream that has an item.
    """

    def __init__(
        self, ends: np.ndarray, rows_before: np.ndarray, length: int, items: int, spec: OrderSpec, epoch: int
    ) -> None:
        super().__init__(ends[rows_before], spec, epoch)
        self._ends = ends
        self._length = length
        self._tokens = self._total
        self._total = items
        self.block_parts = lru_cache(maxsize=2 * spec.streams + 2)(self._block_parts)

    def is_last(self, stream: int) -> bool:
        """Returns whether the stream ends with the last item and the remainder after it."""
        start, stop = super()._extent(stream)
        return start < stop == self._total

    def _extent(self, stream: int) -> tuple[int, int]:
        start, stop = super()._extent(stream)
        if start == stop:
            return self._tokens, self._tokens
        return start * self._length, self._tokens if self.is_last(stream) else stop * self._length

    def _pieces(self, row_group: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns pieces of whole rows."""
        bounds, words = super()._pieces(row_group)
        first, last = self._items_before[row_group : row_group + 2]
        around, place = np.divmod(bounds, last - first)
        row = np.searchsorted(self._ends, first + place)
        return around * (last - first) + self._ends[row] - first, words

    def _rows(self, first: np.ndarray, length: np.ndarray) -> np.ndarray:
        rows: np.ndarray = np.searchsorted(self._ends, first + length) - np.searchsorted(self._ends, first, "right") + 1
        return rows

    def _block_parts(self, stream: int, block: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the rows of a block that have tokens, in the order of their tokens.

        Returns:
            ``(row, first, before)``: positions among the selected rows; the first token of each row that is in the
            stream; and the number of the block's tokens before each row, with the total at the end. All int64.
        """
        _, begin, count = self.block_segments(stream, block)
        lo = np.searchsorted(self._ends, begin, "right") - 1
        rows = np.searchsorted(self._ends, begin + count) - lo
        row = concat_ranges(lo, rows)
        first = np.maximum(self._ends[row], np.repeat(begin, rows))
        tokens = np.minimum(self._ends[row + 1], np.repeat(begin + count, rows)) - first
        first -= self._ends[row]
        chosen = np.flatnonzero(tokens)
        order = self.block_permutation(stream, block, len(chosen))
        chosen = chosen if order is None else chosen[order]
        return row[chosen], first[chosen], ends_of(tokens[chosen])
