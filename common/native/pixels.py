"""Normalises the pixels of one image with the compiled core."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np

from .build import library


def normalise(image: np.ndarray, out: np.ndarray, multiply: np.ndarray, subtract: np.ndarray) -> bool:
    """Writes ``float32(image) * multiply - subtract`` into ``out``, each step rounded to float32.

    Args:
        image: uint8 ``[H, W, C]``.
        out: float32 ``[H, W, C]``; the channels may come first in memory.
        multiply: float32 ``[C]``.
        subtract: float32 ``[C]``.

    Returns:
        False if nothing was written: there is no compiled core, or it does not know these dtypes, or the pixels of
        ``image`` do not lie next to each other.
    """
    function = _function()
    fits = image.dtype == np.uint8 and out.dtype == np.float32 and image.shape == out.shape and out.flags.writeable
    factors = multiply.dtype == subtract.dtype == np.float32 and len(multiply) == len(subtract) == image.shape[2]
    contiguous = multiply.flags.c_contiguous and subtract.flags.c_contiguous
    steps, places = image.strides, out.strides
    if function is None or not (fits and factors and contiguous) or steps[1:] != (image.shape[2], 1):
        return False
    if any(stride % 4 for stride in places) or not out.flags.aligned:
        return False
    strides = (steps[0], *(stride // 4 for stride in places))
    described = np.array((image.ctypes.data, out.ctypes.data, *image.shape, *strides), np.int64)  # `Image` in pixels.cc
    function(described.ctypes.data, multiply.ctypes.data, subtract.ctypes.data)
    return True


@lru_cache(maxsize=1)
def _function() -> Any:
    core = library()
    if core is None:
        return None
    function = core.parquetry_normalise
    function.argtypes = [ctypes.c_void_p] * 3
    function.restype = None
    return function
