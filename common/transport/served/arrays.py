"""Converts between numpy and Arrow arrays, without a copy where both have the same memory layout.

Only bools differ: Arrow packs them into bits. All lists and strings have 32-bit offsets, which every Arrow reader
understands.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pyarrow as pa

from ...base.errors import EncodeError
from ...base.memory.arrow_views import as_numpy
from ...engine.columns.batch import Strings

_MOST = 2**31 - 1


def flat_array(values: np.ndarray, valid: np.ndarray | None = None) -> pa.Array:
    """Returns numbers as a flat Arrow array."""
    flat = np.ascontiguousarray(values).reshape(-1)
    data = _bits(flat) if flat.dtype == np.bool_ else pa.py_buffer(flat)
    return pa.Array.from_buffers(pa.from_numpy_dtype(flat.dtype), len(flat), [_validity(valid), data])


def string_array(strings: Strings, arrow: pa.DataType, valid: np.ndarray | None = None) -> pa.Array:
    """Returns strings as a flat Arrow array of ``string`` or ``binary``."""
    offsets = _offsets(strings.offsets)
    data = pa.py_buffer(np.ascontiguousarray(strings.data))
    return pa.Array.from_buffers(arrow, len(strings.offsets) - 1, [_validity(valid), offsets, data])


def list_array(items: pa.Array, offsets: np.ndarray, valid: np.ndarray | None = None) -> pa.Array:
    """Returns an array of lists, one for each span of ``items`` between two offsets."""
    buffers = [_validity(valid), _offsets(offsets)]
    return pa.Array.from_buffers(pa.list_(items.type), len(offsets) - 1, buffers, children=[items])


def even_offsets(rows: int, each: int) -> np.ndarray:
    """Returns the offsets of ``rows`` lists of ``each`` items."""
    return np.arange(rows + 1, dtype=np.int64) * each


def numbers_of(array: pa.Array, dtype: np.dtype[Any]) -> np.ndarray:
    """Returns the values of a flat array, ignoring its nulls, as a writable view of the array's memory.

    Bools are copied.
    """
    memory = _memory(array.buffers()[1])
    if dtype == np.bool_:
        bits = np.unpackbits(memory, count=array.offset + len(array), bitorder="little")
        return bits[array.offset :].view(np.bool_)
    start = array.offset * dtype.itemsize
    return memory[start : start + len(array) * dtype.itemsize].view(dtype)


def strings_of(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns the offsets (starting at 0) and the bytes of a flat array of strings."""
    _, offsets, data = array.buffers()
    starts = offsets_of(array, offsets)
    return starts - starts[0], _memory(data)[starts[0] : starts[-1]]


def offsets_of(array: pa.Array, buffer: pa.Buffer | None) -> np.ndarray:
    """Returns the offsets of lists or strings, int64 ``[n + 1]``."""
    if buffer is None or not len(array):
        return np.zeros(1, np.int64)
    return np.frombuffer(buffer, np.int32, len(array) + 1, array.offset * 4).astype(np.int64)


def valid_of(array: pa.Array) -> np.ndarray | None:
    """Returns a mask of the values that are not null, or ``None`` if no value is null."""
    return None if array.null_count == 0 else as_numpy(array.is_valid())


def _memory(buffer: pa.Buffer | None) -> np.ndarray:
    """Returns a received buffer as writable bytes. This is safe because nothing else refers to the received memory."""
    if buffer is None or not buffer.size:
        return np.zeros(0, np.uint8)
    memory = (ctypes.c_uint8 * buffer.size).from_address(buffer.address)
    memory.owner = buffer  # keeps the buffer alive as long as any view of it
    return np.frombuffer(memory, np.uint8)


def _bits(flags: np.ndarray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _validity(valid: np.ndarray | None) -> pa.Buffer | None:
    return None if valid is None else _bits(valid)


def _offsets(offsets: np.ndarray) -> pa.Buffer:
    if len(offsets) and offsets[-1] > _MOST:
        raise EncodeError(
            f"Arrow stream: expected at most {_MOST} values (or bytes of text) of a field in one batch, got "
            f"{int(offsets[-1])}. Use a smaller batch."
        )
    return pa.py_buffer(offsets.astype(np.int32))
