"""Casts numbers to another dtype. Values that do not fit raise an error instead of wrapping around.

`apply_cast` is a pure function of the columns of a whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ...base.errors import DecodeError
from ...schema.dtypes import convert_counts, counts_too_far, numbers_outside
from ...stages.cast import CastStep
from ..columns.batch import Column, Dense, Ragged, values_of, with_values


def apply_cast(step: CastStep, columns: Sequence[Column], describe: Callable[[int], str]) -> list[Column]:
    """Returns the columns with one of them cast.

    Raises:
        DecodeError: the dtype cannot hold a number; names file and row.
    """
    column = values_of(columns[step.number])
    assert isinstance(column, Dense | Ragged)
    values = column.values
    assert isinstance(values, np.ndarray)
    times = (step.field.time, step.time) if step.field.time is not None and step.time is not None else None
    wrong = numbers_outside(values, step.dtype) if times is None else counts_too_far(values, *times)
    if wrong is not None and column.valid is not None:  # the number stored for a null is not a value
        wrong &= _spread(column)
    if wrong is not None and wrong.any():
        place = tuple(np.argwhere(wrong)[0])
        raise DecodeError(
            f"cast: field '{step.field.name}', {describe(_row_of(column, int(place[0])))}: expected a number that "
            f"{step.time or step.dtype} can hold, got {values[place]}. Cast to a wider dtype, or filter or transform "
            "such rows."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        cast = values.astype(step.dtype) if times is None else convert_counts(values, *times)
    result = list(columns)
    result[step.number] = with_values(columns[step.number], replace(column, values=cast))
    return result


def _spread(column: Dense | Ragged) -> np.ndarray:
    """Returns, for every number of a column, whether the value to which it belongs is not null."""
    assert column.valid is not None
    if isinstance(column, Ragged):
        return np.repeat(column.valid.reshape(-1), np.prod(column.shapes, axis=1, dtype=np.int64))
    shape = (*column.valid.shape, *(1,) * (column.values.ndim - column.valid.ndim))
    return np.broadcast_to(column.valid.reshape(shape), column.values.shape)


def _row_of(column: Dense | Ragged, place: int) -> int:
    """Returns the row of a number, given its place on the first axis of a column's values."""
    if isinstance(column, Dense):
        return place
    ends = np.cumsum(np.prod(column.shapes, axis=1, dtype=np.int64))
    return int(np.searchsorted(ends, place, side="right")) // math.prod(column.lead[1:])
