"""`TokenOrder`: the order of an epoch whose items are stretches of tokens, each as long as the others.

In: where the tokens of each row end when all rows are laid end to end. Out: the streams and blocks of `EpochOrder`, on
an axis of tokens, and the rows of a block in order. Always holds: streams are cut at multiples of the length, so that
they differ by one item at most; a row on a cut belongs to both streams, each with its part.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .epoch import EpochOrder, OrderSpec


def counted(first: np.ndarray, count: np.ndarray) -> np.ndarray:
    """``first, first + 1, ...`` of each, as many as its ``count``, end to end."""
    ends = np.cumsum(count)
    return np.repeat(first - (ends - count), count) + np.arange(int(ends[-1]) if len(ends) else 0)


class TokenOrder(EpochOrder):
    """The order of one epoch; a pure function of its arguments.

    Args:
        ends: int64 ``[rows + 1]``: the tokens before each row, in storage order; the last entry is their number.
        rows_before: int64 ``[row_groups + 1]``: rows before each row group.
        length: tokens of an item.
        items: how many there are. What is left of the tokens belongs to the last stream that has any item.
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
        """Whether the stream ends with the last item, and what is left behind it."""
        start, stop = super()._extent(stream)
        return start < stop == self._total

    def _extent(self, stream: int) -> tuple[int, int]:
        start, stop = super()._extent(stream)
        if start == stop:
            return self._tokens, self._tokens
        return start * self._length, self._tokens if self.is_last(stream) else stop * self._length

    def _rows_before(self, first: np.ndarray, position: np.ndarray) -> np.ndarray:
        rows = np.searchsorted(self._ends, first + np.diff(position)) - np.searchsorted(self._ends, first, "right") + 1
        return np.concatenate([[0], np.cumsum(rows)])

    def _block_parts(self, stream: int, block: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The rows of a block in the order in which their tokens come, of those that have any.

        Returns:
            ``(row, first, before)``: positions among the wanted rows; the first token that the stream has of each; and
            the block's tokens before each, with their number at the end. All int64.
        """
        _, begin, count = self.block_segments(stream, block)
        lo = np.searchsorted(self._ends, begin, "right") - 1
        rows = np.searchsorted(self._ends, begin + count) - lo
        row = counted(lo, rows)
        first = np.maximum(self._ends[row], np.repeat(begin, rows))
        tokens = np.minimum(self._ends[row + 1], np.repeat(begin + count, rows)) - first
        first -= self._ends[row]
        chosen = np.flatnonzero(tokens)
        order = self.block_permutation(stream, block, len(chosen))
        chosen = chosen if order is None else chosen[order]
        return row[chosen], first[chosen], np.concatenate([[0], np.cumsum(tokens[chosen])])
