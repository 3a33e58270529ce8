"""`FetchedRows`: the wanted columns of the wanted rows of one row group, as a window takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from .file_cells import FileCells
from .stored_cells import StoredCells

InMemory: TypeAlias = pa.Array | StoredCells
Part: TypeAlias = InMemory | FileCells
"""One field of one row group: an Arrow array in canonical form, or large values where they lie, in memory or a file."""


@dataclass(frozen=True, slots=True, eq=False)
class FetchedRows:
    """One part for each field, all of the same length."""

    columns: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(column.nbytes for column in self.columns)
