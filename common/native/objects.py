"""Makes Python texts and byte strings from runs of bytes, with the compiled core.

Arrow does the same at about the same speed, but its first conversion in a process imports pandas if that is installed,
which takes longer than everything else that a worker does before its first batch.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np

from .library import address_of, library

_FUNCTIONS = (
    "PyList_New",
    "PyList_SetItem",
    "PyUnicode_DecodeUTF8",
    "PyBytes_FromStringAndSize",
    "Py_IncRef",
    "Py_DecRef",
)


def objects(offsets: np.ndarray, data: np.ndarray, valid: np.ndarray | None, *, text: bool) -> list[Any] | None:
    """Returns a list of ``str`` or ``bytes``, with ``None`` for nulls; or ``None`` without the compiled core.

    Args:
        offsets: int64 ``[N + 1]``; run ``i`` lies between ``offsets[i]`` and ``offsets[i + 1]``.
        data: uint8, which holds all runs.
        valid: bool ``[N]``.
        text: whether the runs are UTF-8.

    Raises:
        UnicodeDecodeError: a run is not UTF-8.
    """
    core = library()
    if core is None:
        return None
    make, python = _maker(core)
    offsets, data = np.ascontiguousarray(offsets, np.int64), np.ascontiguousarray(data)
    present = None if valid is None else np.ascontiguousarray(valid, np.bool_)
    result: list[Any] = make(
        python,
        address_of(offsets),
        address_of(data),
        None if present is None else address_of(present),
        len(offsets) - 1,
        text,
    )
    return result


@lru_cache(maxsize=1)
def _maker(core: ctypes.CDLL) -> tuple[Any, Any]:
    """Returns the core's function, which is called with the interpreter lock, and Python's functions for it."""
    make = ctypes.PyDLL(core._name).parquetry_objects
    make.restype, make.argtypes = ctypes.py_object, (c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int64)
    addresses = [ctypes.cast(getattr(ctypes.pythonapi, name), c_void_p).value for name in _FUNCTIONS]
    return make, (c_void_p * (len(_FUNCTIONS) + 1))(*addresses, id(None))
