"""Casts, standardizes, clips and bucketizes numbers, and checks lengths.

Each function of numbers says what it makes of NaN and infinity.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...base.errors import PipelineError
from ...schema.dtypes import convert_counts, counts_too_far, numbers_outside
from ...stages.bucketize import BucketizeStep
from ...stages.cast import CastStep
from ...stages.clip import ClipStep
from ...stages.measure import LengthStep
from ...stages.standardize import StandardizeStep
from ..columns.batch import Column, Dense, Strings, leading, values_of
from ..columns.protocols import Describe
from .values import Computed, Values


def compute_cast(step: CastStep, values: Values) -> Computed:
    """Returns numbers as another dtype, or counts of one unit of time in another. Those that do not fit are refused."""
    assert isinstance(values, np.ndarray)
    times = (step.field.time, step.time) if step.field.time is not None and step.time is not None else None
    wrong = numbers_outside(values, step.dtype) if times is None else counts_too_far(values, *times)
    with np.errstate(over="ignore", invalid="ignore"):
        cast = values.astype(step.dtype) if times is None else convert_counts(values, *times)
    return Computed(
        cast,
        wrong,
        lambda place: (
            f"expected a number that {step.time or step.dtype} can hold, got {values[place]}. Cast to a wider dtype, "
            "or filter or transform such rows."
        ),
    )


def compute_standardized(step: StandardizeStep, values: Values) -> Computed:
    """Returns ``(value - mean) / std`` in the step's dtype. What this cannot hold becomes infinite."""
    made = np.array(values, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        made -= step.mean
        made /= step.std
        return Computed(made if step.dtype == "float64" else made.astype(step.dtype))


def compute_clipped(step: ClipStep, values: Values) -> Computed:
    """Returns numbers within the bounds, in their own dtype. NaN stays NaN; infinity becomes a bound."""
    assert isinstance(values, np.ndarray)
    return Computed(np.clip(values, step.low, step.high))


def compute_buckets(step: BucketizeStep, values: Values) -> Computed:
    """Returns how many boundaries are not above each number, int64. NaN is refused; infinity is in an outer bucket."""
    assert isinstance(values, np.ndarray)
    codes = np.searchsorted(np.array(step.boundaries), values, side="right").astype(np.int64, copy=False)
    wrong = np.isnan(values) if values.dtype.kind == "f" else None
    return Computed(
        codes, wrong, lambda place: f"expected a number, got {values[place]}. Filter or transform such rows."
    )


def check_lengths(
    step: LengthStep, columns: Sequence[Column], counted: np.ndarray | None, describe: Describe
) -> list[Column]:
    """Returns the columns.

    Args:
        counted: the length of each row; ``None`` if the rows are still being counted.

    Raises:
        PipelineError: a row has another length. It ends the iteration, because the order follows from all lengths.
    """
    for number, name in zip(step.numbers, step.names, strict=True):
        if counted is None or np.array_equal(lengths := lengths_of(columns[number]), counted):
            continue
        row = int(np.argmax(lengths != counted))
        raise PipelineError(
            f"field '{name}', {describe(row)}: expected the length that was counted before, {counted[row]}, got "
            f"{lengths[row]}. The function must return the same in every pass. If it was changed, give another "
            "version=, so that lengths are counted again."
        )
    return list(columns)


def lengths_of(column: Column) -> np.ndarray:
    """Returns the length of each row's value as `bucket` and `concat` count it; -1 for a null."""
    values = values_of(column)
    if isinstance(values, Dense):
        shape = values.values.shape
        lengths = np.full(shape[0], shape[1]) if len(shape) > 1 else values.values.astype(np.int64)
    elif isinstance(values, Strings):
        lengths = np.full(leading(values), values.shape[1]) if len(values.shape) > 1 else np.diff(values.offsets)
    else:
        lengths = values.shapes[:, 0]
    return lengths if column.valid is None else np.where(column.valid, lengths, -1)
