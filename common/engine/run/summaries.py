"""What is learnt of a field, batch by batch: `NumberSummary` for numbers, with `Moments` and a `QuantileSketch`, and
`CategorySummary` for categories.

The columns of batches go in, in order, and the field's statistics come out. The work is done by numpy and Arrow.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...base.errors import PipelineError
from ...base.memory.arrow_views import as_numpy
from ...base.process.forks import pc
from ...schema.element import OutputField
from ...schema.training_statistics import CategoryStatistics, NumberStatistics
from ..columns.batch import Column, Dense, Ragged, Strings, take_rows, values_of
from ..steps.values import Values, code_type, to_arrow, under_nulls

MOST_VALUES = 10_000_000
"""The most different values of a category. They are held in memory."""
_PENDING = 1 << 16
_LEVEL = 1 << 15
_SQUARE_OVERFLOWS = 1e150
_EXACT = float(1 << 53)  # beyond, floats leave out integers


class Moments:
    """The running mean and deviation of numbers, by the parallel algorithm of Chan, Golub and LeVeque (1983)."""

    def __init__(self) -> None:
        self.count = self.nans = 0
        self.mean = 0.0
        self._squares: np.floating = np.float64(0)
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
        self.least, self.most = min(self.least, float(values.min())), max(self.most, float(values.max()))
        wide = np.longdouble if max(-self.least, self.most) > _SQUARE_OVERFLOWS else np.float64
        with np.errstate(over="ignore", invalid="ignore"):  # infinities
            mean = values.mean(dtype=wide)
            squares = np.square(values - mean).sum()
            total = self.count + count
            apart = mean - self.mean
            self._squares += squares + apart * apart * self.count * count / total
            self.mean = float(self.mean + apart * count / total)
        self.count = total
        self.mean = min(max(self.mean, self.least), self.most)  # that of equal numbers may be rounded


class QuantileSketch:
    """Quantiles of any number of numbers in bounded memory, exact for the first 65,536.

    The sketch of Manku, Rajagopalan and Lindsay, "Approximate medians and other quantiles in one pass and with limited
    memory", SIGMOD 1998: whenever a level is full, every other of its sorted numbers moves to the next level, where
    each counts twice. It draws no random numbers, so the same numbers in the same order give the same result.

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


class NumberSummary:
    """Collects the numbers of a field.

    Args:
        parts: the number of equal parts between the quantiles.

    Raises:
        PipelineError: the field does not hold numbers.
    """

    def __init__(self, output: OutputField, parts: int) -> None:
        if output.kind != "dense" or output.dtype.kind not in "biuf":
            what = output.dtype if output.kind == "dense" else output.kind
            raise PipelineError(
                f"fit: field '{output.name}': expected numbers, got {what}. Name it in categories=[...]."
            )
        self._parts = parts
        self._moments = Moments()
        self._sketch = QuantileSketch()
        self._nulls = self._nans = self._infinities = 0

    def add(self, column: Column) -> None:
        """Adds the values of a batch."""
        nulls, values = _known(column)
        assert isinstance(values, np.ndarray)
        self._nulls += nulls
        numbers = values.astype(np.float64)
        if values.dtype.kind == "f":
            finite = np.isfinite(numbers)
            if not finite.all():
                nans = int(np.isnan(numbers).sum())
                self._nans += nans
                self._infinities += len(numbers) - int(finite.sum()) - nans
                numbers = numbers[finite]
        self._moments.add(numbers)
        self._sketch.add(numbers)
        if values.dtype.kind in "iu" and max(-self._moments.least, self._moments.most) > _EXACT and len(values):
            self._moments.least = min(self._moments.least, _next_to(int(values.min()), -np.inf))
            self._moments.most = max(self._moments.most, _next_to(int(values.max()), np.inf))

    def result(self) -> NumberStatistics:
        """Returns the statistics of all values so far."""
        moments, count = self._moments, self._sketch.count
        quantiles = list(self._sketch.quantiles(self._parts))
        if quantiles:
            quantiles[0], quantiles[-1] = moments.least, moments.most  # the sketch may have dropped these
        return NumberStatistics(
            count=count,
            nulls=self._nulls,
            nans=self._nans,
            infinities=self._infinities,
            mean=moments.mean if count else None,
            std=moments.deviation if count else None,
            min=moments.least if count else None,
            max=moments.most if count else None,
            quantiles=tuple(quantiles),
            quantile_error=self._sketch.error / count if count else 0.0,
        )


