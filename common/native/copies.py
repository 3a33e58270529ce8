"""Copies large values into batches, with the compiled core around the processor's cache."""

from __future__ import annotations

from ctypes import c_int64, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np

from .build import library

_LARGE_BYTES = 1 << 16  # smaller values may still be in the cache when they are read


def copy_value(value: np.ndarray, out: np.ndarray) -> None:
    """Copies ``value`` into ``out``, as ``out[...] = value`` does. The two must not overlap.

    A large value is copied around the cache, which is up to twice as fast: batches of such values do not fit into the
    cache anyway.
    """
    copy = _function() if out.nbytes >= _LARGE_BYTES else None
    same = value.dtype == out.dtype and value.shape == out.shape and not out.dtype.hasobject
    if copy is None or not (same and value.flags.c_contiguous and out.flags.c_contiguous and out.flags.writeable):
        out[...] = value
        return
    copy(out.ctypes.data, value.ctypes.data, out.nbytes)


@lru_cache(maxsize=1)
def _function() -> Any:
    core = library()
    if core is None:
        return None
    function = core.parquetry_copy_around_cache
    function.argtypes = [c_void_p, c_void_p, c_int64]
    function.restype = None
    return function
