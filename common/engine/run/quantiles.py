"""`QuantileSketch`: quantiles of any number of numbers in bounded memory, exact for the first 65,536.

The sketch of Manku, Rajagopalan and Lindsay, "Approximate medians and other quantiles in one pass and with limited
memory", SIGMOD 1998: whenever a level is full, every other of its sorted numbers moves to the next level, where each
counts twice. It draws no random numbers, so the same numbers in the same order give the same result.
"""

from __future__ import annotations

import numpy as np

_LEVEL = 1 << 15


class QuantileSketch:
    """Collects numbers.

    Attributes:
        count: how many numbers were added.
        error: how far the rank of a quantile may be off. Each time that a level is halved, this grows by what one of
            its numbers counts. After n numbers it is at most ``n / 65,536`` for each of ``log2(n / 32,768)`` levels.
    """

    def __init__(self) -> None:
        self.count = self.error = 0
        self._levels: list[list[np.ndarray]] = [[]]
        self._odd: list[int] = [0]

    def add(self, values: np.ndarray) -> None:
        """Adds finite numbers, float64 ``[n]``."""
        self.count += len(values)
        for first in range(0, len(values), _LEVEL):
            self._levels[0].append(values[first : first + _LEVEL])
            self._halve()

    def _halve(self) -> None:
        level = 0
        while sum(map(len, self._levels[level])) > 2 * _LEVEL:
            merged = np.sort(np.concatenate(self._levels[level]))
            rest = len(merged) % 2
            self._levels[level] = [merged[-1:]] if rest else []
            chosen = merged[: len(merged) - rest][self._odd[level] :: 2]
            self._odd[level] ^= 1  # so that errors of one sign do not add up
            self.error += 1 << level
            level += 1
            if level == len(self._levels):
                self._levels.append([])
                self._odd.append(0)
            self._levels[level].append(chosen)

    def quantiles(self, parts: int) -> tuple[float, ...]:
        """Returns the quantiles at 0, 1 / parts, ..., 1, interpolated linearly between ranks; none without numbers."""
        if not self.count:
            return ()
        values = [np.concatenate(level) if level else np.zeros(0) for level in self._levels]
        weights = np.repeat([1 << level for level in range(len(values))], [len(level) for level in values])
        merged = np.concatenate(values)
        order = np.argsort(merged, kind="stable")
        merged, ends = merged[order], np.cumsum(weights[order])
        ranks = np.arange(parts + 1) * (self.count - 1) / parts
        below = np.floor(ranks)
        low, high = (merged[np.searchsorted(ends, rank, side="right")] for rank in (below, np.ceil(ranks)))
        share = ranks - below
        return tuple((low * (1 - share) + high * share).tolist())
