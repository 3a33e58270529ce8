"""Parses the header of a ``.npy`` byte string, once per distinct header.

Follows numpy's NPY format specification, versions 1.0 to 3.0 (``numpy.lib.format``). Nothing is ever unpickled: object
arrays are refused.
"""

from __future__ import annotations

import io
import math
import re
from functools import lru_cache
from tokenize import TokenError
from typing import Any

import numpy as np

from ..base.process.dataclass import dataclass
from .image_files import is_image_file

_MAGIC = b"\x93NUMPY"
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
_MOST_HEADER_BYTES = 1 << 16
_NO_HEADER = (TypeError, SyntaxError, TokenError, RecursionError, MemoryError, KeyError, AttributeError, OverflowError)
"""The exceptions besides ``ValueError`` that numpy's reader raises for an invalid header. A `MemoryError` is that of
Python's parser, for a deeply nested one.
"""
_PLAIN = re.compile(rb"\{'descr': '([^'\\]+)', 'fortran_order': (True|False), 'shape': \(([0-9, ]*)\), \}\s*")
"""The header that numpy writes for all but structured dtypes. numpy's own reader would compile it, which is not safe in
several threads on CPython 3.11 (python/cpython#106905).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NpyHeader:
    """A parsed ``.npy`` header. ``data_offset`` is in bytes from the start of the byte string."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    data_offset: int

    @property
    def data_bytes(self) -> int:
        """The size of the array data in bytes."""
        return self.dtype.itemsize * math.prod(self.shape)


def npy_header(data: memoryview, size_bytes: int | None = None) -> NpyHeader:
    """Parses the header at the start of ``data``.

    Args:
        size_bytes: the total number of bytes, if ``data`` is only the beginning.

    Raises:
        ValueError: the data is not NPY, holds an object array, or is shorter than the header promises.
    """
    if bytes(data[:6]) != _MAGIC or len(data) < 10:  # bytes(), because Arrow buffers have signed bytes
        hint = ". For image files, give the field a CompressedImageCodec" if is_image_file(data) else ""
        raise ValueError(f"expected .npy bytes, got {bytes(data[:8])!r}{hint}")
    version = data[6]
    length_bytes = _LENGTH_BYTES.get(version)
    if length_bytes is None:
        raise ValueError(f"expected .npy format version 1 to 3, got {version}")
    offset = 8 + length_bytes + int.from_bytes(bytes(data[8 : 8 + length_bytes]), "little")
    if offset > _MOST_HEADER_BYTES:
        raise ValueError(f"expected a .npy header of at most {_MOST_HEADER_BYTES} bytes, got {offset}")
    header = _parse(bytes(data[:offset]), 8 + length_bytes)
    there = (len(data) if size_bytes is None else size_bytes) - header.data_offset
    if there < header.data_bytes:
        raise ValueError(f"expected {header.data_bytes} bytes of {header.dtype} {header.shape}, got {there}")
    return header


@lru_cache(maxsize=1024)
def _parse(header: bytes, begin: int) -> NpyHeader:
    if plain := _PLAIN.fullmatch(header, begin):
        shape = tuple(int(axis) for axis in plain[3].split(b",") if axis.strip())
        fortran_order = plain[2] == b"True"
        try:
            dtype = np.dtype(plain[1].decode("latin1"))
        except (TypeError, SyntaxError, MemoryError, OverflowError, RecursionError) as error:
            raise ValueError(f"expected a .npy header with a dtype, got {error}") from None
    else:
        stream = io.BytesIO(header)
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        try:
            shape, fortran_order, dtype = read(stream)
        except _NO_HEADER as error:
            raise ValueError(f"expected a .npy header, got {type(error).__name__}: {error}") from None
    if dtype.hasobject:
        raise ValueError("expected an array of plain values, got pickled objects, which are never loaded")
    if any(axis < 0 for axis in shape):
        raise ValueError(f"expected axes >= 0, got shape {shape}")
    return NpyHeader(dtype=dtype, shape=shape, fortran_order=fortran_order, data_offset=len(header))


def npy_array(data: memoryview) -> np.ndarray:
    """Returns a read-only view of the array in ``data``, without a copy."""
    header = npy_header(data)
    count = math.prod(header.shape)
    flat = np.frombuffer(data, dtype=header.dtype, count=count, offset=header.data_offset)
    return flat.reshape(header.shape, order="F" if header.fortran_order else "C")
