"""Windows of the engine: which rows one shuffle window needs (`WindowRows`), and those rows loaded (`LoadedWindow`).

A window holds encoded columns of the rows that its items touch, each row once; items refer to rows by their number in
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..schema.field import UnischemaField
from .columns import WindowColumn, window_column


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRows:
    """The rows of one window.

    Attributes:
        units: row groups, ascending.
        rows: for each of them, the wanted rows inside it, ascending int64.
        cells: int64 ``[items, T]``: for each item in order, the window row of each of its steps.
    """

    units: tuple[int, ...]
    rows: tuple[np.ndarray, ...]
    cells: np.ndarray


class LoadedWindow:
    """The fetched columns of a window: one Arrow table for each row group, in the order of `WindowRows.units`.

    Columns are shared by every thread. ``reuse`` says that items share rows (n-gram windows), so that each row is
    decoded once and kept while the window is.
    """

    def __init__(
        self,
        tables: Sequence[pa.Table],
        places: Sequence[str],
        rows: Sequence[np.ndarray],
        fields: Sequence[UnischemaField],
        *,
        reuse: bool = False,
    ) -> None:
        self.tables = tables
        self.places = places
        self.rows = rows
        self._start = np.concatenate([[0], np.cumsum([len(part) for part in rows])])
        self._columns: list[WindowColumn] = [
            window_column(field, [_chunk(table.column(number)) for table in tables], self.describe, reuse=reuse)
            for number, field in enumerate(fields)
        ]

    @property
    def num_bytes(self) -> int:
        """The size of the encoded columns."""
        return sum(table.nbytes for table in self.tables)

    def column(self, number: int) -> WindowColumn:
        """The column of the recipe's ``number``-th field."""
        return self._columns[number]

    def describe(self, row: int) -> str:
        """Where a row of the window is stored: file, row group, and row."""
        part = int(np.searchsorted(self._start, row, side="right")) - 1
        return f"{self.places[part]}, row {self.rows[part][row - self._start[part]]}"


def _chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
