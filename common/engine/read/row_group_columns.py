"""`RowGroupColumns`: the wanted columns of the wanted rows of one row group, as a block takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from ...errors import DatasetError
from .file_cells import FileCells
from .stored_cells import StoredCells

InMemory: TypeAlias = pa.Array | StoredCells
Part: TypeAlias = InMemory | FileCells
"""One field of one row group: an Arrow array in canonical form, or large values where they lie, in memory or a file."""


@dataclass(frozen=True, slots=True, eq=False)
class RowGroupColumns:
    """One part for each field, all of the same length."""

    columns: tuple[Part, ...]

    def check(self, rows: int, place: str) -> None:
        """Raises `DatasetError` for a column without a value for each of the rows: gathering looks at no bounds."""
        for number, column in enumerate(self.columns):
            if len(column) != rows:
                raise DatasetError(
                    f"{place}: expected {rows} values of column {number}, got {len(column)}. "
                    "The file is damaged: write it again."
                )

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(column.nbytes for column in self.columns)
