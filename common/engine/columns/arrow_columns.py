"""Columns as Arrow arrays and back, for user functions that work on Arrow batches.

Values of fixed shape become fixed-size lists, variable ones large lists, one level for each axis; scalars and strings
are plain. Nulls stay nulls.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from ...errors import DecodeError, TransformError
from ...schema.codecs import ListCodec
from ...schema.element import OutputField
from ...schema.field import UnischemaField
from ..read.normalise import normalise
from .batch import Column, Dense, Strings
from .columns import block_column


def to_arrow(output: OutputField, column: Column) -> pa.Array:
    """A column as an Arrow array of one entry per row."""
    valid = None if column.valid is None else column.valid.reshape(len(column.valid), -1).all(axis=1)
    mask = None if valid is None else pa.array(~valid)
    if isinstance(column, Dense):
        return _nested(pa.array(column.values.reshape(-1)), column.values.shape[1:], mask)
    if isinstance(column, Strings):
        return _nested(_strings(column, text=output.kind == "text"), column.shape[1:], mask)
    values = column.values
    array = _strings(values, text=output.kind == "text") if isinstance(values, Strings) else pa.array(values)
    for axis in reversed(range(column.shapes.shape[1])):
        lengths = _lengths(column.shapes, axis)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]))
        array = pa.LargeListArray.from_arrays(offsets, array)
    for steps in reversed(column.lead[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, steps)
    if mask is None:
        return array
    return array.take(pa.array(np.arange(len(array)), mask=~valid if valid is not None else None))


def from_arrow(
    output: OutputField, array: pa.Array | pa.ChunkedArray, who: str, describe: Callable[[int], str]
) -> Column:
    """An Arrow array that a user function made, held to its declared field.

    Raises:
        TransformError: another type or shape, or nulls where none are declared.
    """
    shape = output.element_shape
    dtype = {"text": str, "bytes": bytes}.get(output.kind, output.dtype)
    field = UnischemaField(output.name, dtype, shape, ListCodec() if shape else None, nullable=True)
    try:
        part = normalise(field, array)
        rows = np.arange(len(part))
        out = None
        if output.kind == "dense" and None not in shape:
            out = np.empty((len(part), *(axis or 0 for axis in shape)), output.dtype)
        column = block_column(field, [part], describe).gather(rows, out)
    except DecodeError as error:
        raise TransformError(f"{who}: {error}") from error
    if column.valid is not None and not output.nullable:
        row = int(np.flatnonzero(~column.valid)[0])
        raise TransformError(f"{who}, field '{output.name}', {describe(row)}: expected a value, got null.")
    return column


def _nested(flat: pa.Array, shape: tuple[int, ...], mask: pa.Array | None) -> pa.Array:
    if not shape:
        return (
            flat
            if mask is None
            else flat.take(pa.array(np.arange(len(flat)), mask=mask.to_numpy(zero_copy_only=False)))
        )
    for size in reversed(shape[1:]):
        flat = pa.FixedSizeListArray.from_arrays(flat, size)
    return pa.FixedSizeListArray.from_arrays(flat, shape[0], mask=mask)


def _strings(column: Strings, *, text: bool) -> pa.Array:
    kind = pa.large_string() if text else pa.large_binary()
    buffers = [
        None,
        pa.py_buffer(np.ascontiguousarray(column.offsets)),
        pa.py_buffer(np.ascontiguousarray(column.data)),
    ]
    return pa.Array.from_buffers(kind, len(column.offsets) - 1, buffers)


def _lengths(shapes: np.ndarray, axis: int) -> np.ndarray:
    """The lengths of all lists of one axis, laid end to end: each cell has the product of its outer axes of them."""
    outer = np.array([math.prod(shape[:axis]) for shape in shapes.tolist()], dtype=np.int64)
    return np.repeat(shapes[:, axis], outer)
