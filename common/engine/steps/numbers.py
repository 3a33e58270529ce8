"""Standardizes, clips and bucketizes numbers. Each function says what it makes of NaN and infinity."""

from __future__ import annotations

import numpy as np

from ...stages.bucketize import BucketizeStep
from ...stages.clip import ClipStep
from ...stages.standardize import StandardizeStep
from .values import Computed, Values


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
