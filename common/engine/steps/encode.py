"""Encoding: values as their codes in a vocabulary.

A pure function over columns, on whole batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ...errors import DecodeError
from ...stages.encode import EncodeStep
from ..columns.arrow_views import as_arrow
from ..columns.batch import Column, Dense, Plain, Ragged, Strings, leading, values_of, with_values


def apply_encode(step: EncodeStep, columns: Sequence[Column], describe: Callable[[int], str]) -> list[Column]:
    """The columns with the codes of one of them; nulls stay nulls.

    Raises:
        DecodeError: a value that the vocabulary has not; with file and row.
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
            found = arrow[place].as_py()
            raise DecodeError(
                f"encode: field '{step.field.name}', {describe(_row_of(column, place, len(codes)))}: expected one of "
                f"the {len(step.vocabulary):,} values of the vocabulary, got {found!r}. Give unknown= the code of such "
                "values, or a vocabulary that has them all."
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
    """All values of a column, end to end, in the type of a vocabulary."""
    if isinstance(values, Strings):
        buffers = [pa.py_buffer(np.ascontiguousarray(part)) for part in (values.offsets, values.data)]
        return pa.Array.from_buffers(kind, len(values.offsets) - 1, [None, *buffers])
    numbers = values.values if isinstance(values, Dense) else values
    return as_arrow(numbers.reshape(-1).astype(kind.to_pandas_dtype(), copy=False))


def _under_nulls(column: Plain, count: int) -> np.ndarray | None:
    """Which of a column's values stand under a null, and are no values."""
    if column.valid is None:
        return None
    if isinstance(column, Ragged):
        return np.repeat(~column.valid.reshape(-1), np.prod(column.shapes, axis=1, dtype=np.int64))
    return np.repeat(~column.valid.reshape(-1), count // max(column.valid.size, 1))


def _row_of(column: Plain, place: int, count: int) -> int:
    """The row that a value belongs to."""
    if not isinstance(column, Ragged):
        return place // (count // leading(column))
    ends = np.cumsum(np.prod(column.shapes, axis=1, dtype=np.int64))
    return int(np.searchsorted(ends, place, side="right")) // math.prod(column.lead[1:])
