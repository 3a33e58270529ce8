"""`ReadContext`: how a process reads the columns of a dataset, one value for all its readers."""

from __future__ import annotations

from collections.abc import Callable, Container
from contextlib import AbstractContextManager
from typing import Protocol

import pyarrow as pa

from ...process.dataclass import dataclass
from .list_reader import ListReader


class TableCache(Protocol):
    """A store of fetched row groups; see `disk_cache` and `shared_tables`."""

    def get(self, key: str) -> pa.Table | None:
        """Returns the table stored under the key, or ``None`` if there is none or it is damaged."""

    def claim(self, key: str, size_bytes: int = 0) -> AbstractContextManager[bool]:
        """Claims a missing table while the block runs. Yields whether another reader had claimed it until now."""

    def put(self, key: str, table: pa.Table) -> None:
        """Stores a table under the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadContext:
    """How a process reads the columns of a dataset.

    The dataset itself says how pages are verified, and how large a value may be.

    Attributes:
        room_bytes: the memory for the columns of a row group; ``None`` = no limit.
        cache: stores fetched row groups; ``None`` for no cache.
        shared: row groups shared with processes that read the same ones at the same time; ``None`` without any.
        share: the approximate share of a block that this process uses.
        shared_by_workers: whether other processes use most rows of a block.
        shares_rows: whether several items need the same row.
        lists: reads lists whose lengths are known.
        casts: fields that are cast from the type of each file; see `Plan.casts`.
        stored_bytes: returns the stored size of a row group's columns, for the counters.
    """

    room_bytes: int | None = None
    cache: TableCache | None = None
    shared: TableCache | None = None
    share: float = 1.0
    shared_by_workers: bool = False
    shares_rows: bool = False
    lists: ListReader | None = None
    casts: Container[str] = ()
    stored_bytes: Callable[[int], int] = lambda row_group: 0


ALONE = ReadContext()
"""Of a process that reads for itself, whatever memory that takes."""
