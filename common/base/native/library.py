"""Loads the library of the compiled core once, at import, declares its functions, and finds addresses of arrays.

It also finds Zstandard's own library, with which the core decompresses pages: the system's, or Pillow's. Python
packages of Arrow contain one, too, but do not export it.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from ctypes import c_char_p, c_int64, c_void_p
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..process.forks import importing
from .build import is_wanted, library_path
from .compiler import has_content

_POINTER, _NUMBER, _TEXT = c_void_p, c_int64, c_char_p
_FUNCTIONS = {
    "gather": (_NUMBER, _POINTER, _NUMBER, _NUMBER, _POINTER, _NUMBER, _POINTER, _NUMBER, _NUMBER),
    "narrow": (_NUMBER, _POINTER, _NUMBER, _NUMBER, _POINTER),
    "run_ends": (_NUMBER, _POINTER, _NUMBER, _NUMBER, _POINTER, _NUMBER, _POINTER),
    "runs": (None, _POINTER, _POINTER, _NUMBER, _POINTER, _NUMBER, _POINTER, _POINTER),
    "pieces": (_NUMBER, _POINTER, _POINTER, _POINTER, _NUMBER, _POINTER, _NUMBER, _POINTER, _NUMBER, _NUMBER),
    "pad": (_NUMBER, _POINTER, _POINTER, _POINTER, _NUMBER, _POINTER, _NUMBER, _NUMBER, _POINTER, _POINTER),
    "copy_to_rows": (None, _POINTER, _POINTER, _NUMBER, _POINTER, _NUMBER),
    "word_order": (_NUMBER, _POINTER, _NUMBER, _NUMBER, _POINTER, _POINTER),
    "finish_image": (_NUMBER, _POINTER, _POINTER, _POINTER),
    "resize_numbers": (_NUMBER, _POINTER, *(_NUMBER,) * 3, _POINTER, *(_NUMBER,) * 4),
    "check_footer": (_NUMBER, _TEXT, _NUMBER, _NUMBER, _NUMBER),
    "footer_fields": (_NUMBER, _TEXT, _NUMBER, _POINTER),
    "cut_row_groups": (_NUMBER, _TEXT, *(_NUMBER,) * 4, _TEXT, _NUMBER, _POINTER, _NUMBER, _POINTER, _POINTER),
    "chunk_facts": (_NUMBER, _TEXT, _NUMBER, _NUMBER, _POINTER),
    "longest_value": (_NUMBER, _TEXT, _NUMBER),
    "decode_chunks": (None, _POINTER, _NUMBER, _NUMBER, _NUMBER, _TEXT, _POINTER, _POINTER),
    "find_cells": (_NUMBER, _POINTER, _TEXT, _POINTER),
    "locate_cells": (_NUMBER, _POINTER, _NUMBER),
    "read_pages": (None, _NUMBER, _POINTER, _NUMBER, _POINTER, _POINTER, _NUMBER),
    "checksum": (_NUMBER, _POINTER, _NUMBER, _NUMBER),
    "jpeg_library": (_POINTER, _TEXT),
    "jpeg_parts": (None, _POINTER, _POINTER, _NUMBER, _POINTER, _POINTER),
}
"""What each function of the library returns, and what it takes."""

_logger = logging.getLogger(__name__)
_FRAME = bytes.fromhex("28b52ffd200421000070617271")
"""The bytes ``parq``, compressed."""


def _load() -> Any:
    """Returns the library, or ``None`` if it is missing, disabled, or cannot be loaded."""
    path = library_path()
    if not is_wanted() or not has_content(path):
        return None
    try:
        loaded = ctypes.CDLL(str(path))  # its functions run without the interpreter lock
    except OSError as error:
        _logger.warning("'%s' cannot be loaded (%s): numpy does its work more slowly", path, error)
        return None
    for name, (returned, *taken) in _FUNCTIONS.items():
        function = getattr(loaded, f"parquetry_{name}")
        function.restype, function.argtypes = returned, taken
    return loaded


CORE = _load()
"""The library, as a `ctypes.CDLL`; ``None`` without it. `kernels` chooses what works without it."""


def is_compiled() -> bool:
    """Returns whether the compiled core is used."""
    return CORE is not None


def address_of(array: np.ndarray[Any, Any] | memoryview) -> int:
    """Returns the address of an array's first byte."""
    try:
        return int(pa.py_buffer(array).address)  # five times as fast as numpy's own ways
    except (BufferError, ValueError, TypeError, pa.ArrowException):  # rows that are apart from each other, or times
        return int(np.asarray(array).ctypes.data)


@lru_cache(maxsize=1)
def zstd_functions() -> tuple[int, int]:
    """Returns the addresses of ``ZSTD_decompress`` and ``ZSTD_findFrameCompressedSize``; zeros without it."""
    with importing():
        for path in _zstd_libraries():
            try:
                library = ctypes.CDLL(path)
                decompress, frame_size = library.ZSTD_decompress, library.ZSTD_findFrameCompressedSize
            except (OSError, AttributeError):
                continue
            decompress.restype = frame_size.restype = ctypes.c_size_t
            decompress.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
            frame_size.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
            out, size = ctypes.create_string_buffer(4), len(_FRAME)
            if frame_size(_FRAME, size) == size and decompress(out, 4, _FRAME, size) == 4 and out.raw == b"parq":
                return _address(decompress), _address(frame_size)
    return 0, 0


def has_zstd() -> bool:
    """Returns whether Zstandard's library was found."""
    return zstd_functions()[0] != 0


def _address(function: ctypes._FuncPointer) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _zstd_libraries() -> Iterator[str]:
    yield "libzstd.so.1"
    spec = find_spec("PIL")
    if spec is not None and spec.origin is not None:
        yield from map(str, sorted((Path(spec.origin).parents[1] / "pillow.libs").glob("libzstd-*.so*")))
