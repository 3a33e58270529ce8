"""Kernels on values, compiled, and by other libraries: copies, checksums, the order of random words, Python's texts."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Sequence
from ctypes import c_int64, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from ..memory.arrow_views import as_numpy
from .library import CORE, address_of

_LARGE_BYTES = 1 << 16  # smaller values may still be in the cache when they are read
_MOST_WORDS = 1 << 20  # of more words, two are too likely to differ only in the bits that hold a word's number
_MOST_BITS = 18  # more counters do not fit into the processor's cache
_PYTHON_FUNCTIONS = (
    "PyList_New",
    "PyList_SetItem",
    "PyUnicode_DecodeUTF8",
    "PyBytes_FromStringAndSize",
    "Py_IncRef",
    "Py_DecRef",
)


def copy_value(value: np.ndarray, out: np.ndarray, rows: Sequence[int]) -> None:
    """Copies ``value`` into some rows of ``out``, as ``out[rows] = value`` does. The two must not overlap.

    Copies of a large value bypass the cache, which is up to twice as fast: batches of such values do not fit into the
    cache anyway.

    Args:
        rows: numbers of rows, at least 0 and less than ``len(out)``.
    """
    same = value.dtype == out.dtype and value.shape == out.shape[1:] and not out.dtype.hasobject
    large = same and value.nbytes >= _LARGE_BYTES
    if not (large and value.flags.c_contiguous and out.flags.c_contiguous and out.flags.writeable):
        copy_value_by_numpy(value, out, rows)
        return
    numbers = np.array(rows, np.int64)
    CORE.parquetry_copy_to_rows(address_of(out), address_of(value), value.nbytes, address_of(numbers), len(numbers))


def copy_value_by_numpy(value: np.ndarray, out: np.ndarray, rows: Sequence[int]) -> None:
    """Does what `copy_value` does, for any dtypes and layouts."""
    for row in rows:
        out[row, ...] = value


def crc32(data: bytes | memoryview, before: int = 0) -> int:
    """Returns the CRC-32 of bytes as zlib computes it, many times as fast.

    Args:
        before: the CRC-32 of the bytes that these follow.
    """
    view = memoryview(data)
    return int(CORE.parquetry_checksum(address_of(view), view.nbytes, before))


def crc32_by_zlib(data: bytes | memoryview, before: int = 0) -> int:
    """Does what `crc32` does."""
    return zlib.crc32(data, before)


def word_order(words: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Returns the ``argsort`` (int64) of random 64-bit words in a fraction of its time, or ``None`` if it cannot tell.

    It cannot tell if two words are equal except for their lowest bits.

    Args:
        words: uint64, one axis.
    """
    order = _uniform_order(words) if len(words) <= _MOST_WORDS else None
    return word_order_by_numpy(words) if order is None else order


def word_order_by_numpy(words: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Does what `word_order` does, but gives up sooner.

    The lowest bits of each word are replaced by its index, so sorting the words also sorts the indices.
    """
    low = np.uint64((1 << (len(words) - 1).bit_length()) - 1)
    numbered = words & ~low
    numbered |= np.arange(len(words), dtype=np.uint64)
    numbered.sort()
    if ((numbered[1:] ^ numbered[:-1]) <= low).any():  # the replaced bits might decide the order
        return None
    numbered &= low
    return numbered.view(np.int64)


def _uniform_order(words: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Returns the order of words, ``None`` if they are not uniform or the core cannot tell."""
    words = np.ascontiguousarray(words, np.uint64)
    bits = min(max((len(words) - 1).bit_length(), 1), _MOST_BITS)
    ends, numbered = np.empty(1 << bits, np.uint32), np.empty(len(words), np.uint64)
    pointers = address_of(words), len(words), bits, address_of(ends), address_of(numbered)
    return numbered.view(np.int64) if CORE.parquetry_word_order(*pointers) else None


def objects(offsets: np.ndarray, data: np.ndarray, valid: np.ndarray | None, *, text: bool) -> list[Any]:
    """Returns a list of ``str`` or ``bytes``, with ``None`` for nulls.

    Arrow does it at about the same speed, but its first conversion in a process imports pandas if that is installed,
    which takes longer than everything else that a worker does before its first batch.

    Args:
        offsets: int64 ``[N + 1]``; run ``i`` lies between ``offsets[i]`` and ``offsets[i + 1]``.
        data: uint8, which holds all runs.
        valid: bool ``[N]``.
        text: whether the runs are UTF-8.

    Raises:
        UnicodeDecodeError: a run is not UTF-8.
    """
    make, python = _maker()
    offsets, data = np.ascontiguousarray(offsets, np.int64), np.ascontiguousarray(data)
    present = None if valid is None else np.ascontiguousarray(valid, np.bool_)
    values: list[Any] = make(
        python,
        address_of(offsets),
        address_of(data),
        None if present is None else address_of(present),
        len(offsets) - 1,
        text,
    )
    return values


def objects_by_arrow(offsets: np.ndarray, data: np.ndarray, valid: np.ndarray | None, *, text: bool) -> list[Any]:
    """Does what `objects` does."""
    buffers = [None, *(pa.py_buffer(np.ascontiguousarray(part)) for part in (offsets, data))]
    kind = pa.large_string() if text else pa.large_binary()
    try:
        values = as_numpy(pa.Array.from_buffers(kind, len(offsets) - 1, buffers)).astype(object)
    except pa.ArrowException:  # a run that is not UTF-8, maybe of a null
        stored = objects_by_arrow(offsets, data, valid, text=False)
        return [None if value is None else value.decode() for value in stored]
    if valid is not None:
        values[~valid] = None
    return values.tolist()  # type: ignore[no-any-return]  # of numpy


@lru_cache(maxsize=1)
def _maker() -> tuple[Any, Any]:
    """Returns the core's function, which is called with the interpreter lock, and Python's functions for it."""
    make = ctypes.PyDLL(CORE._name).parquetry_objects
    make.restype, make.argtypes = ctypes.py_object, (c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int64)
    addresses = [ctypes.cast(getattr(ctypes.pythonapi, name), c_void_p).value for name in _PYTHON_FUNCTIONS]
    return make, (c_void_p * (len(_PYTHON_FUNCTIONS) + 1))(*addresses, id(None))
