"""Encodes values as their codes in a vocabulary.

`apply_encode` is a pure function of the columns of a whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ...base.errors import DecodeError
from ...base.memory.arrow_views import as_arrow
from ...stages.encode import EncodeStep
from ..columns.batch import Column, Dense, Plain, Ragged, Strings, leading, values_of, with_values


def apply_encode(step: EncodeStep, columns: Sequence[Column], describe: Callable[[int], str]) -> list[Column]:
    """Returns the columns with one of them encoded. Nulls stay nulls.

    Raises:
        DecodeError: a value is not in the vocabulary; names file and row.
    """
    assert step.vocabulary is not None, "a vocabulary is learned before any row is made"
    column = values_of(columns[step.number])
    values = column.values if isinstance(column, Ragged) else column
    arrow = _as_arrow(values, step.vocabulary.values.type)
    codes = step.vocabulary.codes(arrow)
    missing = codes < 0
    null = _under_nulls(column, len(codes))
    if null is not None:
        missing &= ~null
        codes[null] = 0
    if missing.any():
        if step.unknown is None:
            place = int(np.argmax(missing))
            value = arrow[place].as_py()
            raise DecodeError(
                f"encode: field '{step.field.name}', {describe(_row_of(column, place, len(codes)))}: expected one of "
                f"the {len(step.vocabulary):,} values of the vocabulary, got {value!r}. Set unknown= to a code for "
                "such values, or give a vocabulary that has all values."
            )
        codes[missing] = step.unknown
    result = list(columns)
    if isinstance(column, Ragged):
        result[step.number] = with_values(columns[step.number], replace(column, values=codes))
    else:
        shape = column.shape if isinstance(column, Strings) else column.values.shape
        result[step.number] = Dense(codes.reshape(shape), column.valid)
    return result


def _as_arrow(values: Dense | Strings | np.ndarray, kind: pa.DataType) -> pa.Array:
    """Returns all values of a column, end to end, as the Arrow type of a vocabulary."""
    if isinstance(values, Strings):
        buffers = [pa.py_buffer(np.ascontiguousarray(part)) for part in (values.offsets, values.data)]
        return pa.Array.from_buffers(kind, len(values.offsets) - 1, [None, *buffers])
    numbers = values.values if isinstance(values, Dense) else values
    return as_arrow(numbers.reshape(-1).astype(kind.to_pandas_dtype(), copy=False))


def _under_nulls(column: Plain, count: int) -> np.ndarray | None:
    """Returns a mask of the values that belong to a null, or ``None`` if there are no nulls."""
    if column.valid is None:
        return None
    if isinstance(column, Ragged):
        return np.repeat(~column.valid.reshape(-1), np.prod(column.shapes, axis=1, dtype=np.int64))
    return np.repeat(~column.valid.reshape(-1), count // max(column.valid.size, 1))


def _row_of(column: Plain, place: int, count: int) -> int:
    """Returns the row to which a value belongs."""
    if not isinstance(column, Ragged):
        return place // (count // leading(column))
    ends = np.cumsum(np.prod(column.shapes, axis=1, dtype=np.int64))
    return int(np.searchsorted(ends, place, side="right")) // math.prod(column.lead[1:])
