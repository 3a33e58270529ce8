"""`Selection`: the rows, or windows, that a pipeline has selected so far, with a `Report` of each step. `StoredRows`:
where the steps find stored columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ...base.memory.arrow_views import as_arrow
from ...base.process.dataclass import dataclass
from ...dataset.dataset import StoredDataset
from ...parquet.nested import take_rows
from ...schema.field import UnischemaField
from ...stages.where import WhereFunction
from .refused import NOTHING_REFUSED, RefusedRows
from .rows import RowSet, rows_between
from .statistics import column_bytes


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
        starts: for windows, the positions of the rows that identify them (among the selected rows), int64; ``None``
            for rows.
        steps: the offsets of a window's steps from that row, which is the first step, int64; ``[0]`` for rows.
        edges: if windows repeat the row at an edge, the positions where the runs of rows that they may use begin, and
            the number of rows, int64; ``None`` if no window has a step beyond an edge.
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
    edges: np.ndarray | None = None
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
        return self.windows(items)[0]

    def windows(self, items: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns the row positions of items, ``[items, T]``, and which of the steps repeat the row at an edge (bool
        ``[items, T]``; ``None`` if none does).
        """
        first = items if self.starts is None else self.starts[items]
        result: np.ndarray = first[:, None] + self.steps
        if self.edges is None:
            return result, None
        run = np.searchsorted(self.edges, first, side="right")[:, None]
        inside = np.clip(result, self.edges[run - 1], self.edges[run] - 1)
        padding = inside != result
        return inside, padding if padding.any() else None

    def slice(self, first: int, stop: int | None) -> Selection:
        """Returns the items ``first .. stop``."""
        if self.starts is None:
            return replace(self, rows=self.rows.slice(first, stop))
        return replace(self, starts=self.starts[first:stop])


ReadStored = Callable[[int, Sequence[UnischemaField]], Iterable[pa.Table]]
"""Reads columns of a row group in the dataset's types, named by field, including partition columns.

It yields consecutive slices, at least one, so that large row groups take little memory.
"""
RowPredicate = Callable[[WhereFunction, int, np.ndarray], np.ndarray]
"""Evaluates a Python predicate on rows of a row group: (stage, row group, rows) -> bool mask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRows:
    """Where the steps find the rows; see `select.evaluate`."""

    dataset: StoredDataset
    read: ReadStored
    test: RowPredicate
    threads: int

    def read_rows(
        self, row_group: int, fields: Sequence[UnischemaField], rows: RowSet
    ) -> Iterator[tuple[pa.Table, np.ndarray]]:
        """Yields columns of the selected rows of a row group in slices, and the numbers of these rows."""
        numbers, first = rows.numbers(row_group), 0
        for table in self.read(row_group, fields):
            chosen = rows_between(numbers, first, first + table.num_rows)
            yield table if len(chosen) == table.num_rows else take_rows(table, as_arrow(chosen)), chosen + first
            first += table.num_rows

    def read_bytes(self, names: Sequence[str], row_groups: np.ndarray) -> int:
        stored = [name for name in names if name not in self.dataset.partitions]
        return sum(column_bytes(self.dataset, int(found), stored) for found in row_groups) if stored else 0
