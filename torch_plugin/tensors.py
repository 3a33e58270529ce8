"""Columns as torch elements: what a PyTorch user gets for a batch or a row.

In: an `Element` and the columns of one step. Out: dicts by field name. Numbers are tensors over the engine's own memory,
which they keep alive; nothing is copied, and on the batched path no Python object is made per row.

| field | in a batch | in a row |
|---|---|---|
| numbers of one shape | tensor ``[B, *shape]`` | tensor ``[*shape]``, 0-d for a scalar |
| first axis variable, the others fixed | jagged nested tensor of ``B`` rows | tensor of the row's own shape |
| any other variable axes | list of ``B`` tensors | tensor of the row's own shape |
| text, bytes | list of ``B`` ``str`` / ``bytes`` (nested lists for more axes) | ``str`` / ``bytes`` (or lists of them) |

A stacked window puts its axis ``T`` behind ``B``; ragged values in windows are lists of lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from parquetry.common.engine.batch import Column, Dense, Ragged, Strings
from parquetry.common.engine.outputs import Element, OutputField, nest


def batch_to_torch(element: Element, columns: Sequence[Column]) -> dict[Any, Any]:
    """A batch as a dict of tensors, nested tensors and lists."""
    values = [_batch_value(output, column) for output, column in zip(element.outputs, columns, strict=True)]
    return nest(element.outputs, values)


def rows_to_torch(element: Element, columns: Sequence[Column]) -> Iterator[dict[Any, Any]]:
    """The rows of a chunk as dicts; tensors are views of the chunk."""
    lists = [_row_values(output, column) for output, column in zip(element.outputs, columns, strict=True)]
    if all(len(output.path) == 1 for output in element.outputs):
        names = [output.path[0] for output in element.outputs]
        return (dict(zip(names, values, strict=True)) for values in zip(*lists, strict=True))
    return (nest(element.outputs, values) for values in zip(*lists, strict=True))


def to_list(values: Any) -> list[Any]:
    """One value per row of any field of a batch: ``B`` tensors (views), strings, or lists of them."""
    if isinstance(values, torch.Tensor):
        return list(values.unbind(0))
    return list(values)


def is_jagged(output: OutputField) -> bool:
    """Whether a batch of the field is one jagged nested tensor: only the first axis varies, and there is no window."""
    return (
        output.kind == "dense"
        and output.window is None
        and output.shape[:1] == (None,)
        and None not in output.shape[1:]
    )


def _batch_value(output: OutputField, column: Column) -> Any:
    if isinstance(column, Dense):
        return as_tensor(column.values)
    if isinstance(column, Strings):
        return column.to_objects(text=output.kind == "text").tolist()
    if is_jagged(output) and isinstance(column.values, np.ndarray):
        rows = as_tensor(column.values).view(-1, *(int(axis) for axis in output.shape[1:] if axis is not None))
        offsets = np.concatenate([[0], np.cumsum(column.shapes[:, 0])])
        return torch.nested.nested_tensor_from_jagged(rows, torch.from_numpy(offsets))
    return _row_values(output, column)


def _row_values(output: OutputField, column: Column) -> list[Any]:
    if isinstance(column, Dense):
        return list(as_tensor(column.values).unbind(0))
    if isinstance(column, Strings):
        return column.to_objects(text=output.kind == "text").tolist()
    return _grouped(_cells(output, column), column.lead[1:])


def _cells(output: OutputField, column: Ragged) -> list[Any]:
    """Every cell of a ragged column: a tensor of its own shape, or nested lists of strings."""
    sizes = np.prod(column.shapes, axis=1, dtype=np.int64)
    ends = np.cumsum(sizes)
    values: Any
    if isinstance(column.values, Strings):
        values = column.values.to_objects(text=output.kind == "text")
        made = (values[end - size : end] for end, size in zip(ends.tolist(), sizes.tolist(), strict=True))
        return [cell.reshape(shape).tolist() for cell, shape in zip(made, column.shapes.tolist(), strict=True)]
    values = as_tensor(column.values)
    spans = zip(ends.tolist(), sizes.tolist(), column.shapes.tolist(), strict=True)
    return [values[end - size : end].view(shape) for end, size, shape in spans]


def _grouped(cells: list[Any], inner: tuple[int, ...]) -> list[Any]:
    """Cells under the leading axes behind the first, as lists of lists."""
    for axis in reversed(inner):
        cells = [cells[start : start + axis] for start in range(0, len(cells), axis)]
    return cells


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor over the array's memory; it holds the array as long as it lives."""
    if not array.flags.writeable or not array.flags.c_contiguous:
        array = array.copy()  # torch has no read-only tensors
    return torch.from_numpy(array)
