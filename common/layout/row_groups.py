"""`RowGroups`: one table of a dataset's row groups; `StoredFiles`: what reading one of them needs to know."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from .checksums import Verify
from .files import DataFile
from .table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroups:
    """One entry per row group: its file, its number in the file, and its rows (int64 arrays of one length)."""

    file: np.ndarray
    group: np.ndarray
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


class StoredFiles(Protocol):
    """The files of a dataset; `StoredDataset` is one."""

    @property
    def filesystem(self) -> pafs.FileSystem:
        """Where they lie."""

    @property
    def files(self) -> Sequence[DataFile]:
        """All of them, in order of their paths."""

    @property
    def row_groups(self) -> RowGroups:
        """All row groups, in order of the files."""

    @property
    def table(self) -> Table | None:
        """The snapshot that says how to read them, if they belong to a table."""

    @property
    def verify(self) -> Verify:
        """Which page checksums are compared."""

    def footer(self, file: int) -> pq.FileMetaData:
        """The footer of one file."""

    def open(self, file: int) -> AbstractContextManager[pa.NativeFile]:
        """One file, held to the version that was listed."""

    def values_of(self, file: int) -> dict[str, str | None]:
        """What a table says of every row of a file."""
