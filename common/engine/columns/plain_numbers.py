"""Finds numbers of one shape in stored columns, so that a block can use them where they are, without a copy.

They are Arrow arrays of numbers, fixed-size lists of them, or byte strings that all hold one array of the same layout,
in memory or in a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...base.memory.arrow_views import as_arrow, as_numpy
from ...schema.codec import Codec
from ...schema.codecs import NdarrayCodec, TensorCodec
from ...schema.dtypes import delivered_dtype, is_string_like
from ...schema.field import UnischemaField
from ...schema.npy import npy_header
from ..read.file_cells import FileCells, FileValues, InMemory, Part, file_values
from ..read.stored_cells import StoredCells, cells_of

_MAPPED_BYTES = 1 << 20  # columns of temporary files are larger, and are not to be copied into memory
_CHECKED_ROWS = 1 << 16


def numbers_of(parts: Sequence[Part]) -> list[np.ndarray] | None:
    """Returns the parts of a field if they are numbers without nulls, otherwise ``None``."""
    numbers = [part for part in parts if isinstance(part, np.ndarray)]
    return numbers if numbers and len(numbers) == len(parts) else None


def plain_parts(field: UnischemaField, parts: Sequence[Part]) -> list[np.ndarray] | None:
    """Returns views of plain numbers without nulls, or ``None`` for other columns."""
    numbers = numbers_of(parts)
    if numbers is not None:
        return numbers
    if field.storage.coded or not field.is_fixed or is_string_like(field.dtype):
        return None
    arrays = as_arrays(parts)
    if any(array.null_count or not is_plain(array) for array in arrays):
        return None
    return [plain_numbers(field, array) for array in arrays]


def as_arrays(parts: Sequence[Part]) -> list[pa.Array]:
    """Returns the parts as Arrow arrays. Only for fields that are not coded, whose parts are in memory."""
    return [part if isinstance(part, pa.Array) else as_arrow(part) for part in parts]  # type: ignore[arg-type]


def is_plain(array: pa.Array) -> bool:
    """Returns whether a column holds numbers of one shape that numpy can view, apart from null rows."""
    lists = pa.types.is_fixed_size_list(array.type)
    while pa.types.is_fixed_size_list(array.type):
        array = array.flatten()
    return bool(pa.types.is_primitive(array.type)) and not (lists and array.null_count)


def plain_numbers(field: UnischemaField, part: pa.Array) -> np.ndarray:
    shape = (len(part), *(axis or 0 for axis in field.shape))
    while pa.types.is_fixed_size_list(part.type):
        part = part.flatten()
    if part.null_count:  # not fill_null(), because older Arrow versions cannot fill half floats
        present = pa.Array.from_buffers(part.type, len(part), [None, part.buffers()[1]], offset=part.offset)
        numbers, valid = as_numpy(present), as_numpy(part.is_valid())
        if numbers.nbytes < _MAPPED_BYTES or not _zero_beneath(numbers, valid):
            numbers = np.where(valid, numbers, 0)
        return numbers.astype(delivered_dtype(field.dtype), copy=False).reshape(shape)
    return as_numpy(part).reshape(shape)


def _zero_beneath(numbers: np.ndarray, valid: np.ndarray) -> bool:
    """Returns whether numbers are 0 wherever they are not valid, as in temporary files. Copies little at a time."""
    return not any(
        numbers[first : first + _CHECKED_ROWS][~valid[first : first + _CHECKED_ROWS]].any()
        for first in range(0, len(numbers), _CHECKED_ROWS)
    )


def fixed_parts(field: UnischemaField, codec: Codec, parts: Sequence[Part]) -> list[np.ndarray | FileValues] | None:
    """Returns arrays that view the stored bytes without a copy, or ``None`` unless all values share one layout."""
    if not field.is_fixed or is_string_like(field.dtype):
        return None
    fixed: list[np.ndarray | FileValues] = []
    for part in parts:
        views: Sequence[np.ndarray | FileValues] | None
        if isinstance(part, FileCells):
            values = file_values(field, codec, part)
            views = None if values is None else [values]
        elif isinstance(codec, TensorCodec):
            views = _raw_views(field, codec, part)
        elif type(codec) is NdarrayCodec:
            views = _npy_views(field, part)
        else:
            views = None
        if views is None:
            return None
        fixed += views
    return fixed


def _raw_views(field: UnischemaField, codec: TensorCodec, part: InMemory) -> Sequence[np.ndarray] | None:
    size = codec.value_bytes(field)
    dtype = delivered_dtype(field.dtype).newbyteorder("<")
    shape = tuple(axis or 0 for axis in field.shape)
    if size == 0:
        return [np.zeros((len(part), *shape), dtype)]
    cells = part if isinstance(part, StoredCells) else cells_of(part)
    if not isinstance(part, StoredCells) and part.null_count:
        if not pa.types.is_fixed_size_binary(part.type):
            return None
        values = np.concatenate(_views(cells, 0, dtype, shape))
        values[~as_numpy(part.is_valid())] = 0
        return [values]
    return _views(cells, 0, dtype, shape) if np.all(cells.ends - cells.starts == size) else None


def _npy_views(field: UnischemaField, part: InMemory) -> Sequence[np.ndarray] | None:
    """Returns the values of the part as strided arrays, or ``None`` unless all have the same ``.npy`` header."""
    if _null_count(part) or len(part) == 0:
        return None
    cells = part if isinstance(part, StoredCells) else cells_of(part)
    length = int(cells.ends[0] - cells.starts[0])
    first = cells.data[cells.starts[0] : cells.ends[0]]
    try:
        header = npy_header(memoryview(first))  # type: ignore[arg-type]  # an array is a buffer
    except ValueError:
        return None  # the general path reports which row is damaged
    dtype = np.dtype(np.int64) if header.dtype.kind in "mM" else header.dtype
    same = header.shape == field.shape and header.dtype == field.dtype and not header.fortran_order
    if not same or not header.data_bytes or not np.all(cells.ends - cells.starts == length):
        return None
    heads = _views(cells, 0, np.dtype(np.uint8), (header.data_offset,))
    if not all((head == first[: header.data_offset]).all() for head in heads):
        return None
    return _views(cells, header.data_offset, dtype, header.shape)


def _views(cells: StoredCells, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> list[np.ndarray]:
    """Returns views of the arrays that begin ``offset`` bytes into each value, one view per run of values."""
    inner = np.zeros(shape, dtype).strides if 0 not in shape else (0,) * len(shape)
    return [
        np.ndarray(
            (count, *shape), dtype, cells.data, int(cells.starts[first]) + offset if count else 0, (distance, *inner)
        )
        for first, count, distance in cells.runs()
    ]


def _null_count(part: Part) -> int:
    return part.null_count if isinstance(part, pa.Array) else 0


def validity_of(parts: Sequence[Part]) -> np.ndarray | None:
    if not any(_null_count(part) for part in parts):
        return None
    return np.concatenate(
        [as_numpy(part.is_valid()) if isinstance(part, pa.Array) else np.ones(len(part), bool) for part in parts]
    )


def take_valid(valid: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    if valid is None:
        return None
    taken = valid[rows]
    return None if taken.all() else taken
