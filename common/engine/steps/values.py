"""What steps share that compute each value of a column from that value alone: nulls, shapes, and rows in errors.

`apply_to_values` calls a pure function with all values of the column of a batch, end to end, and puts the results back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...base.errors import DecodeError
from ...stages.steps import ValueStep
from ..columns.batch import Column, Dense, Plain, Ragged, Strings, leading, values_of, with_values

Values = np.ndarray | Strings
"""All values of a column, end to end: numbers ``[n]``, or texts or byte strings."""


class Computed(NamedTuple):
    """What a step computed.

    Attributes:
        values: numbers ``[n]``; those under nulls do not matter.
        wrong: which values the step refuses, bool ``[n]``; ``None`` = none of them.
        refusal: says what was expected and what to do, given the place of a value that is refused.
    """

    values: np.ndarray
    wrong: np.ndarray | None = None
    refusal: Callable[[int], str] = str


def apply_to_values(
    step: ValueStep, columns: Sequence[Column], describe: Callable[[int], str], compute: Callable[[Values], Computed]
) -> list[Column]:
    """Returns the columns with the values of one of them computed anew. Nulls stay nulls, with 0 in their place.

    Raises:
        DecodeError: a value that is not null is refused; names file and row.
    """
    column = values_of(columns[step.number])
    inside = column.values if isinstance(column, Ragged) else column
    result, wrong, refusal = compute(inside.values.reshape(-1) if isinstance(inside, Dense) else inside)
    null = None if column.valid is None else under_nulls(column, len(result))
    if wrong is not None and null is not None:
        wrong = wrong & ~null
    if wrong is not None and wrong.any():
        place = int(np.argmax(wrong))
        row = _row_of(column, place, len(result))
        raise DecodeError(f"{step.verb}: field '{step.field.name}', {describe(row)}: {refusal(place)}")
    if null is not None:
        result[null] = 0
    made = list(columns)
    if isinstance(column, Ragged):
        made[step.number] = with_values(columns[step.number], replace(column, values=result))
    else:
        shape = column.shape if isinstance(column, Strings) else column.values.shape
        made[step.number] = with_values(columns[step.number], Dense(result.reshape(shape), column.valid))
    return made


def under_nulls(column: Plain, count: int) -> np.ndarray:
    """Returns a mask of the values that belong to a null."""
    assert column.valid is not None
    if isinstance(column, Ragged):
        return np.repeat(~column.valid.reshape(-1), np.prod(column.shapes, axis=1, dtype=np.int64))
    return np.repeat(~column.valid.reshape(-1), count // max(column.valid.size, 1))


def _row_of(column: Plain, place: int, count: int) -> int:
    """Returns the row to which a value belongs."""
    if not isinstance(column, Ragged):
        return place // (count // leading(column))
    ends = np.cumsum(np.prod(column.shapes, axis=1, dtype=np.int64))
    return int(np.searchsorted(ends, place, side="right")) // math.prod(column.lead[1:])
