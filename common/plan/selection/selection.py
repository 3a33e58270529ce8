"""`Selection`: the rows, or windows, that a pipeline has selected so far, with a `Report` of each step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...base.process.dataclass import dataclass
from .refused import NOTHING_REFUSED, RefusedRows
from .rows import RowSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The effect of one selection step, for `explain`.

    Attributes:
        step: the stage in words.
        row_groups: the row groups before the step; ``pruned`` of them were excluded, ``proven`` kept without a read.
        read: the row groups whose predicate columns were read, with ``read_bytes`` stored bytes in total.
        rows_before, rows_after: the number of rows (or windows) before and after the step.
        pruned_by: what excluded the pruned row groups, in words.
        note: what the user should know about the result, as a sentence.
    """

    step: str
    row_groups: int
    pruned: int = 0
    proven: int = 0
    read: int = 0
    read_bytes: int = 0
    rows_before: int
    rows_after: int
    pruned_by: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The exact rows or windows that a pipeline reads.

    Attributes:
        rows: the selected rows.
        starts: for windows, the positions of their first rows (among the selected rows), int64; ``None`` for rows.
        steps: the offsets of a window's steps from its first row, int64; ``[0]`` for rows.
        reports: the effect of each step.
        matched: the number of items before any ``take`` or ``skip``.
        measured: one number per selected row, if a stage needs it (`stages.measure`).
        refused: rows that are left out because they cannot be measured.
    """

    rows: RowSet
    starts: np.ndarray | None
    steps: np.ndarray
    reports: tuple[Report, ...]
    matched: int
    measured: np.ndarray | None = None
    refused: RefusedRows = NOTHING_REFUSED

    @property
    def num_items(self) -> int:
        """The number of selected rows or windows."""
        return self.rows.total if self.starts is None else len(self.starts)

    @property
    def items_before(self) -> np.ndarray:
        """The number of items that begin before each row group, int64 ``[row_groups + 1]``."""
        if self.starts is None:
            return self.rows.before
        return np.searchsorted(self.starts, self.rows.before, side="left")

    def item_rows(self, items: np.ndarray) -> np.ndarray:
        """Returns the row positions of items, ``[items, T]``."""
        first = items if self.starts is None else self.starts[items]
        result: np.ndarray = first[:, None] + self.steps
        return result

    def slice(self, first: int, stop: int | None) -> Selection:
        """Returns the items ``first .. stop``."""
        if self.starts is None:
            return replace(self, rows=self.rows.slice(first, stop))
        return replace(self, starts=self.starts[first:stop])
