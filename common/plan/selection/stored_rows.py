"""`StoredRows`: where the steps of a selection find stored columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from ...base.memory.arrow_views import as_arrow
from ...base.process.dataclass import dataclass
from ...dataset.dataset import StoredDataset
from ...parquet.nested import take_rows
from ...schema.field import UnischemaField
from ...stages.where import WhereFunction
from .rows import RowSet, rows_between
from .statistics import column_bytes

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
        """Returns the stored bytes of columns in row groups."""
        stored = [name for name in names if name not in self.dataset.partitions]
        return sum(column_bytes(self.dataset, int(found), stored) for found in row_groups) if stored else 0
