"""`Moments`: the mean, deviation and bounds of numbers that come in parts."""

from __future__ import annotations

import numpy as np


class Moments:
    """The running mean and deviation of numbers, by the parallel algorithm of Chan, Golub and LeVeque (1983)."""

    def __init__(self) -> None:
        self.count = self.nans = 0
        self.mean = 0.0
        self._squares = 0.0
        self.least, self.most = float("inf"), float("-inf")

    @property
    def deviation(self) -> float:
        """The population standard deviation, which divides by the count."""
        if not self.count or self.most - self.least == 0:
            return 0.0
        return float(np.sqrt(self._squares / self.count))

    def add(self, values: np.ndarray) -> None:
        """Adds numbers (float64). NaN values are counted separately."""
        missing = int(np.isnan(values).sum())
        if missing:
            self.nans += missing
            values = values[~np.isnan(values)]
        if not len(values):
            return
        count = len(values)
        with np.errstate(over="ignore", invalid="ignore"):  # infinities, and sums that overflow
            mean = float(values.mean())
            squares = float(np.square(values - mean).sum())
        total = self.count + count
        apart = mean - self.mean
        self._squares += squares + apart * apart * self.count * count / total
        self.mean += apart * count / total
        self.count = total
        self.least, self.most = min(self.least, float(values.min())), max(self.most, float(values.max()))
        self.mean = min(max(self.mean, self.least), self.most)  # that of equal numbers may be rounded