class CategorySummary:
    """Counts the values of a field.

    Args:
        min_count: how often a value must occur.
        max_size: how many values to keep, the most frequent ones; ``None`` = all.

    Raises:
        PipelineError: the field does not hold texts, byte strings or integers.
    """

    def __init__(self, output: OutputField, min_count: int, max_size: int | None) -> None:
        if output.kind == "dense" and output.dtype.kind not in "iu":
            raise PipelineError(
                f"fit: field '{output.name}': expected strings, bytes or integers as a category, got {output.dtype}. "
                "Leave it out of categories=[...]."
            )
        self._name = output.name
        self._type = code_type(output)
        self._min_count = min_count
        self._max_size = max_size
        self._nulls = 0
        self._counted: list[pa.Table] = []
        self._pending = 0

    def add(self, column: Column) -> None:
        """Adds the values of a batch.

        Raises:
            PipelineError: there are too many different values.
        """
        nulls, values = _known(column)
        self._nulls += nulls
        counts = pc.value_counts(to_arrow(values, self._type))
        self._counted.append(pa.table({"value": counts.field(0), "count": counts.field(1)}))
        self._pending += len(counts)
        if self._pending > max(_PENDING, len(self._counted[0])):  # at most doubles what is in memory
            self._merge()

    def _merge(self) -> None:
        merged = pa.concat_tables(self._counted).group_by("value").aggregate([("count", "sum")])
        self._counted = [pa.table({"value": merged["value"], "count": merged["count_sum"]}).combine_chunks()]
        self._pending = 0
        if len(merged) > MOST_VALUES:
            raise PipelineError(
                f"fit: field '{self._name}': expected at most {MOST_VALUES:,} different values, got more. "
                "hash_encode() needs no vocabulary."
            )

    def result(self) -> CategoryStatistics:
        """Returns the statistics of all values so far. Of equally frequent values, the lesser ones are kept."""
        if not self._counted:
            return CategoryStatistics(count=0, nulls=self._nulls, distinct=0, values=(), counts=())
        self._merge()
        table = self._counted[0].sort_by("value")
        counts = as_numpy(table["count"].combine_chunks())
        kept = np.flatnonzero(counts >= self._min_count)
        if self._max_size is not None:
            kept = np.sort(kept[np.argsort(-counts[kept], kind="stable")[: self._max_size]])
        return CategoryStatistics(
            count=int(counts.sum()),
            nulls=self._nulls,
            distinct=len(counts),
            values=tuple(table["value"].take(pa.array(kept)).to_pylist()),
            counts=tuple(counts[kept].tolist()),
        )


Summary = NumberSummary | CategorySummary


def _next_to(number: int, direction: float) -> float:
    """Returns an integer as a float; if none equals it, the next one in a direction."""
    made = float(number)
    beyond = made < number if direction > 0 else made > number
    return float(np.nextafter(made, direction)) if beyond else made


def _known(column: Column) -> tuple[int, Values]:
    """Returns the number of nulls, and all other values end to end."""
    own = values_of(column)
    inside = own.values if isinstance(own, Ragged) else own
    values: Values = inside.values.reshape(-1) if isinstance(inside, Dense) else inside
    if own.valid is None or own.valid.all():
        return 0, values
    known = np.flatnonzero(~under_nulls(own, len(values.offsets) - 1 if isinstance(values, Strings) else len(values)))
    nulls = own.valid.size - int(own.valid.sum())
    return nulls, _taken(values, known)


def _taken(values: Values, places: np.ndarray) -> Values:
    if isinstance(values, np.ndarray):
        taken: np.ndarray = values[places]
        return taken
    made = take_rows(Strings(values.offsets, values.data, (len(values.offsets) - 1,)), places)
    assert isinstance(made, Strings)
    return made
