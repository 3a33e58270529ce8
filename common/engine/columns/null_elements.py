"""Nulls inside lists: replaced by a value, by zeros plus flags (`FlaggedColumn`), or kept (`KeptColumn`).

`filled` and `flagged` replace them for a whole block at once. They take a list column in canonical form
(`read.canonical`) and return lists without nulls inside. Null rows stay null, and the values hidden beneath them do not
matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ...base.errors import DecodeError
from ...base.memory.arrow_views import as_arrow, as_numpy, without_nulls
from ...base.process.forks import pc
from ...schema.dtypes import delivered_dtype, is_string_like, is_text
from ...schema.field import Shape, UnischemaField
from .batch import Column, Compound, Dense, Ragged, rows_of, values_of
from .protocols import BlockColumn, DecodeContext

Change = Callable[[pa.Array], pa.Array]
ColumnOf = Callable[[UnischemaField, Sequence[pa.Array], DecodeContext], BlockColumn]


def filled(array: pa.Array, shape: Shape, value: Any) -> pa.Array:
    """Replaces null elements with ``value``. A null inner list stays null if its length is unknown."""
    return _rebuilt(array, shape, lambda flat: _filled(flat, value), emptied=False)


def flagged(array: pa.Array, shape: Shape) -> tuple[pa.Array, pa.Array]:
    """Replaces null elements with 0 (or empty values). Also returns flags in lists of the same lengths (uint8, 1 = not
    null). A null inner list gets the length that its field declares, or becomes empty.
    """
    values = _rebuilt(array, shape, lambda flat: _filled(flat, None), emptied=True)
    return values, _rebuilt(array, shape, _flags, emptied=True)


class FlaggedColumn:
    """Lists, plus flags of the same shapes for the elements that are not null."""

    def __init__(self, field: UnischemaField, values: BlockColumn, flag: UnischemaField, flags: BlockColumn) -> None:
        self._columns = ((field, values), (flag, flags))

    def gather(self, rows: np.ndarray, out: np.ndarray | None) -> Column:
        values, flags = (column.gather(rows, output_memory(field, len(rows))) for field, column in self._columns)
        present = values_of(flags)
        assert isinstance(present, Dense | Ragged)
        numbers = present.values
        assert isinstance(numbers, np.ndarray)
        parts = values.parts if isinstance(values, Compound) else (values,)
        return Compound((*parts, replace(present, values=numbers.view(np.bool_))))


class KeptColumn:
    """Lists as objects for display: arrays, or Python lists for rows that contain nulls.

    Args:
        column_of: makes a column, as `block_column` does.
    """

    def __init__(self, field: UnischemaField, array: pa.Array, context: DecodeContext, *, column_of: ColumnOf) -> None:
        self._field = field
        self._array = array
        self._context = context
        self._column_of = column_of

    def gather(self, rows: np.ndarray, out: np.ndarray | None) -> Column:
        objects = np.empty(len(rows), object)
        for place, row in enumerate(rows.tolist()):
            objects[place] = self._row(row)
        return Dense(objects)

    def _row(self, row: int) -> object:
        alone = self._array.take(as_arrow(np.array([row])))
        context = replace(self._context, describe=lambda _: self._context.describe(row))
        try:
            column = self._column_of(self._field, [alone], context).gather(
                np.zeros(1, np.int64), output_memory(self._field, 1)
            )
        except DecodeError:
            return alone[0].as_py()
        return rows_of(column, text=is_text(self._field.dtype))[0]


def output_memory(field: UnischemaField, rows: int) -> np.ndarray | None:
    """Allocates the output for numbers of one shape; ``None`` for other fields."""
    if not field.is_fixed or is_string_like(field.dtype):
        return None
    return np.empty((rows, *(axis or 0 for axis in field.shape)), delivered_dtype(field.dtype))


def _rebuilt(array: pa.Array, shape: Shape, change: Change, *, emptied: bool) -> pa.Array:
    """Applies ``change`` to the innermost values, after replacing null inner lists by lists of nulls where possible."""
    if not shape:
        return change(array)
    fixed = pa.types.is_fixed_size_list(array.type)
    children = array.flatten() if fixed else array.values
    if children.null_count and len(shape) > 1 and (emptied or None not in shape[1:]):
        stand_in = pa.scalar(_nothing(shape[1:]), children.type)
        children = pc.if_else(children.is_valid(), children, stand_in)
    inner = _rebuilt(children, shape[1:], change, emptied=emptied)
    if fixed:
        size = array.type.list_size
        return pa.FixedSizeListArray.from_arrays(inner, size) if size else pa.array([[]] * len(array), array.type)
    offsets = as_arrow(as_numpy(array.offsets))  # Arrow accepts a mask only with unsliced offsets
    return pa.LargeListArray.from_arrays(offsets, inner, mask=array.is_null() if array.null_count else None)


def _nothing(shape: Shape) -> Any:
    """Returns a nested list of nulls. Variable axes are empty."""
    return [_nothing(shape[1:])] * (shape[0] or 0) if shape else None


def _filled(flat: pa.Array, value: Any) -> pa.Array:
    if not flat.null_count:
        return flat
    if pa.types.is_large_string(flat.type) or pa.types.is_large_binary(flat.type):
        return without_nulls(flat) if value is None else flat.fill_null(pa.scalar(value, flat.type))
    present = pa.Array.from_buffers(flat.type, len(flat), [None, flat.buffers()[1]], offset=flat.offset)
    numbers = as_numpy(present)
    return pa.array(np.where(as_numpy(flat.is_valid()), numbers, numbers.dtype.type(value or 0)), flat.type)


def _flags(flat: pa.Array) -> pa.Array:
    return as_arrow(as_numpy(flat.is_valid()).view(np.uint8))
