"""`Statistics`: means and deviations of numbers and image channels, lengths of lists and strings, and value counts.

The input is a pipeline, whose output rows (or windows) are counted. The output is either exact or from a sample of
known size. Decoding runs in parallel. Sums are accumulated in float64.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..base.progress import progress
from ..base.text_table import TextTable
from ..engine.run.summaries import Moments
from ..schema.element import OutputField
from ..schema.field import Shape
from ..schema.ragged import NestedArray, RaggedArray
from .display.statistics import counted_text, statistics_table
from .display.text import leaves, note
from .element_numbers import drawn_numbers
from .notebook import ShownPipeline, showing_nulls, with_lists_as_stored

_MOST_VALUES = 10_000
_SHOWN_VALUES = 20
_MOST_SAMPLED = 1 << 16
_BINS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldStatistics:
    """The statistics of one field.

    Attributes:
        count, nulls: the number of values and of nulls. For windows, ``nulls`` counts steps.
        mean, deviation, least, most: over all numbers in all values, without NaN; ``None`` for strings.
        nulls_inside: the number of nulls inside lists. The other values of such lists are counted.
        nans: the number of NaN values.
        channels: for images, the ``(mean, deviation)`` of each channel, in the unit of the field (0 to 255 for uint8).
        quantiles: for scalars, at 0, 1, 5, 25, 50, 75, 95, 99 and 100 %, from at most 65,536 evenly spaced values.
        histogram: for scalars, the counts of these values in 32 bins of equal width from minimum to maximum. There are
            fewer bins if floats cannot represent 32 distinct edges.
        lengths: the minimum, mean and maximum length: characters of strings, bytes of byte strings, values of lists.
        shapes: the minimum and maximum size of each axis, if shapes vary.
        distinct: the number of distinct values without NaN; ``None`` if there are more than 10,000, or if values are
            not scalars.
        common: the 20 most frequent values with their counts.
        unit: the numpy dtype of times that are delivered as numbers, such as ``"datetime64[us]"``; otherwise ``None``.
    """

    name: str
    dtype: str
    shape: Shape
    count: int
    nulls: int
    mean: float | None
    deviation: float | None
    least: float | None
    most: float | None
    nans: int
    channels: tuple[tuple[float, float], ...]
    quantiles: tuple[float, ...]
    histogram: tuple[int, ...]
    lengths: tuple[int, float, int] | None
    shapes: tuple[tuple[int, int], ...]
    distinct: int | None
    common: tuple[tuple[Any, int], ...]
    nulls_inside: int = 0
    unit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Statistics:
    """The result of `Pipeline.describe`. Prints as a table.

    Attributes:
        rows: the number of rows counted.
        total: the number of rows in the pipeline; ``None`` if unknown.
        exact: whether all rows were counted.
    """

    rows: int
    total: int | None
    exact: bool
    fields: tuple[FieldStatistics, ...]

    def field(self, name: str) -> FieldStatistics:
        """Returns the statistics of a field by name."""
        return next(field for field in self.fields if field.name == name)

    def __repr__(self) -> str:
        return f"{self._table()}\n{counted_text(asdict(self))}"

    def _repr_html_(self) -> str:
        return f"{self._table()._repr_html_()}{note(counted_text(asdict(self)))}"

    def _table(self) -> TextTable:
        return statistics_table(asdict(self))


class DescribedPipeline(ShownPipeline, Protocol):
    """The part of a `Pipeline` that is counted."""

    def batch(self, batch_size: int) -> Any: ...

    def at_epoch(self, epoch: int) -> Any: ...


def statistics_of(pipeline: DescribedPipeline, rows: int | None, seed: int) -> Statistics:
    """Computes the statistics of every field in the output of a pipeline; see `Pipeline.describe`."""
    if not pipeline.source.single:
        raise PipelineError(
            "describe: expected a pipeline over one dataset, got a mixed or served one. Describe its sources instead."
        )
    return showing_nulls(with_lists_as_stored(pipeline), lambda shown: _counted(shown, rows, seed))


def _counted(pipeline: DescribedPipeline, rows: int | None, seed: int) -> Statistics:
    plan = pipeline.plan()
    if plan.element.batched:
        raise PipelineError("describe: expected rows, got batches. Leave batch() out.")
    if rows is not None and rows < 1:
        raise PipelineError(f"describe: expected at least 1 row, got {rows}.")
    total = None if plan.program.drops else plan.length
    if plan.length is None:
        raise PipelineError(
            "describe: expected a pipeline that ends, got one that repeats forever. Leave repeat() out."
        )
    outputs = plan.element.outputs
    collectors = {output.name: _Collector(output) for output in outputs}
    if rows is not None and total is None:
        raise PipelineError("describe: expected a pipeline of known length for a sample. Omit rows= to read all rows.")
    exact = rows is None or total is None or rows >= total
    size = _rows_at_a_time(outputs)
    counted, expected = 0, plan.length if exact else rows
    if exact:
        batched = pipeline.batch(size)
        batches: Iterable[Any] = (leaves(batched.element, batch) for batch in batched)
    else:
        assert total is not None
        assert rows is not None
        batches = _drawn(pipeline, np.sort(drawn_numbers(total, rows, seed)), size)
    for batch in progress(batches, "counting", -(-(expected or 0) // size), unit="batch"):
        for name, column in batch.items():
            collectors[name].add_column(column)
        counted += len(column)
    fields = tuple(collector.result() for collector in collectors.values())
    return Statistics(rows=counted, total=total, exact=exact, fields=fields)


def _rows_at_a_time(outputs: Iterable[OutputField]) -> int:
    """Returns the number of rows in about 8 MiB."""
    size = 0
    for output in outputs:
        values = int(np.prod([axis or 256 for axis in output.element_shape], dtype=np.int64))
        size += values * output.dtype.itemsize
    return max(1, min((8 << 20) // max(size, 1), 4096))


def _drawn(pipeline: DescribedPipeline, numbers: np.ndarray, size: int) -> Iterator[dict[str, list[Any]]]:
    """Yields elements by number, as columns. Sorted numbers read each row group once."""
    elements = pipeline.at_epoch(0)
    for start in range(0, len(numbers), size):
        rows = [leaves(pipeline.element, each) for each in elements[numbers[start : start + size]]]
        yield {name: [row[name] for row in rows] for name in rows[0]}


class _Collector:
    """Collects the statistics of one field."""

    def __init__(self, output: OutputField) -> None:
        self._output = output
        self._numbers = output.kind == "dense" and output.dtype.kind in "biuf"
        self._is_window = len(output.element_shape) > len(output.shape)
        shape = output.shape
        images = (
            self._numbers
            and not output.levels
            and len(shape) == 3
            and shape[-1] in (1, 3, 4)
            and output.dtype.kind in "uf"
        )
        self._channels = [Moments() for _ in range(shape[-1] or 0)] if images else []
        self._moments = Moments()
        self._nulls = self._nulls_inside = self._count = 0
        self._values: Counter[Any] | None = Counter() if output.element_shape == () else None
        self._lengths: list[int] = []
        self._shapes: list[tuple[int, ...]] = []
        self._pending: list[np.ndarray] = []
        self._pending_size = 0
        self._sampled = np.zeros(0)
        self._stride = 1

    def add_column(self, column: Any) -> None:
        """Adds the values of several rows."""
        if not (self._numbers and self._output.element_shape == () and isinstance(column, np.ndarray)):
            for value in column:
                self._add(value)
            return
        values = np.ma.compressed(column) if isinstance(column, np.ma.MaskedArray) else column
        self._nulls += len(column) - len(values)
        self._count += len(values)
        self._add_numbers(values)
        if self._values is not None:
            self._count_values(dict(zip(*map(np.ndarray.tolist, np.unique(values, return_counts=True)), strict=True)))

    def _count_values(self, counts: Mapping[Any, int]) -> None:
        assert self._values is not None
        self._values.update({value: times for value, times in counts.items() if value == value})  # leaves out NaN
        if len(self._values) > _MOST_VALUES:
            self._values = None

    def _add(self, value: Any) -> None:
        is_masked = isinstance(value, np.ma.MaskedArray)
        is_null = value is None or (
            not self._is_window and ((is_masked and np.ma.getmaskarray(value).all()) or _is_all_none(value))
        )
        if is_null:
            self._nulls += 1
            return
        if self._is_window and isinstance(value, np.ndarray):
            value = self._without_null_steps(value)
            if not len(value):
                return
        self._count += 1
        steps = value if isinstance(value, np.ndarray) and value.dtype == object else ()
        for step in steps:
            if isinstance(step, list):
                self._add_list(step)
        if self._numbers and len(steps):  # one list per step
            for step in steps:
                if isinstance(step, list):
                    continue
                self._add_numbers(step.values if isinstance(step, RaggedArray | NestedArray) else np.asarray(step))
            return
        if isinstance(value, list):
            self._add_shape((len(value),))
            self._add_list(value)
            return
        if isinstance(value, NestedArray):
            self._add_shape((len(value),))
            if self._numbers:
                self._add_numbers(value.values)
            return
        if not self._numbers or self._output.element_shape == ():
            self._add_single(value)
        if self._numbers:
            values = value.values if isinstance(value, RaggedArray) else np.asarray(value)
            values = np.ma.compressed(value) if is_masked else values
            if None in self._output.shape and not (is_masked or isinstance(value, RaggedArray)):
                self._add_shape(values.shape)
            self._add_numbers(values)

    def _add_list(self, value: list[Any]) -> None:
        """Adds the values of a list that may contain nulls at any level."""
        flat = list(_flat(value))
        known = [each for each in flat if each is not None]
        self._nulls_inside += len(flat) - len(known)
        if self._numbers:
            self._add_numbers(np.array(known, self._output.dtype))

    def _without_null_steps(self, window: np.ndarray) -> np.ndarray:
        null: np.ndarray
        if window.dtype == object:
            null = np.array([step is None for step in window], bool)
        elif isinstance(window, np.ma.MaskedArray):
            null = np.asarray(np.ma.getmaskarray(window).all(axis=tuple(range(1, window.ndim))))
        else:
            return window
        self._nulls += int(null.sum())
        known: np.ndarray = window[~null]
        return known

    def _add_single(self, value: Any) -> None:
        if isinstance(value, str | bytes):
            self._add_shape((len(value),))
        elif np.ndim(value):
            self._add_shape(np.shape(value))
            return
        if self._values is not None:
            self._count_values({value.item() if isinstance(value, np.generic) else value: 1})

    def _add_shape(self, shape: tuple[int, ...]) -> None:
        self._lengths.append(shape[0])
        if len(shape) > 1:
            self._shapes.append(shape)

    def _add_numbers(self, values: np.ndarray) -> None:
        if self._channels:
            flat = values.reshape(-1, len(self._channels)).astype(np.float64)
            for number, channel in enumerate(self._channels):
                channel.add(flat[:, number])
            self._moments.add(flat.reshape(-1))
            return
        self._pending.append(values.reshape(-1))
        self._pending_size += values.size
        if self._pending_size >= 1 << 16 or len(self._pending) >= 1 << 14:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        flat = np.concatenate(self._pending).astype(np.float64)
        self._pending, self._pending_size = [], 0
        self._moments.add(flat)
        if self._output.element_shape == ():
            self._sampled = np.concatenate([self._sampled, flat[:: self._stride]])
            while len(self._sampled) > _MOST_SAMPLED:
                self._sampled, self._stride = self._sampled[::2], self._stride * 2

    def result(self) -> FieldStatistics:
        """Returns the statistics of the values added so far."""
        self._flush()
        moments, known = self._moments, self._numbers and self._moments.count > 0
        sampled = self._sampled[np.isfinite(self._sampled)]
        lengths, quantiles, histogram = self._lengths, *_spread(sampled)
        return FieldStatistics(
            name=self._output.name,
            dtype=str(self._output.numpy_dtype) if self._output.kind == "dense" else self._output.kind,
            shape=self._output.element_shape,
            count=self._count,
            nulls=self._nulls,
            mean=moments.mean if known else None,
            deviation=moments.deviation if known else None,
            least=moments.least if known else None,
            most=moments.most if known else None,
            nans=moments.nans,
            channels=tuple((channel.mean, channel.deviation) for channel in self._channels if channel.count),
            quantiles=quantiles,
            histogram=histogram,
            lengths=(min(lengths), float(np.mean(lengths)), max(lengths)) if lengths else None,
            shapes=tuple((min(axis), max(axis)) for axis in zip(*self._shapes, strict=False)),
            distinct=None if self._values is None or not self._count else len(self._values),
            common=() if self._values is None else tuple(self._values.most_common(_SHOWN_VALUES)),
            nulls_inside=self._nulls_inside,
            unit=self._output.time,
        )


def _spread(values: np.ndarray) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Returns the quantiles and the histogram of finite numbers."""
    if not len(values):
        return (), ()
    unit = 4.0 if np.abs(values).max() > np.finfo(np.float64).max / 4 else 1.0  # or their differences overflow
    values = values / unit
    quantiles = tuple((np.percentile(values, [0, 1, 5, 25, 50, 75, 95, 99, 100]) * unit).tolist())
    bins = _BINS
    while bins > 1:
        try:
            return quantiles, tuple(np.histogram(values, bins=bins)[0].tolist())
        except ValueError:  # the edges of the bins would be equal floats
            bins //= 2
    return quantiles, (len(values),)


def _flat(value: object) -> Iterator[Any]:
    """Yields the values in nested lists. A null list counts as one null."""
    if not isinstance(value, list):
        yield value
        return
    for each in value:
        yield from _flat(each)


def _is_all_none(value: Any) -> bool:
    """Whether this is a null row of a field with a fixed shape of strings, in a batch."""
    is_texts = isinstance(value, np.ndarray) and value.dtype == object and value.size > 0
    return is_texts and all(each is None for each in value.flat)
