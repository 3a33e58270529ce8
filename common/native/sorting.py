"""Sorts uniform random words with the compiled core, in linear time."""

from __future__ import annotations

from ctypes import c_int64, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np

from .build import library

_MOST_WORDS = 1 << 20  # of more words, two are too likely to differ only in the bits that hold a word's number
_MOST_BITS = 18  # more counters do not fit into the processor's cache


def word_order(words: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Returns the ``argsort`` (int64) of uniform random words, or ``None`` if the core cannot tell.

    It cannot tell without the library, for more than a million words, for words that are not uniform, and if two words
    are equal but for their lowest bits.

    Args:
        words: uint64, one axis.
    """
    function = _function() if len(words) <= _MOST_WORDS else None
    if function is None:
        return None
    words = np.ascontiguousarray(words, np.uint64)
    bits = min(max((len(words) - 1).bit_length(), 1), _MOST_BITS)
    ends, numbered = np.empty(1 << bits, np.uint32), np.empty(len(words), np.uint64)
    in_order = function(words.ctypes.data, len(words), bits, ends.ctypes.data, numbered.ctypes.data)
    return numbered.view(np.int64) if in_order else None


@lru_cache(maxsize=1)
def _function() -> Any:
    core = library()
    if core is None:
        return None
    function = core.parquetry_word_order
    function.argtypes = [c_void_p, c_int64, c_int64, c_void_p, c_void_p]
    function.restype = c_int64
    return function
