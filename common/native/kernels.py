"""Small kernels of the compiled core: copies large values, sorts random words, and normalizes pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .library import address_of, library

_LARGE_BYTES = 1 << 16  # smaller values may still be in the cache when they are read
_MOST_WORDS = 1 << 20  # of more words, two are too likely to differ only in the bits that hold a word's number
_MOST_BITS = 18  # more counters do not fit into the processor's cache


def copy_value(value: np.ndarray, out: np.ndarray, rows: Sequence[int]) -> None:
    """Copies ``value`` into some rows of ``out``, as ``out[rows] = value`` does. The two must not overlap.

    Copies of a large value bypass the cache, which is up to twice as fast: batches of such values do not fit into the
    cache anyway.

    Args:
        rows: numbers of rows, at least 0 and less than ``len(out)``.
    """
    core = library() if value.nbytes >= _LARGE_BYTES else None
    same = value.dtype == out.dtype and value.shape == out.shape[1:] and not out.dtype.hasobject
    if core is None or not (same and value.flags.c_contiguous and out.flags.c_contiguous and out.flags.writeable):
        for row in rows:
            out[row, ...] = value
        return
    numbers = np.array(rows, np.int64)
    core.parquetry_copy_to_rows(address_of(out), address_of(value), value.nbytes, address_of(numbers), len(numbers))


def word_order(words: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Returns the ``argsort`` (int64) of uniform random words, or ``None`` if the core cannot tell.

    It cannot tell without the library, for more than a million words, for words that are not uniform, and if two words
    are equal except for their lowest bits.

    Args:
        words: uint64, one axis.
    """
    core = library() if len(words) <= _MOST_WORDS else None
    if core is None:
        return None
    words = np.ascontiguousarray(words, np.uint64)
    bits = min(max((len(words) - 1).bit_length(), 1), _MOST_BITS)
    ends, numbered = np.empty(1 << bits, np.uint32), np.empty(len(words), np.uint64)
    pointers = address_of(words), len(words), bits, address_of(ends), address_of(numbered)
    return numbered.view(np.int64) if core.parquetry_word_order(*pointers) else None


def normalize(image: np.ndarray, out: np.ndarray, multiply: np.ndarray, subtract: np.ndarray) -> bool:
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
    core = library()
    fits = image.dtype == np.uint8 and out.dtype == np.float32 and image.shape == out.shape and out.flags.writeable
    factors = multiply.dtype == subtract.dtype == np.float32 and len(multiply) == len(subtract) == image.shape[2]
    contiguous = multiply.flags.c_contiguous and subtract.flags.c_contiguous
    steps, places = image.strides, out.strides
    if core is None or not (fits and factors and contiguous) or steps[1:] != (image.shape[2], 1):
        return False
    if any(stride % 4 for stride in places) or not out.flags.aligned:
        return False
    strides = (steps[0], *(stride // 4 for stride in places))
    described = np.array((address_of(image), address_of(out), *image.shape, *strides), np.int64)  # `Image` in pixels.cc
    core.parquetry_normalize(address_of(described), address_of(multiply), address_of(subtract))
    return True
