"""Converts Arrow arrays to numpy arrays and back through their buffers, without importing pandas, and tables to bytes.

The arrays equal those of ``Array.to_numpy(zero_copy_only=False)``, ``pa.array`` and ``fill_null``. Arrow's own
functions import pandas if it is installed, which takes longer than everything else that a worker does before its first
batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..process.forks import importing

_NUMBERS = {
    getattr(pa, name)(): np.dtype(name)
    for name in (
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}


_NUMBER_IDS = {kind.id for kind in _NUMBERS}


def is_number(arrow: pa.DataType) -> bool:
    """Returns whether a type is an integer or float type, which numpy supports directly."""
    return arrow.id in _NUMBER_IDS


def is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or kind == pa.binary_view()
    )


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view())


def is_list(kind: pa.DataType) -> bool:
    """Whether the type is any of Arrow's list types."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def value_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values in lists of any depth; that of other columns is their own."""
    return value_type(kind.value_type) if is_list(kind) else kind


def number_dtype(arrow: pa.DataType) -> np.dtype[Any]:
    """Returns the dtype of an integer or float type."""
    return _NUMBERS[arrow]


def as_numpy(array: pa.Array | pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """Returns the values as a numpy array. For numbers without nulls in one chunk, this is a read-only view."""
    dtype = _NUMBERS.get(array.type)
    if array.null_count or not (dtype or pa.types.is_boolean(array.type)):  # times, strings and so on
        return _by_arrow(array)
    if isinstance(array, pa.ChunkedArray):
        parts = [as_numpy(chunk) for chunk in array.chunks]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, dtype or np.bool_), *parts])
    if dtype is None:
        return _truths(array)
    if not len(array):
        return np.empty(0, dtype)  # an empty buffer may have no address
    data = array.buffers()[1]
    if data is None or data.size < (array.offset + len(array)) * dtype.itemsize:  # can be the offsets of zero lists
        return _by_arrow(array)
    values = np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)
    values.flags.writeable = False
    return values


_arrow_has_converted = False


def _by_arrow(array: pa.Array | pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """Arrow's own conversion. In its first call in a process, Arrow imports pandas. Forks wait until that is done."""
    global _arrow_has_converted
    if _arrow_has_converted:
        return np.asarray(array)
    with importing():
        result = np.asarray(array)
        _arrow_has_converted = True
    return result


def as_arrow(numbers: np.ndarray[Any, Any], valid: np.ndarray[Any, Any] | None = None) -> pa.Array:
    """Converts a one-axis array of numbers in native byte order. The result is a view if the array is contiguous.

    Args:
        valid: bool, one for each number; false makes it null.
    """
    flat = np.ascontiguousarray(numbers)
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(flat.dtype), len(flat), [bits, pa.py_buffer(flat)])


def texts_as_arrow(texts: Sequence[str | None]) -> pa.Array:
    """Converts texts to an Arrow array of strings; ``None`` is null."""
    parts = [b"" if text is None else text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    present = np.packbits([text is not None for text in texts], bitorder="little") if None in texts else None
    buffers = [None if present is None else pa.py_buffer(present), pa.py_buffer(ends), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(pa.large_string(), len(parts), buffers).cast(pa.string())


def without_nulls(array: pa.Array) -> pa.Array:
    """Replaces nulls by 0 in numbers, and by empty values in strings or byte strings (with 64-bit offsets)."""
    if not array.null_count:
        return array
    buffers = [None, pa.py_buffer(bytes(16)), pa.py_buffer(b"")]  # 0, or the offsets of an empty string
    number = array.type in _NUMBERS
    nothing = pa.Array.from_buffers(array.type, 1, buffers[:2] if number else buffers)
    return array.fill_null(nothing[0])


def _truths(array: pa.Array) -> np.ndarray[Any, Any]:
    if not len(array):
        return np.empty(0, np.bool_)
    first, end = array.offset, array.offset + len(array)
    packed = np.frombuffer(array.buffers()[1], np.uint8)[first // 8 : -(-end // 8)]
    return np.unpackbits(packed, count=end - first // 8 * 8, bitorder="little")[first % 8 :].view(np.bool_)


def write_stream(sink: pa.NativeFile, table: pa.Table) -> None:
    """Writes a table as an Arrow IPC stream. `from_stream` is the inverse.

    Raises:
        OSError: the disk is full.
        pa.ArrowException: Arrow IPC does not support a column's type.
    """
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def stream_bytes(table: pa.Table) -> int:
    """Returns how many bytes `write_stream` writes for a table."""
    sink = pa.MockOutputStream()
    write_stream(sink, table)
    return int(sink.size())


def to_stream(table: pa.Table) -> pa.Buffer:
    """Returns a table as an Arrow IPC stream in memory."""
    sink = pa.BufferOutputStream()
    write_stream(sink, table)
    return sink.getvalue()


def from_stream(source: pa.Buffer | pa.NativeFile | bytes) -> pa.Table:
    """Returns the table of an Arrow IPC stream. Its columns point into a source in memory. Offsets are not checked.

    Raises:
        pa.ArrowException, OSError: the bytes are not such a stream.
    """
    return pa.ipc.open_stream(source).read_all()
