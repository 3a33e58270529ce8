"""`NestedColumn`: lists of lists in a loaded block, gathered by row number.

It takes an array of lists in canonical form and gathers rows into a `batch.Compound` of the lengths at each level and
the values. A row's entries are contiguous at every level, so each level is gathered by runs of bytes.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...base.memory.arrow_views import as_numpy
from ...schema.field import UnischemaField
from ...schema.ragged import concat_ranges, ends_of
from .arrow_take import take_runs
from .batch import Compound, Ragged, Strings, take_strings
from .list_column import SizeLimit, list_lengths, null_inside, strings_of
from .protocols import DecodeContext


class NestedColumn:
    """Lists of a loaded block. Lists of the outer ``levels`` levels may differ in length.

    Args:
        array: the lists of all rows.
    """

    def __init__(self, field: UnischemaField, array: pa.Array, levels: int, context: DecodeContext) -> None:
        self._field = field
        self._limit = SizeLimit(field, array, context)
        self._describe = context.describe
        self._valid = as_numpy(array.is_valid()) if array.null_count else None
        self._holds_null: np.ndarray | None = None
        self._inner = tuple(int(size or 0) for size in field.shape[levels:])
        self._lengths: list[_Runs] = []
        ends = np.arange(len(array) + 1)
        for level in range(levels):
            lengths = list_lengths(array)
            if level:
                self._lengths.append(_Runs(ends, lengths))
            ends = ends_of(lengths)[ends]
            array = array.flatten()
            self._note_nulls(array, ends)
        self._counts = np.diff(ends)
        for _ in self._inner:
            ends = ends_of(list_lengths(array))[ends]  # a null list has no values, whatever its declared length
            array = array.flatten()
            self._note_nulls(array, ends)
        text = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
        self._values = _Runs(ends, strings_of(array, (len(array),), None) if text else as_numpy(array))

    def _note_nulls(self, array: pa.Array, ends: np.ndarray) -> None:
        """Records which rows contain nulls. ``ends`` bounds the entries of each row."""
        if not array.null_count:
            return
        if self._holds_null is None:
            self._holds_null = np.zeros(len(ends) - 1, np.bool_)
        places = np.flatnonzero(as_numpy(array.is_null()))
        self._holds_null[np.searchsorted(ends, places, side="right") - 1] = True

    def gather(self, rows: np.ndarray, out: np.ndarray | None) -> Compound:
        """As `BlockColumn.gather`.

        Raises:
            DecodeError: a list contains a null, or a value is too large.
        """
        self._limit.check(rows)
        if self._holds_null is not None and self._holds_null[rows].any():
            raise null_inside(self._field, self._describe(int(rows[np.argmax(self._holds_null[rows])])))
        valid = None if self._valid is None or self._valid[rows].all() else self._valid[rows]
        lead = (len(rows),)
        lengths = [Ragged(runs.counts[rows][:, None], runs.take(rows), lead, valid) for runs in self._lengths]
        inner = np.broadcast_to(np.array(self._inner, np.int64), (len(rows), len(self._inner)))
        shapes = np.concatenate([self._counts[rows][:, None], inner], axis=1)
        return Compound((*lengths, Ragged(shapes, self._values.take(rows), lead, valid)))


class _Runs:
    """One run of values per row, end to end."""

    def __init__(self, ends: np.ndarray, values: np.ndarray | Strings) -> None:
        self.counts = np.diff(ends)
        self._begins = ends[:-1]
        self._values = values
        if isinstance(values, np.ndarray):
            self._ends_bytes = ends * values.dtype.itemsize
            self._bytes = np.ascontiguousarray(values).view(np.uint8)

    def take(self, rows: np.ndarray) -> np.ndarray | Strings:
        if isinstance(self._values, Strings):
            return take_strings(self._values, concat_ranges(self._begins[rows], self.counts[rows]))
        return take_runs(self._ends_bytes, self._bytes, rows)[1].view(self._values.dtype)
