"""Loads the library of the compiled core once, at import, declares its functions, and finds addresses of arrays."""

from __future__ import annotations

import ctypes
import logging
from ctypes import c_char_p, c_int64, c_void_p
from typing import Any

import numpy as np
import pyarrow as pa

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
    "normalize": (None, _POINTER, _POINTER, _POINTER),
    "check_footer": (_NUMBER, _TEXT, _NUMBER, _NUMBER, _NUMBER),
    "row_groups": (_NUMBER, _TEXT, _NUMBER, _NUMBER, _POINTER),
    "longest_value": (_NUMBER, _TEXT, _NUMBER),
    "decode_chunks": (None, _POINTER, _NUMBER, _NUMBER, _NUMBER, _TEXT, _POINTER, _POINTER),
    "find_cells": (_NUMBER, _POINTER, _TEXT, _POINTER),
    "read_pages": (None, _NUMBER, _POINTER, _NUMBER, _POINTER, _POINTER, _NUMBER),
    "checksum": (_NUMBER, _TEXT, _NUMBER),
    "jpeg_library": (_POINTER, _TEXT),
    "jpeg_parts": (None, _POINTER, _POINTER, _NUMBER, _POINTER, _POINTER),
}
"""What each function of the library returns, and what it takes."""

_logger = logging.getLogger(__name__)


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
