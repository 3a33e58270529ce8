"""Rows of Arrow arrays by number, with as few copies as can be.

In: row numbers, and strings or lists of numbers. Out: flat numpy values of those rows. What always holds: the same as
Arrow's own ``take`` gives.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...schema.arrow_types import scalar_dtype
from .arrow_views import as_arrow, as_numpy


def take_runs(ends: np.ndarray, data: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Some of the runs of bytes that lie end to end in ``data`` (uint8): their own ends (int64, from 0) and bytes."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(ends)), pa.py_buffer(np.ascontiguousarray(data))]
    return _runs(pa.Array.from_buffers(pa.large_binary(), len(ends) - 1, buffers).take(as_arrow(rows)))


def take_spans(values: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Some stretches of a flat array (int64 starts; counts above 0) end to end; two are the same or do not overlap."""
    if not len(starts):
        return values[:0]
    cuts = np.unique(np.concatenate([starts, starts + counts]))
    _, data = take_runs(cuts * values.dtype.itemsize, values.view(np.uint8), np.searchsorted(cuts, starts))
    return data.view(values.dtype)


class NumberLists:
    """Lists of numbers, each row taken as one run of bytes: Arrow itself would take every number by its position."""

    def __init__(self, lists: pa.Array) -> None:
        numbers = lists.values
        self._dtype = np.dtype(scalar_dtype(numbers.type, field=""))
        width = self._dtype.itemsize
        validity, offsets, *_ = lists.buffers()
        ends = np.frombuffer(offsets, np.int64, lists.offset + len(lists) + 1) * width
        data = numbers.buffers()[1]
        empty = data is None or not data.size  # read from a file, an empty buffer may have no address
        data = pa.py_buffer(b"") if empty else data.slice(numbers.offset * width)
        buffers = [validity if lists.null_count else None, pa.py_buffer(ends), data]
        self._runs = pa.Array.from_buffers(pa.large_binary(), len(lists), buffers, offset=lists.offset)

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """The lengths of some rows, their numbers end to end, and which are not null (``None`` = all)."""
        taken = self._runs.take(as_arrow(rows))
        ends, data = _runs(taken)
        valid = None if taken.null_count == 0 else as_numpy(taken.is_valid())
        return np.diff(ends) // self._dtype.itemsize, data.view(self._dtype), valid


def number_lists(lists: pa.Array) -> NumberLists | None:
    """Lists of one level of whole-byte numbers without nulls among them; ``None`` for all others."""
    if not pa.types.is_large_list(lists.type) or len(lists) == 0:
        return None
    numbers = lists.values
    plain = pa.types.is_integer(numbers.type) or pa.types.is_floating(numbers.type)
    return NumberLists(lists) if plain and numbers.null_count == 0 else None


def _runs(taken: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    if len(taken) == 0:
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    ends = np.frombuffer(taken.buffers()[1], np.int64, len(taken) + 1, taken.offset * 8)
    data = taken.buffers()[2]
    raw = np.frombuffer(b"" if data is None else data, np.uint8)[ends[0] : ends[-1]]
    return (ends if ends[0] == 0 else ends - ends[0]), raw
