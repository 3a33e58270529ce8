"""Casts numbers to another dtype. Values that do not fit are refused instead of wrapping around."""

from __future__ import annotations

import numpy as np

from ...schema.dtypes import convert_counts, counts_too_far, numbers_outside
from ...stages.cast import CastStep
from .values import Computed, Values


def compute_cast(step: CastStep, values: Values) -> Computed:
    """Returns numbers as another dtype, or counts of one unit of time in another."""
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
