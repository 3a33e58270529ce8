"""`FetchedRows`: the wanted columns of the wanted rows of one row group, as a window takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from .stored_cells import StoredCells

Part: TypeAlias = pa.Array | StoredCells
"""One field of one row group: an Arrow array in canonical form, or large values where they lie."""


@dataclass(frozen=True, slots=True, eq=False)
class FetchedRows:
    """One part for each field, all of the same length."""

    columns: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(column.nbytes for column in self.columns)
