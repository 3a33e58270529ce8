"""Encodes a step of the engine as record batches that ``tensorflow_io.arrow.ArrowStreamDataset`` can read.

That dataset supports scalars, strings, and one list of them per row. It supports no tensors, no nulls, and no lists of
different lengths in a batch. Therefore, an Arrow row holds one *element* (of a batched pipeline, a whole batch), and
each of its tensors is a list of values. `tf_plugin.arrow_source` restores the shapes in the graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ...base.process.dataclass import dataclass
from ...engine.columns.batch import Column, Dense, Ragged, Strings
from ...schema.element import Element, OutputField
from ...schema.ragged import ends_of
from .arrays import even_offsets, flat_array, list_array, string_array
from .encode import dense_shape, item_type

LEADING = ("error", "rows")
"""The first columns: the text of an error that ends the stream (otherwise empty), and the element's number of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatColumn:
    """One column, with a list (or a scalar) for each element.

    Attributes:
        field: the number of the output field.
        part: ``"values"`` in C order; ``"shape"`` of the element, if it is not known in advance; or ``"splits"`` of a
            ragged value along ``axis``.
        type: the Arrow type of an item.
        scalar: whether the column holds one item per element instead of a list.
    """

    field: int
    part: str
    type: pa.DataType
    axis: int = -1
    scalar: bool = False

    @property
    def arrow(self) -> pa.DataType:
        return self.type if self.scalar else pa.list_(self.type)


def flat_columns_of(element: Element) -> list[FlatColumn]:
    """Returns the columns after `LEADING`, in order."""
    columns: list[FlatColumn] = []
    for number, output in enumerate(element.leaves):
        scalar = not element.batched and output.element_shape == ()
        columns.append(FlatColumn(field=number, part="values", type=item_type(output), scalar=scalar))
        if output.ragged and has_splits(element, output):
            axes = [axis for axis, size in enumerate(output.shape) if not size and axis <= last_variable(output)]
            columns += [FlatColumn(field=number, part="splits", type=pa.int64(), axis=axis) for axis in axes]
        elif output.ragged or output.padded:
            columns.append(FlatColumn(field=number, part="shape", type=pa.int64()))
    return columns


def has_splits(element: Element, output: OutputField) -> bool:
    """Returns whether an element holds several values of a ragged field: those of a batch or a window."""
    return element.batched or output.window is not None


def last_variable(output: OutputField) -> int:
    """Returns the last axis of variable length."""
    return max(axis for axis, size in enumerate(output.shape) if size is None)


def flat_schema(element: Element) -> pa.Schema:
    names = [
        f"{element.leaves[flat.field].name}.{flat.part}{max(flat.axis, 0) or ''}" for flat in flat_columns_of(element)
    ]
    types = [flat.arrow for flat in flat_columns_of(element)]
    return pa.schema(list(zip([*LEADING, *names], [pa.string(), pa.int64(), *types], strict=True)))


def encode_flat(element: Element, schema: pa.Schema, columns: Sequence[Column], count: int) -> pa.RecordBatch:
    """Encodes a step as one row if the pipeline is batched, otherwise as one row for each of its rows."""
    groups = 1 if element.batched else count
    rows = np.full(groups, count if element.batched else 1, np.int64)
    arrays = [pa.array([""] * groups, pa.string()), pa.array(rows)]
    for flat in flat_columns_of(element):
        arrays.append(_array(flat, element, columns[flat.field], groups))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def error_row(element: Element, schema: pa.Schema, text: str) -> pa.RecordBatch:
    """Returns a record batch of one row that holds only the text of an error."""
    arrays = [pa.array([text]), pa.array([0], pa.int64())]
    for flat in flat_columns_of(element):
        nothing = b"" if pa.types.is_binary(flat.type) else "" if pa.types.is_string(flat.type) else 0
        item = pa.array([nothing], pa.int64()).cast(flat.type) if nothing == 0 else pa.array([nothing], flat.type)
        arrays.append(item if flat.scalar else pa.array([[]], flat.arrow))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(flat: FlatColumn, element: Element, column: Column, groups: int) -> pa.Array:
    if flat.part == "splits":
        assert isinstance(column, Ragged)
        splits = [_splits(shapes, flat.axis) for shapes in np.split(column.shapes, groups)]
        return list_array(flat_array(np.concatenate(splits)), ends_of([len(part) for part in splits]))
    if flat.part == "shape":
        shapes = column.shapes if isinstance(column, Ragged) else _dense_shapes(element, column, groups)
        return list_array(flat_array(shapes), even_offsets(groups, shapes.shape[1]))
    if isinstance(column, Ragged):
        sizes = np.prod(column.shapes, axis=1, dtype=np.int64).reshape(groups, -1).sum(axis=1)
        return list_array(_items(flat, column.values), ends_of(sizes))
    assert isinstance(column, Dense | Strings)
    items = _items(flat, column.values if isinstance(column, Dense) else column)
    return items if flat.scalar else list_array(items, even_offsets(groups, len(items) // groups))


def _items(flat: FlatColumn, values: np.ndarray | Strings) -> pa.Array:
    return string_array(values, flat.type) if isinstance(values, Strings) else flat_array(values)


def _dense_shapes(element: Element, column: Column, groups: int) -> np.ndarray:
    """Returns the shape of each element of a padded field."""
    shape = dense_shape(column)
    return np.tile(np.array(shape if element.batched else shape[1:], np.int64), (groups, 1))


def _splits(shapes: np.ndarray, axis: int) -> np.ndarray:
    """Returns the row splits of one axis, counted in parts of the next axis, as in `tf.RaggedTensor`."""
    outer = np.prod(shapes[:, :axis], axis=1, dtype=np.int64)
    return ends_of(np.repeat(shapes[:, axis], outer))
