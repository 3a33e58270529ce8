"""Converts columns to Arrow arrays and back, for user functions that work on Arrow batches.

Values of fixed shape become fixed-size lists; variable and nested values become large lists, with one level per axis.
Scalars and strings become plain arrays. Nulls stay null.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from ...base.errors import DecodeError, TransformError
from ...base.memory.arrow_views import as_arrow, as_numpy
from ...schema.codecs import ListCodec, ReadListCodec
from ...schema.element import OutputField
from ...schema.field import Shape, UnischemaField
from ...schema.ragged import ends_of
from ..read.canonical import to_canonical
from .batch import Column, Compound, Dense, Ragged, Strings, as_one_array, offsets_of, values_of
from .block_column import block_column
from .protocols import DecodeContext


def to_arrow(output: OutputField, column: Column) -> pa.Array:
    """Converts a column to an Arrow array with one entry per row."""
    valid = None if column.valid is None else np.asarray(column.valid.reshape(len(column.valid), -1).all(axis=1))
    mask = None if valid is None else pa.array(~valid)
    if isinstance(column, Dense):
        rows, *shape = column.values.shape
        return _nested(pa.array(column.values.reshape(-1)), rows, tuple(shape), mask)
    if isinstance(column, Strings):
        return _nested(_strings(column, text=output.kind == "text"), column.shape[0], column.shape[1:], mask)
    whole = values_of(column)
    assert isinstance(whole, Ragged)
    values = whole.values
    array = _strings(values, text=output.kind == "text") if isinstance(values, Strings) else pa.array(values)
    if isinstance(column, Compound):
        for size in reversed(output.shape[output.levels :]):
            array = pa.FixedSizeListArray.from_arrays(array, size)
        for offsets in reversed(offsets_of(column)):
            array = pa.LargeListArray.from_arrays(as_arrow(offsets), array)
    else:
        for axis in reversed(range(whole.shapes.shape[1])):
            array = pa.LargeListArray.from_arrays(as_arrow(ends_of(_lengths(whole.shapes, axis))), array)
    for steps in reversed(whole.lead[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, steps)
    if mask is None:
        return array
    return array.take(as_arrow(np.arange(len(array)), valid))


def from_arrow(
    output: OutputField, array: pa.Array | pa.ChunkedArray, who: str, describe: Callable[[int], str]
) -> Column:
    """Converts an Arrow array returned by a user function to a column of its declared field.

    Raises:
        TransformError: the type or shape differs from the declaration, or the array has undeclared nulls.
    """
    shape = output.element_shape
    dtype = {"text": str, "bytes": bytes}.get(output.kind, output.dtype)
    codec = ReadListCodec(levels=output.levels) if output.levels else ListCodec()
    field = UnischemaField(output.name, dtype, shape, codec if shape else None, nullable=True)
    try:
        leaf = {"text": pa.string(), "bytes": pa.binary()}.get(output.kind) or pa.from_numpy_dtype(output.dtype)
        typed = _typed(array.type, shape, leaf)
        part = to_canonical(field, array if typed == array.type else array.cast(typed))
        rows = np.arange(len(part))
        out = None
        if output.kind == "dense" and None not in shape:
            out = np.empty((len(part), *(axis or 0 for axis in shape)), output.dtype)
        column = block_column(field, [part], DecodeContext(describe=describe)).gather(rows, out)
    except DecodeError as error:
        raise TransformError(f"{who}: {error}") from error
    if column.valid is not None and not output.nullable:
        row = int(np.flatnonzero(~column.valid)[0])
        raise TransformError(f"{who}, field '{output.name}', {describe(row)}: expected a value, got null.")
    return in_one_shape(output, column, who, describe) if output.padded else column


def in_one_shape(output: OutputField, column: Column, who: str, describe: Callable[[int], str]) -> Column:
    """Returns a user function's values as one array, for a field that is padded to the largest value of the batch.

    Raises:
        TransformError: the values have different shapes.
    """
    if not isinstance(column, Ragged):
        return column
    array = as_one_array(column)
    if array is None:
        shapes = sorted({tuple(shape) for shape in column.shapes.tolist()})
        raise TransformError(
            f"{who}, field '{output.name}', the batch that begins at {describe(0)}: expected values of one shape, as "
            f"the field is padded, got the shapes {shapes[0]} and {shapes[-1]}. Pad them to one shape, or call pad() "
            "after the function."
        )
    return array


def _typed(kind: pa.DataType, axes: Shape, leaf: pa.DataType) -> pa.DataType:
    """Returns the declared type for lists that are all empty, which Arrow types as lists of null; others unchanged."""
    if not axes:
        return kind
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        inside = kind.value_type
        typed = _typed(inside, axes[1:], leaf)
        if pa.types.is_null(inside):
            typed = leaf
            for size in reversed(axes[1:]):
                typed = pa.list_(typed) if size is None else pa.list_(typed, size)
        return kind if typed == inside else make(typed)
    return kind


def _nested(flat: pa.Array, rows: int, shape: tuple[int, ...], mask: pa.Array | None) -> pa.Array:
    if not shape:
        return flat if mask is None else flat.take(pa.array(np.arange(len(flat)), mask=as_numpy(mask)))
    for axis in reversed(range(1, len(shape))):
        flat = _fixed_lists(flat, shape[axis], rows * math.prod(shape[:axis]))
    return _fixed_lists(flat, shape[0], rows, mask)


def _fixed_lists(values: pa.Array, size: int, count: int, mask: pa.Array | None = None) -> pa.Array:
    if size:
        return pa.FixedSizeListArray.from_arrays(values, size, mask=mask)
    nulls = [False] * count if mask is None else mask.to_pylist()
    empty: list[list[object] | None] = [None if null else [] for null in nulls]
    return pa.array(empty, pa.list_(values.type, 0))  # the only way to make lists of size 0 in pyarrow


def _strings(column: Strings, *, text: bool) -> pa.Array:
    kind = pa.large_string() if text else pa.large_binary()
    buffers = [
        None,
        pa.py_buffer(np.ascontiguousarray(column.offsets)),
        pa.py_buffer(np.ascontiguousarray(column.data)),
    ]
    return pa.Array.from_buffers(kind, len(column.offsets) - 1, buffers)


def _lengths(shapes: np.ndarray, axis: int) -> np.ndarray:
    """Returns the lengths of all lists along an axis. An array has one list for each index of its outer axes."""
    outer = np.array([math.prod(shape[:axis]) for shape in shapes.tolist()], dtype=np.int64)
    return np.repeat(shapes[:, axis], outer)
