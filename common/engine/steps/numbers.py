"""Casts, standardizes, clips and bucketizes numbers. Each function says what it makes of NaN and infinity."""

from __future__ import annotations

import numpy as np

from ...schema.dtypes import convert_counts, counts_too_far, numbers_outside
from ...stages.bucketize import BucketizeStep
from ...stages.cast import CastStep
from ...stages.clip import ClipStep
from ...stages.standardize import StandardizeStep
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
