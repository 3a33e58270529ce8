"""`WeightedDraws`: the rows that an epoch draws by weight, computed by number and never listed.

The input is the sum of the integer weights before each row, the number of items, and a key. The output is the row of
any item, and the number of items before any row. This is systematic sampling: ``n`` equally spaced points over the
summed weights, from a uniform start. Each row is drawn as often as its share of the items, rounded down or up. Items
are in storage order, and all numbers are exact integers.
"""

from __future__ import annotations

import numpy as np

from ..schema.ragged import ends_of
from .permutations import raw_words

_WEIGHTS_KEY = 7
_BITS = 61  # for the sum of all weights


class WeightedDraws:
    """The drawn items of one epoch.

    Args:
        bounds: int64 ``[rows + 1]``: the sum of the weights before each row; the last entry is the total, W.
        count: the number of items to draw, n; below 2^31.
        seed, epoch: determine the start.
    """

    def __init__(self, bounds: np.ndarray, count: int, seed: int, epoch: int) -> None:
        self._bounds = bounds
        self._count = count
        total = int(bounds[-1])
        high, low = raw_words(2, _WEIGHTS_KEY, seed, epoch).tolist()
        start: int = (high << 64 | low) % total if total else 0
        # Item k is at (k * W + start) // n, computed without numbers over 64 bits.
        self._quotient, self._rest = divmod(total, max(count, 1))
        self._first, self._offset = divmod(start, max(count, 1))

    def rows(self, items: np.ndarray) -> np.ndarray:
        """Returns the rows (int64) of items, by item number from 0."""
        return np.searchsorted(self._bounds, self._points(items), side="right") - 1

    def items_before(self, rows: np.ndarray) -> np.ndarray:
        """Returns how many items are drawn from the rows before each of ``rows`` (int64). Guesses, then bisects."""
        sums: np.ndarray = self._bounds[rows]
        guess = np.ceil((sums - self._first) * (self._count / max(int(self._bounds[-1]), 1)))
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


def weight_bounds(weights: np.ndarray) -> np.ndarray:
    """Returns the sums of weights before each row, and the total (int64 ``[rows + 1]``). Weights are finite and >= 0.

    Integer weights are used unchanged if their sum is small enough. Other weights are scaled by a power of two, which
    preserves their shares. The rounding error is below 2^-61 of the sum.
    """
    if weights.dtype.kind == "f" or weights.sum(dtype=np.float64) >= 1 << _BITS:
        _, exponent = np.frexp(weights.max(initial=0.0))
        scale = _BITS - len(weights).bit_length() - int(exponent)
        weights = np.rint(np.ldexp(weights.astype(np.float64), scale)).astype(np.int64)
    return ends_of(weights)
