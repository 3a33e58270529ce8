"""`StoredTables` reads stored columns of row groups as tables; `KeptTables` keeps them in a cache.

The cache is a directory (`cache()`), or the memory of other loader workers that read the same row groups. A reader that
misses a table claims it, and the others wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from ...base.metrics.counters import Count, add
from ...dataset.arrow_read import WHOLE, ReadSize
from ...dataset.dataset import StoredDataset
from ...parquet.checksums import VERIFY
from ...plan.selection.statistics import column_bytes
from ...schema.field import UnischemaField
from .column_reader import TableCache
from .stored_columns import read_row_group


class StoredTables:
    """Reads stored columns of row groups."""

    def __init__(self, dataset: StoredDataset) -> None:
        self._dataset = dataset

    def read(self, row_group: int, fields: Sequence[UnischemaField], size: ReadSize = WHOLE) -> tuple[pa.Table, float]:
        """Returns some columns, and how many bytes of the row group did not have to be read for them.

        Raises:
            TooLargeError: they take more than their room.
        """
        return read_row_group(self._dataset, row_group, fields, size), 0


class KeptTables(StoredTables):
    """Reads columns from a cache, or else from storage into the cache. It keeps tables of any size.

    Args:
        stored_bytes: returns the stored size of a row group's columns.
        peers: whether the cache is the memory of other loader workers, which share only some columns.
    """

    def __init__(
        self,
        dataset: StoredDataset,
        fields: Sequence[UnischemaField],
        cache: TableCache,
        stored_bytes: Callable[[int], int],
        *,
        peers: bool,
    ) -> None:
        super().__init__(dataset)
        self._exact = microsecond_fields(dataset, fields)
        self._cache = cache
        self._stored_bytes = stored_bytes
        self._peers = peers

    def read(self, row_group: int, fields: Sequence[UnischemaField], size: ReadSize = WHOLE) -> tuple[pa.Table, float]:
        """As `StoredTables`."""
        key = table_key(self._dataset, row_group, fields, self._exact)
        table = self._kept(key, row_group, fields)
        if table is None:
            with self._cache.claim(key, self._stored_bytes(row_group)):
                table = self._kept(key, row_group, fields)  # another reader may have stored it meanwhile
                if table is None:
                    if not self._peers:
                        add(Count.CACHE_MISSES, 1)
                    table, unread_bytes = super().read(row_group, fields)
                    self._cache.put(key, table)
                    return table, unread_bytes
        if not self._peers:
            return table, self._stored_bytes(row_group)
        return table, column_bytes(self._dataset, row_group, [field.name for field in fields])

    def _kept(self, key: str, row_group: int, fields: Sequence[UnischemaField]) -> pa.Table | None:
        table = self._cache.get(key)
        rows = self._dataset.row_groups.rows[row_group]
        if table is None or table.num_rows != rows or not {field.name for field in fields} <= {*table.column_names}:
            return None
        if not self._peers:
            add(Count.CACHE_HITS, 1)
        return table


def microsecond_fields(dataset: StoredDataset, fields: Sequence[UnischemaField]) -> frozenset[str]:
    """Returns the names of the fields of timestamps in microseconds, as INT96 is read."""
    return frozenset(field.name for field in fields if "timestamp[us" in str(dataset.types.get(field.name)))


def table_key(dataset: StoredDataset, row_group: int, fields: Sequence[UnischemaField], exact: frozenset[str]) -> str:
    """Returns a name for some columns of a row group, in this version of its file.

    Args:
        exact: the `microsecond_fields` of the dataset.
    """
    groups = dataset.row_groups
    file = dataset.files[groups.file[row_group]]
    names = "\0".join(field.name for field in fields)
    if dataset.table is not None:  # in another table version these names may mean other columns
        names += "\0" + dataset.table.digest
    if dataset.verify != VERIFY[0]:  # entries were checked as `verify` required
        names += f"\0{dataset.verify}"
    if not exact.isdisjoint(field.name for field in fields):
        names += "\0exact"  # entries without this word may hold INT96 that wrapped around as nanoseconds
    return f"{file.version.key}\0{groups.group[row_group]}\0{names}"
