"""Decodes a received record batch to the columns that the server's engine made; see `encode`.

The arrays are views of the received bytes. Only bools are copied, because Arrow packs them into bits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from ...base.errors import SidecarError
from ...engine.columns.batch import Column, Dense, Ragged, Strings
from ...schema.element import Element, OutputField
from .arrays import numbers_of, offsets_of, strings_of, valid_of
from .encode import has_shapes, has_valid, is_scalar
from .wire import SCHEMA_KEY, SHAPES_KEY, element_from_json


def element_of_schema(schema: pa.Schema) -> Element:
    """Returns the element that a stream's schema describes.

    Raises:
        SidecarError: the stream does not come from a parquetry server.
    """
    text = (schema.metadata or {}).get(SCHEMA_KEY)
    if text is None:
        raise SidecarError(f"Arrow stream: expected {SCHEMA_KEY.decode()!r} in the schema's metadata, got none.")
    return element_from_json(json.loads(text))


def decode_rows(leaves: Sequence[OutputField], batch: pa.RecordBatch, metadata: Mapping[bytes, bytes]) -> list[Column]:
    padded = json.loads(metadata.get(SHAPES_KEY, b"{}"))
    columns: list[Column] = []
    arrays = iter(batch.columns)
    for number, output in enumerate(leaves):
        values = next(arrays)
        shapes = next(arrays) if has_shapes(output) else None
        valid = _steps_valid(next(arrays), output) if has_valid(output) else valid_of(values)
        columns.append(_column(output, values, shapes, valid, padded.get(str(number))))
    return columns


def _column(
    output: OutputField,
    array: pa.Array,
    shapes: pa.Array | None,
    valid: np.ndarray | None,
    padded: list[int] | None,
) -> Column:
    rows = len(array)
    items = array if is_scalar(output) else array.values
    lead = (rows,) if output.window is None else (rows, output.window)
    if output.ragged:
        values = _strings(items, (len(items),)) if output.kind != "dense" else numbers_of(items, output.dtype)
        return Ragged(_shapes(output, array, shapes), values, lead, valid)
    shape = (rows, *padded) if padded is not None else (*lead, *(axis or 0 for axis in output.shape))
    if output.kind != "dense":
        return _strings(items, shape, valid)
    return Dense(numbers_of(items, output.dtype).reshape(shape), valid)


def _strings(items: pa.Array, shape: tuple[int, ...], valid: np.ndarray | None = None) -> Strings:
    offsets, data = strings_of(items)
    return Strings(offsets, data, shape, valid)


def _shapes(output: OutputField, array: pa.Array, shapes: pa.Array | None) -> np.ndarray:
    """Returns the shape of each array, int64 ``[arrays, axes]``."""
    if shapes is not None:
        return numbers_of(shapes.values, np.dtype(np.int64)).reshape(-1, len(output.shape))
    return np.diff(offsets_of(array, array.buffers()[1]))[:, None]


def _steps_valid(array: pa.Array, output: OutputField) -> np.ndarray | None:
    if array.null_count == len(array):
        return None
    return numbers_of(array.values, np.dtype(np.bool_)).reshape(len(array), output.window or 0)
