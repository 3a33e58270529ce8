"""`RowGroups` is the table of a dataset's row groups; `StoredFiles` is the interface for reading one of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..base.process.dataclass import dataclass
from ..parquet.checksums import Verify
from ..parquet.group_footers import GroupFooter
from ..storage.files import DataFile
from .table import Table

MAX_VALUE_BYTES = 1 << 30
"""The default size limit of one value."""
MOST_VALUES = 16
"""How many values of the largest size the values of a batch may take in memory."""


def most_bytes_of_many(max_value_bytes: int) -> int:
    """Returns the size limit of the texts or lists of a batch, and of the columns of a row group."""
    return MOST_VALUES * max(max_value_bytes, MAX_VALUE_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroups:
    """The file number, the number in that file, and the row count of each row group (int64 arrays of equal length)."""

    file: np.ndarray
    group: np.ndarray
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


class StoredFiles(Protocol):
    """The files of a dataset; `StoredDataset` is one."""

    @property
    def filesystem(self) -> pafs.FileSystem:
        """The file system that holds the files."""

    @property
    def files(self) -> Sequence[DataFile]:
        """All files, in path order."""

    @property
    def row_groups(self) -> RowGroups:
        """All row groups, in file order."""

    @property
    def table(self) -> Table | None:
        """The snapshot that says how to read the files; ``None`` if they do not belong to a table."""

    @property
    def verify(self) -> Verify:
        """Which page checksums are verified."""

    @property
    def max_value_bytes(self) -> int:
        """The size limit of one value."""

    def head(self, file: int) -> pq.FileMetaData:
        """Returns the footer of one file without its row groups."""

    def group_footer(self, row_group: int, names: frozenset[str] | None = None) -> GroupFooter:
        """Returns a footer that describes at least the named columns of one row group; ``None`` for all columns."""

    def open(self, file: int, *, ranges: bool = False) -> AbstractContextManager[pa.NativeFile]:
        """Opens one file, and checks that it is the version that was listed. ``ranges``: only to read ranges of it."""

    def values_of(self, file: int) -> dict[str, str | None]:
        """The column values that a table states for all rows of a file, as text."""


def describe_row_group(dataset: StoredFiles, row_group: int) -> str:
    """Describes where a row group is stored, for messages."""
    groups = dataset.row_groups
    return f"file {dataset.files[int(groups.file[row_group])].shown_path}, row group {groups.group[row_group]}"
