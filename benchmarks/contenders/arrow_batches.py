"""Turns Arrow batches into tensors, for contenders that hand out Arrow.

Takes a table or record batch; returns a dict with one entry per column: a tensor for numbers, which shares Arrow's
memory, a nested tensor for lists, decoded images for a column named ``image``, and a list for strings.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from ..steps import as_bytes, image_row

warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # as it should be


def tensors(batch: pa.Table | pa.RecordBatch, key: str, random: np.random.Generator) -> dict[str, Any]:
    """Returns the columns of one batch."""
    return {name: _tensor(batch.column(name), key, random) for name in batch.schema.names}


def sliced(batch: pa.RecordBatch, size: int, key: str, random: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Yields the columns of smaller batches; numbers are converted once and then sliced."""
    names = batch.schema.names
    numbers = {name: _tensor(batch.column(name), key, random) for name in names if _flat(batch.column(name).type)}
    for begin in range(0, len(batch), size):
        part = batch.slice(begin, size)
        yield {
            name: numbers[name][begin : begin + size] if name in numbers else _tensor(part.column(name), key, random)
            for name in names
        }


def jagged(column: pa.ChunkedArray | pa.Array) -> torch.Tensor:
    """Returns a column of lists as a nested tensor."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    offsets = array.offsets.to_numpy()
    values = torch.from_numpy(array.values.to_numpy()[offsets[0] : offsets[-1]].copy())
    return torch.nested.nested_tensor_from_jagged(values, torch.from_numpy(offsets.astype(np.int64) - offsets[0]))


def _tensor(column: pa.ChunkedArray | pa.Array, key: str, random: np.random.Generator) -> Any:
    if _flat(column.type):
        return torch.from_numpy(column.to_numpy())
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return jagged(column)
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return torch.from_numpy(np.stack([image_row(key, as_bytes(cell), random) for cell in column]))
    return column.to_pylist()


def _flat(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
