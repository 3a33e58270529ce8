"""The numbers of elements that an index, a slice or a sample stands for."""

from __future__ import annotations

import operator

import numpy as np

from ..plan.order.permutations import permutation, raw_words

_SAMPLE_KEY = 6


def numbers_of(index: object, length: int | None) -> np.ndarray:
    """Resolves an index to numbers (int64, from 0): a scalar for an integer, otherwise a vector.

    Args:
        index: the value in the brackets: an integer, a slice, or a list of integers or bools.
        length: the number of elements; ``None`` = endless.

    Raises:
        IndexError, TypeError: as for `NumberedElements.__getitem__`.
    """
    if isinstance(index, slice):
        return _sliced(index, length)
    wrong = TypeError(
        f"row numbers: expected an integer, a slice, or a list of integers or bools, got {index!r:.200}. "
        "For several rows write pipeline[[3, 1]]."
    )
    if isinstance(index, str | bytes | tuple | bool | np.bool_):
        raise wrong
    if np.ndim(index) == 0:  # type: ignore[arg-type]  # np.ndim accepts any object
        try:
            number = operator.index(index)  # type: ignore[arg-type]
        except TypeError:
            raise wrong from None
        return np.asarray(_checked(number, length), np.int64)
    values = np.asarray(index)
    if values.dtype == bool:
        if length is None or values.shape != (length,):
            raise IndexError(f"row numbers: expected a mask of {_shown(length)}, got one of shape {values.shape}.")
        return np.flatnonzero(values)
    if values.ndim != 1 or (values.dtype.kind not in "iu" and len(values)):
        raise wrong
    if not len(values):
        return np.zeros(0, np.int64)
    for extreme in (int(values.min()), int(values.max())):
        _checked(extreme, length)
    numbers = values.astype(np.int64)
    return numbers if length is None else np.where(numbers < 0, numbers + length, numbers)


def _checked(number: int, length: int | None) -> int:
    """Converts a number to one that counts from the start; raises `IndexError` if there is no such element."""
    if number < 0 if length is None else not -length <= number < length:
        raise IndexError(f"row {number}: there is no such row in {_shown(length)}.")
    return number + length if number < 0 and length is not None else number


def _sliced(index: slice, length: int | None) -> np.ndarray:
    if length is not None:
        return np.arange(*index.indices(length), dtype=np.int64)
    step = 1 if index.step is None else operator.index(index.step)
    begin, end = (None if bound is None else operator.index(bound) for bound in (index.start, index.stop))
    from_end = any(bound is not None and bound < 0 for bound in (begin, end))
    if from_end or (end if step > 0 else begin) is None:
        raise IndexError(f"rows {index}: there is no such range in {_shown(None)}. Give bounds that count from 0.")
    first, last = (0 if begin is None else begin), (-1 if end is None else end)
    return np.arange(first, last, step, dtype=np.int64)


def _shown(length: int | None) -> str:
    return "a pipeline that repeats forever" if length is None else f"a pipeline of {length}"


def drawn_numbers(length: int, count: int, seed: int) -> np.ndarray:
    """Draws ``count`` different numbers below ``length`` in random order; a pure function of the arguments."""
    if 4 * count >= length:
        return permutation(length, _SAMPLE_KEY, seed)[:count]
    words = 2 * count + 64
    while True:
        drawn = (raw_words(words, _SAMPLE_KEY, seed) % np.uint64(length)).astype(np.int64)
        _, first = np.unique(drawn, return_index=True)
        if len(first) >= count:
            return drawn[np.sort(first)[:count]]
        words *= 2
