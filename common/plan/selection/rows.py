"""`RowSet`: the selected rows of each row group, as a few numpy arrays.

Row groups that are selected whole store no row numbers. Positions number the selected rows from 0 in storage order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...base.process.dataclass import dataclass
from ...schema.ragged import ends_of
from .growing_rows import RowNumbers as RowNumbers
from .growing_rows import joined
from .growing_rows import rows_between as rows_between


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSet:
    """The selected rows of a dataset.

    Attributes:
        before: int64 ``[row_groups + 1]``: selected rows before each row group; the last entry is the total.
        whole: bool ``[row_groups]``: whether every row of the row group is selected.
        start: int64 ``[row_groups]``: where the row numbers of a row group begin in ``values``, unless it is whole.
        values: int32: row numbers within their row groups, ascending.
    """

    before: np.ndarray
    whole: np.ndarray
    start: np.ndarray
    values: np.ndarray

    @property
    def total(self) -> int:
        """The number of selected rows."""
        return int(self.before[-1])

    @property
    def counts(self) -> np.ndarray:
        """The number of selected rows of each row group, int64 ``[row_groups]``."""
        return np.diff(self.before)

    def of(self, row_group: int) -> np.ndarray:
        """Returns the selected rows of one row group, ascending int64."""
        return np.asarray(self.numbers(row_group), np.int64)

    def numbers(self, row_group: int) -> RowNumbers:
        """Returns the selected rows of one row group without a copy: a range if it is selected whole, or else int32."""
        count = int(self.before[row_group + 1] - self.before[row_group])
        if self.whole[row_group]:
            return range(count)
        first = int(self.start[row_group])
        return self.values[first : first + count]

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Maps positions (int64) to ``(row_group, row)``."""
        row_group = np.searchsorted(self.before, positions, side="right") - 1
        row = positions - self.before[row_group]
        partial = ~self.whole[row_group]
        if partial.any():
            row = row.copy()
            row[partial] = self.values[self.start[row_group[partial]] + row[partial]]
        return row_group, row

    def place(self, position: int) -> tuple[int, int]:
        """Returns the row group of one position, and the row in it."""
        row_group, row = self.locate(np.array([position]))
        return int(row_group[0]), int(row[0])

    def replace(self, rows: Mapping[int, np.ndarray | None]) -> RowSet:
        """Returns a copy with other rows for the given row groups. ``None`` keeps a row group unchanged."""
        counts = self.counts
        whole = self.whole.copy()
        start = self.start.copy()
        pieces = [self.values]
        end = len(self.values)
        for row_group, chosen in rows.items():
            if chosen is None:
                continue
            if len(chosen) != counts[row_group]:
                whole[row_group] = False
                start[row_group] = end
                end += len(chosen)
                pieces.append(chosen.astype(np.int32, copy=False))
                counts[row_group] = len(chosen)
        return _row_set(counts, whole, start, joined(pieces))

    def keep_row_groups(self, keep: np.ndarray) -> RowSet:
        """Returns a copy without the rows of the row groups where ``keep`` (bool ``[row_groups]``) is False."""
        return _row_set(np.where(keep, self.counts, 0), self.whole & keep, self.start, self.values)

    def slice(self, first: int, stop: int | None) -> RowSet:
        """Returns the rows at positions ``first .. stop``."""
        stop = self.total if stop is None else min(stop, self.total)
        first = min(first, stop)
        lo = np.clip(first - self.before[:-1], 0, self.counts)
        hi = np.clip(stop - self.before[:-1], 0, self.counts)
        cut = {
            int(row_group): self.of(int(row_group))[lo[row_group] : hi[row_group]]
            for row_group in np.flatnonzero((hi > lo) & (hi - lo < self.counts))
        }
        return self.keep_row_groups(hi > lo).replace(cut)

    def row_groups(self, numbers: np.ndarray) -> RowSet:
        """Returns the rows of the given row groups, renumbered from 0."""
        counts, whole = self.counts[numbers], self.whole[numbers]
        pieces = [self.of(int(row_group)) for row_group in numbers[~whole]]
        start = np.zeros(len(numbers), dtype=np.int64)
        start[~whole] = np.cumsum([0, *(len(piece) for piece in pieces)])[:-1]
        values = np.concatenate([np.zeros(0, dtype=np.int32), *pieces]).astype(np.int32)
        return _row_set(counts, whole, start, values)


def rows_inside(parts: Sequence[RowNumbers], places: np.ndarray) -> np.ndarray:
    """Returns the row numbers at some places (int64) of the given parts, laid end to end."""
    ranges = [part for part in parts if isinstance(part, range)]
    if len(ranges) < len(parts):
        listed = [np.asarray(part, np.int64) for part in parts]
        return np.take(listed[0] if len(listed) == 1 else np.concatenate(listed), places)
    ends = np.cumsum([len(part) for part in ranges], dtype=np.int64)
    shift = np.array([part.stop for part in ranges], np.int64) - ends
    result: np.ndarray = places + shift[np.searchsorted(ends, places, side="right")]
    return result


def all_rows(rows_per_row_group: np.ndarray) -> RowSet:
    """Selects every row of every row group."""
    row_groups = len(rows_per_row_group)
    return _row_set(
        rows_per_row_group,
        np.ones(row_groups, dtype=bool),
        np.zeros(row_groups, dtype=np.int64),
        np.zeros(0, dtype=np.int32),
    )


def _row_set(counts: np.ndarray, whole: np.ndarray, start: np.ndarray, values: np.ndarray) -> RowSet:
    before = ends_of(counts)
    return RowSet(before=before, whole=whole, start=start, values=values)
