"""Takes rows of Arrow arrays by number with few copies.

Given row numbers and an array of strings or lists of numbers, it returns the flat numpy values of these rows, equal to
the result of Arrow's own ``take``.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...base.memory.arena import run_memory
from ...base.memory.arrow_views import as_numpy
from ...base.native.kernels import gather_runs
from ...schema.arrow_types import scalar_dtype
from ...schema.ragged import ends_of


def take_runs(ends: np.ndarray, data: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Takes runs by number from ``data`` (uint8), in which runs of bytes lie end to end.

    Returns the ends of the taken runs (int64, beginning with 0) and their bytes.
    """
    return gather_runs(ends, data, rows, run_memory)


class Runs:
    """Strings, byte strings, or lists of numbers, taken with one run of bytes per row. Arrow's own ``take`` would look
    up every number of a list by its index.
    """

    def __init__(self, array: pa.Array) -> None:
        lists = pa.types.is_large_list(array.type)
        values = array.values if lists else array
        self._dtype = np.dtype(scalar_dtype(values.type, field="") if lists else np.uint8)
        width = self._dtype.itemsize
        data = values.buffers()[1 if lists else 2]
        empty = data is None or not data.size  # an empty buffer read from a file may have no address
        raw = np.zeros(0, np.uint8) if empty else np.frombuffer(data, np.uint8)[values.offset * width if lists else 0 :]
        offsets = np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, array.offset * 8)
        ends = offsets * width if lists else offsets
        self._valid = as_numpy(array.is_valid()) if array.null_count else None
        if self._valid is not None and np.diff(ends)[~self._valid].any():  # drop values hidden beneath nulls
            _, raw = take_runs(ends, raw, np.flatnonzero(self._valid))
            ends = ends_of(np.where(self._valid, np.diff(ends), 0))
        self._ends, self._raw = ends, raw

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Returns the ends of the given rows (int64, beginning with 0), their bytes or numbers end to end, and which
        are not null (``None`` = all).
        """
        ends, raw = take_runs(self._ends, self._raw, rows)
        valid = None if self._valid is None else self._valid[rows]
        values = raw.view(self._dtype)
        return ends // self._dtype.itemsize, values, None if valid is None or valid.all() else valid


def runs_of(array: pa.Array) -> Runs | None:
    """Returns the `Runs` of strings, byte strings, or single-level lists of integers or floats without nulls inside;
    ``None`` for other arrays.
    """
    if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type):
        return Runs(array) if len(array) else None
    if not pa.types.is_large_list(array.type) or len(array) == 0:
        return None
    numbers = array.values
    plain = pa.types.is_integer(numbers.type) or pa.types.is_floating(numbers.type)
    return Runs(array) if plain and numbers.null_count == 0 else None
