"""Encodes a step of the engine as an Arrow record batch, with a column for each field and a row for each row.

Tensors are sent as lists of their values in C order. Their dtypes and shapes are in the schema's metadata. Any Arrow
reader can read the stream, and `decode` restores the arrays.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ...engine.columns.batch import Column, Dense, Ragged, Strings
from ...schema.element import Element, OutputField
from ...schema.ragged import ends_of
from .arrays import even_offsets, flat_array, list_array, string_array
from .wire import POSITION_KEY, SCHEMA_KEY, SHAPES_KEY, element_to_json


def rows_schema(element: Element) -> pa.Schema:
    fields: list[pa.Field] = []
    for output in element.leaves:
        fields.append(pa.field(output.name, item_type(output) if is_scalar(output) else pa.list_(item_type(output))))
        if has_shapes(output):
            fields.append(pa.field(f"{output.name}.shape", pa.list_(pa.int64())))
        if has_valid(output):
            fields.append(pa.field(f"{output.name}.valid", pa.list_(pa.bool_())))
    return pa.schema(fields, metadata={SCHEMA_KEY: json.dumps(element_to_json(element))})


def encode_rows(
    element: Element, schema: pa.Schema, columns: Sequence[Column], position: int
) -> tuple[pa.RecordBatch, dict[bytes, bytes]]:
    """Encodes a step as a record batch.

    Returns:
        The record batch, and its metadata: the position after the step, and the shapes of padded fields.
    """
    arrays: list[pa.Array] = []
    shapes: dict[str, list[int]] = {}
    for number, (output, column) in enumerate(zip(element.leaves, columns, strict=True)):
        arrays += _arrays(output, column)
        if output.padded:
            shapes[str(number)] = list(dense_shape(column)[1:])
    metadata = {POSITION_KEY: str(position).encode()}
    if shapes:
        metadata[SHAPES_KEY] = json.dumps(shapes).encode()
    return pa.RecordBatch.from_arrays(arrays, schema=schema), metadata


def dense_shape(column: Column) -> tuple[int, ...]:
    """Returns the shape of a column that is one array."""
    assert isinstance(column, Dense | Strings)
    return column.values.shape if isinstance(column, Dense) else column.shape


def item_type(output: OutputField) -> pa.DataType:
    """Returns the Arrow type of one value of a field's arrays."""
    if output.kind == "dense":
        return pa.from_numpy_dtype(output.dtype)
    return pa.string() if output.kind == "text" else pa.binary()


def has_shapes(output: OutputField) -> bool:
    """Returns whether a column of shapes accompanies the values, because a list records only its length."""
    return output.ragged and (len(output.shape) > 1 or output.window is not None)


def has_valid(output: OutputField) -> bool:
    """Returns whether a column of validity flags accompanies the values: one flag for each step of a window."""
    return output.window is not None


def is_scalar(output: OutputField) -> bool:
    """Returns whether a row holds a single value."""
    return output.element_shape == ()


def _arrays(output: OutputField, column: Column) -> list[pa.Array]:
    """Returns the field's column and the columns that accompany it."""
    valid = None if has_valid(output) else column.valid
    if isinstance(column, Dense):
        rows = len(column.values)
        items = flat_array(column.values, valid if is_scalar(output) else None)
        arrays = [_grouped(output, items, rows, valid)]
    elif isinstance(column, Strings):
        rows = column.shape[0]
        items = string_array(column, item_type(output), valid if is_scalar(output) else None)
        arrays = [_grouped(output, items, rows, valid)]
    else:
        assert isinstance(column, Ragged)
        rows = column.lead[0]
        values = column.values
        items = string_array(values, item_type(output)) if isinstance(values, Strings) else flat_array(values)
        arrays_each = len(column.shapes) // rows if rows else 0
        ends = ends_of(np.prod(column.shapes, axis=1, dtype=np.int64))
        arrays = [list_array(items, ends[even_offsets(rows, arrays_each)], valid)]
        if has_shapes(output):
            arrays.append(_even_list(flat_array(column.shapes), rows))
    if has_valid(output):
        flags = column.valid
        missing = pa.array([None] * rows, pa.list_(pa.bool_()))
        arrays.append(missing if flags is None else _even_list(flat_array(flags), rows))
    return arrays


def _grouped(output: OutputField, items: pa.Array, rows: int, valid: np.ndarray | None) -> pa.Array:
    if is_scalar(output):
        return items
    return list_array(items, even_offsets(rows, len(items) // rows if rows else 0), valid)


def _even_list(items: pa.Array, rows: int) -> pa.Array:
    return list_array(items, even_offsets(rows, len(items) // rows if rows else 0))
